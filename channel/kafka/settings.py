"""Parse, check and mask the settings of the Kafka client, and parse `kafka://` addresses.

Pure: the caller reads the environment and files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import invalid_kafka_setting, invalid_log_url

CONFIG_VARIABLE: Final = "EQUIPOISE_KAFKA_CONFIG"
"""Settings as `key=value`, one per line, or separated by `;` on a single line."""

CONFIG_FILE_VARIABLE: Final = "EQUIPOISE_KAFKA_CONFIG_FILE"
"""The path of a file of such lines. `CONFIG_VARIABLE` takes precedence."""

MASK: Final = "***"

HEADER_KEY: Final = b"equipoise"
"""The key of a message on the log's topic that is no entry: it names the topic's owner, or proves
the topic's end."""

SNAPSHOT_SUFFIX: Final = "-snapshot"
HISTORY_SUFFIX: Final = "-history"

SUFFIX_CHARACTERS_MAX: Final = 29
"""The longest suffix of the topics beside the log's: of its snapshot, its history snapshot, and the
load plane."""

TOPIC_CHARACTERS_MAX: Final = 249 - SUFFIX_CHARACTERS_MAX
"""Kafka's limit of 249, less the longest suffix."""

_BY_EQUIPOISE: Final = (
    "Equipoise sets it, because the order and the durability of the log depend on it"
)
_BY_URL: Final = "the log's URL sets it"
_NO_CODE: Final = "it would load code into this process"

FIXED: Final[Mapping[str, str]] = {
    "bootstrap.servers": _BY_URL,
    "metadata.broker.list": _BY_URL,
    **dict.fromkeys(
        (
            "acks",
            "allow.auto.create.topics",
            "auto.commit.enable",
            "auto.offset.reset",
            "check.crcs",
            "delivery.report.only.error",
            "delivery.timeout.ms",
            "enable.auto.commit",
            "enable.auto.offset.store",
            "enable.gapless.guarantee",
            "enable.idempotence",
            "enable.partition.eof",
            "group.id",
            "group.instance.id",
            "group.protocol",
            "isolation.level",
            "linger.ms",
            "log.queue",
            "max.in.flight",
            "max.in.flight.requests.per.connection",
            "message.max.bytes",
            "message.send.max.retries",
            "message.timeout.ms",
            "queue.buffering.max.ms",
            "request.required.acks",
            "request.timeout.ms",
            "retries",
            "transaction.timeout.ms",
            "transactional.id",
        ),
        _BY_EQUIPOISE,
    ),
    "plugin.library.paths": _NO_CODE,
    "sasl.jaas.config": "it is a setting of the Java client; use sasl.username and sasl.password",
    "ssl.truststore.location": (
        "it is a setting of the Java client; use ssl.ca.location, a file of certificates (PEM)"
    ),
}
"""Settings that users may not set, and why."""

_OAUTHBEARER: Final = "OAUTHBEARER"
_OIDC: Final = "sasl.oauthbearer."
_METHOD: Final = f"{_OIDC}method"
_TOKEN_SOURCES: Final = frozenset({_METHOD, "enable.sasl.oauthbearer.unsecure.jwt"})
"""Without one of these the library has no token, and waits for one forever."""

# Matches every setting that may hold a key or a password, also in later versions of the library.
# Masks too many rather than too few.
_is_secret: Final = re.compile(
    r"password|passphrase|secret|credential|token|\.pem$|private|assertion|sasl\.oauthbearer\.config"
).search

_match_topic: Final = re.compile(
    rf"(?!\.\.?\Z)[A-Za-z0-9._-]{{1,{TOPIC_CHARACTERS_MAX}}}"
).fullmatch
_match_server: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})").fullmatch
_match_setting: Final = re.compile(r"[a-z][a-z0-9._]*").fullmatch

_PORT_MAX: Final = 65_535
_REPLICATION_MAX: Final = 32_767  # A signed 16-bit number in Kafka's protocol.


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """Where a log is: the bootstrap brokers, its topic, and the copies that a new topic gets."""

    servers: str
    topic: str
    replication: int | None


def address_of(url: str) -> KafkaAddress:
    """Parse `kafka://host:port[,host:port]/topic[?replication=N]`. Raises `CallerError`, which
    never repeats a password.
    """
    rest = url.removeprefix("kafka:")
    if "@" in rest.partition("?")[0]:
        problem = (
            "a URL must not contain a user or password; use the settings sasl.username and"
            " sasl.password"
        )
        raise invalid_log_url(url=url, problem=problem)
    if not rest.startswith("//"):
        raise invalid_log_url(
            url=url, problem="it needs two slashes before the host: kafka://HOST:PORT/TOPIC"
        )
    place, _, options = rest.removeprefix("//").partition("?")
    servers, slash, topic = place.partition("/")
    if not slash or not topic:
        raise invalid_log_url(url=url, problem="it names no topic: kafka://HOST:PORT/TOPIC")
    for server in servers.split(","):
        match = _match_server(server)
        if match is None or not 0 < int(match[2]) <= _PORT_MAX:
            raise invalid_log_url(url=url, problem=f"{server!r} is not HOST:PORT")
    if _match_topic(topic) is None:
        problem = f"{topic!r} is not a topic name: 1 to {TOPIC_CHARACTERS_MAX} of A-Z a-z 0-9 . _ -"
        raise invalid_log_url(url=url, problem=problem)
    return KafkaAddress(servers=servers, topic=topic, replication=_replication(url, options))


def _replication(url: str, options: str) -> int | None:
    if not options:
        return None
    name, _, number = options.partition("=")
    if name != "replication":
        raise invalid_log_url(
            url=url, problem=f"unknown option {options!r}; use replication=COPIES"
        )
    if not number.isascii() or not number.isdigit() or not 1 <= int(number[:6]) <= _REPLICATION_MAX:
        raise invalid_log_url(url=url, problem=f"{number!r} is not a number of copies")
    return int(number)


def parsed(text: str) -> dict[str, str]:
    """Parse settings: `key=value`, one per line, `#` starts a comment line. A single line may hold
    several, separated by `;`.

    A value with a `;` needs a text of several lines. Raises `CallerError`, which never
    quotes a value.
    """
    lines = text.splitlines() if "\n" in text else text.split(";")
    settings: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        setting, equals, value = map(str.strip, line.partition("="))
        if not equals or _match_setting(setting) is None:
            # Do not repeat the text: it may be a password.
            raise invalid_kafka_setting(
                setting=f"number {number}",
                problem="it is not key=value, such as security.protocol=SASL_SSL",
            )
        settings[setting] = value
    return settings


def checked(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the same settings. Raises `CallerError` for one that users may not set."""
    for setting in sorted(settings):
        if setting in FIXED:
            raise invalid_kafka_setting(setting=setting, problem=f"{FIXED[setting]}; leave it out")
        if _match_setting(setting) is None:
            raise invalid_kafka_setting(setting=setting, problem="there is no such setting")
    if _mechanism_of(settings) == _OAUTHBEARER and not settings.keys() & _TOKEN_SOURCES:
        wanted = f"{_OIDC}token.endpoint.url, {_OIDC}client.id and {_OIDC}client.secret"
        problem = f"{_OAUTHBEARER} needs it to get tokens: set it to oidc, and set {wanted}"
        raise invalid_kafka_setting(setting=_METHOD, problem=problem)
    return dict(settings)


def _mechanism_of(settings: Mapping[str, str]) -> str | None:
    """Return the mechanism by which the client logs in, None without SASL. The library calls the
    setting by two names.
    """
    if not settings.get("security.protocol", "").lower().startswith("sasl_"):
        return None
    return settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI"))


def as_text(settings: Mapping[str, str]) -> str:
    """Return a text that `parsed` reads back, for the environment of a child. Raises
    `CallerError` for a multi-line value.
    """
    for setting, value in settings.items():
        if len(value.splitlines()) > 1:
            raise invalid_kafka_setting(
                setting=setting,
                problem="a value here has one line; use the setting that names a file",
            )
    return "".join(f"{setting}={value}\n" for setting, value in sorted(settings.items()))


def masked(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings sorted by name, with secrets masked."""
    return {
        setting: MASK if _is_secret(setting) else settings[setting] for setting in sorted(settings)
    }


def without_secrets(text: str, settings: Mapping[str, str]) -> str:
    """Return `text`, such as an error of the library, with the secrets of `settings` masked."""
    for setting, value in settings.items():
        if value and _is_secret(setting):
            text = text.replace(value, MASK)
    return text
