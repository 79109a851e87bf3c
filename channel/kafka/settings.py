"""The settings of the Kafka client, as users write them: parsed, checked, and shown without their secrets.

May live here: the grammar of settings and of `kafka://` addresses, what is not the user's to choose and why, and what is a
secret. Pure: who calls brings the environment, and the text of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import InvalidKafkaSetting, InvalidLogUrl

CONFIG_VARIABLE: Final = "EQUIPOISE_KAFKA_CONFIG"
"""Settings as `key=value`, one a line, or with `;` between them where there is only one line."""

CONFIG_FILE_VARIABLE: Final = "EQUIPOISE_KAFKA_CONFIG_FILE"
"""The path of a file of such lines. What `CONFIG_VARIABLE` says goes before what the file says."""

MASK: Final = "***"

SNAPSHOT_SUFFIX: Final = "-snapshot"
HISTORY_SUFFIX: Final = "-history"

SUFFIX_CHARACTERS_MAX: Final = 29
"""What stands behind the log's name in those of the topics beside it: of its snapshot, its history snapshot, and the load plane."""

TOPIC_CHARACTERS_MAX: Final = 249 - SUFFIX_CHARACTERS_MAX
"""Kafka takes 249, also of the topics beside it."""

_BY_EQUIPOISE: Final = "Equipoise sets it, because the order and the durability of the log rest on it"
_BY_URL: Final = "the log's URL says it"
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
    "sasl.jaas.config": "it is a setting of Java's client; here there are sasl.username and sasl.password",
    "ssl.truststore.location": "it is a setting of Java's client; here there is ssl.ca.location, a file of certificates (PEM)",
}
"""What users may not set, and why."""

# Whatever may hold a key or a password, now or in a later version of the library: rather one too many than one too few.
_is_secret: Final = re.compile(r"password|passphrase|secret|credential|token|\.pem$|private|assertion|sasl\.oauthbearer\.config").search

_match_topic: Final = re.compile(rf"(?!\.\.?\Z)[A-Za-z0-9._-]{{1,{TOPIC_CHARACTERS_MAX}}}").fullmatch
_match_server: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})").fullmatch
_match_setting: Final = re.compile(r"[a-z][a-z0-9._]*").fullmatch

_PORT_MAX: Final = 65_535
_REPLICATION_MAX: Final = 32_767  # A signed 16-bit number in Kafka's protocol.


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """Where a log lies: the brokers to ask first, its topic, and how many copies a topic that is made now is to have."""

    servers: str
    topic: str
    replication: int | None

    @property
    def snapshot_topic(self) -> str:
        """The topic of the log's snapshot."""
        return self.topic + SNAPSHOT_SUFFIX

    @property
    def history_topic(self) -> str:
        """The topic of the log's history snapshot."""
        return self.topic + HISTORY_SUFFIX


def address_of(url: str) -> KafkaAddress:
    """The parts of `kafka://host:port[,host:port]/topic[?replication=N]`. Raises `InvalidLogUrl`, and repeats no password."""
    rest = url.removeprefix("kafka:")
    if "@" in rest.partition("?")[0]:
        masked = "kafka://" + MASK + rest[rest.rindex("@") :]
        problem = "a URL holds no user or password; give them as settings: sasl.username and sasl.password"
        raise InvalidLogUrl(url=masked, problem=problem)
    if not rest.startswith("//"):
        raise InvalidLogUrl(url=url, problem="two slashes stand before the host: kafka://HOST:PORT/TOPIC")
    place, _, options = rest.removeprefix("//").partition("?")
    servers, slash, topic = place.partition("/")
    if not slash or not topic:
        raise InvalidLogUrl(url=url, problem="it names no topic: kafka://HOST:PORT/TOPIC")
    for server in servers.split(","):
        match = _match_server(server)
        if match is None or not 0 < int(match[2]) <= _PORT_MAX:
            raise InvalidLogUrl(url=url, problem=f"{server!r} is not HOST:PORT")
    if _match_topic(topic) is None:
        problem = f"{topic!r} is no name of a topic: 1 to {TOPIC_CHARACTERS_MAX} of A-Z a-z 0-9 . _ -"
        raise InvalidLogUrl(url=url, problem=problem)
    return KafkaAddress(servers=servers, topic=topic, replication=_replication(url, options))


def _replication(url: str, options: str) -> int | None:
    if not options:
        return None
    name, _, number = options.partition("=")
    if name != "replication":
        raise InvalidLogUrl(url=url, problem=f"{options!r} is no option; there is replication=COPIES")
    if not number.isascii() or not number.isdigit() or not 1 <= int(number[:6]) <= _REPLICATION_MAX:
        raise InvalidLogUrl(url=url, problem=f"{number!r} is no number of copies")
    return int(number)


def parsed(text: str) -> dict[str, str]:
    """The settings in a text: `key=value`, one a line, `#` before a remark; a single line may hold several, with `;` between them.

    Whoever has a `;` in a value ends the line, or uses a file. Raises `InvalidKafkaSetting`, which never quotes a value.
    """
    lines = text.splitlines() if "\n" in text else text.split(";")
    settings: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        setting, equals, value = map(str.strip, line.partition("="))
        if not equals or _match_setting(setting) is None:
            # The name is not repeated: whoever forgot it may have written the password in its place.
            raise InvalidKafkaSetting(setting=f"number {number}", problem="it is not key=value, such as security.protocol=SASL_SSL")
        settings[setting] = value
    return settings


def checked(settings: Mapping[str, str]) -> dict[str, str]:
    """The same settings. Raises `InvalidKafkaSetting` for one that is not the user's to choose."""
    for setting in sorted(settings):
        if setting in FIXED:
            raise InvalidKafkaSetting(setting=setting, problem=f"{FIXED[setting]}; leave it out")
        if _match_setting(setting) is None:
            raise InvalidKafkaSetting(setting=setting, problem="there is no setting with such a name")
    return dict(settings)


def as_text(settings: Mapping[str, str]) -> str:
    """A text that `parsed` reads back, for the environment of a child. Raises `InvalidKafkaSetting` for a value of two lines."""
    for setting, value in settings.items():
        if len(value.splitlines()) > 1:
            raise InvalidKafkaSetting(setting=setting, problem="a value here is one line; name the file that holds it by another setting")
    return "".join(f"{setting}={value}\n" for setting, value in sorted(settings.items()))


def masked(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with a mask in place of each secret, in order of their names."""
    return {setting: MASK if _is_secret(setting) else settings[setting] for setting in sorted(settings)}


def without_secrets(text: str, settings: Mapping[str, str]) -> str:
    """`text`, such as an error of the library, with a mask in place of each secret that stands in it."""
    for setting, value in settings.items():
        if value and _is_secret(setting):
            text = text.replace(value, MASK)
    return text
