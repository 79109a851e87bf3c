"""Translate librdkafka's access settings, in which users write them, to the options of Faust's
client.

A load worker first connects through librdkafka, like a broker, and then reads and writes through
Faust's client. Access settings apply to both, and unsupported ones are refused. Tuning settings
apply to librdkafka only. Pure: the caller reads the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from equipoise.channel.core.errors import invalid_kafka_setting
from equipoise.channel.kafka.settings import METHOD, OAUTHBEARER, OIDC, mechanism_of

_PROTOCOLS: Final = {
    "plaintext": (False, False),
    "ssl": (False, True),
    "sasl_plaintext": (True, False),
    "sasl_ssl": (True, True),
}
"""Each `security.protocol`: whether it uses SASL, and whether it uses TLS."""

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)

_TRUTHS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

# Settings with these prefixes concern access. Ignoring one would connect in another way than the
# user configured.
_ABOUT_ACCESS: Final = ("enable.sasl", "enable.ssl", "https.", "sasl.", "security.", "ssl.")

_KNOWN: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
        "https.ca.location",
        METHOD,
        f"{OIDC}client.id",
        f"{OIDC}client.secret",
        f"{OIDC}extensions",
        f"{OIDC}scope",
        f"{OIDC}token.endpoint.url",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Password:
    """SASL with a name and a password."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """SASL with tokens that a client gets from an endpoint by its id and secret. `authorities` is
    for the endpoint, as in `Tls`.
    """

    endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None
    extensions: Mapping[str, str]
    authorities: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS, with paths of PEM files. `authorities` may be a folder; None means those of the
    system.
    """

    authorities: str | None
    certificate: str | None
    key: str | None
    key_password: str | None = field(repr=False)
    verifies_certificate: bool
    verifies_host: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAccess:
    """How a load worker connects: with or without SASL and TLS."""

    login: Password | Tokens | None
    tls: Tls | None


def access_of(settings: Mapping[str, str]) -> KafkaAccess:
    """Return the access part of the Kafka client's settings. Raises `CallerError` for what
    a load worker does not support.
    """
    for setting in sorted(settings):
        if setting.startswith(_ABOUT_ACCESS) and setting not in _KNOWN:
            raise invalid_kafka_setting(
                setting=setting,
                problem=f"a load worker does not know it; it knows {', '.join(sorted(_KNOWN))}",
            )
    protocol = settings.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise invalid_kafka_setting(
            setting="security.protocol", problem=f"it must be one of {', '.join(_PROTOCOLS)}"
        )
    has_sasl, has_tls = _PROTOCOLS[protocol]
    return KafkaAccess(
        login=_login(settings) if has_sasl else None, tls=_tls(settings) if has_tls else None
    )


def _login(settings: Mapping[str, str]) -> Password | Tokens:
    mechanism = mechanism_of(settings)
    if mechanism is None or mechanism not in _MECHANISMS:
        setting = "sasl.mechanism" if "sasl.mechanism" in settings else "sasl.mechanisms"
        raise invalid_kafka_setting(
            setting=setting,
            problem=f"a load worker can do {', '.join(_MECHANISMS)}, and not {mechanism}",
        )

    def needed(setting: str) -> str:
        if setting not in settings:
            raise invalid_kafka_setting(setting=setting, problem=f"{mechanism} needs it")
        return settings[setting]

    if mechanism != OAUTHBEARER:
        return Password(
            mechanism=mechanism, username=needed("sasl.username"), password=needed("sasl.password")
        )
    if needed(METHOD).lower() != "oidc":
        raise invalid_kafka_setting(setting=METHOD, problem="it must be oidc")
    return Tokens(
        endpoint=needed(f"{OIDC}token.endpoint.url"),
        client_id=needed(f"{OIDC}client.id"),
        client_secret=needed(f"{OIDC}client.secret"),
        scope=settings.get(f"{OIDC}scope"),
        extensions=_extensions(settings.get(f"{OIDC}extensions", "")),
        authorities=settings.get("https.ca.location"),
    )


def _extensions(text: str) -> dict[str, str]:
    """Parse `NAME=VALUE,NAME=VALUE`."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not all(equals and name for name, equals, _ in pairs):
        raise invalid_kafka_setting(
            setting=f"{OIDC}extensions", problem="it is not NAME=VALUE,NAME=VALUE"
        )
    return {name: value for name, _, value in pairs}


def _tls(settings: Mapping[str, str]) -> Tls:
    authorities = settings.get("ssl.ca.location")
    verification = settings.get("enable.ssl.certificate.verification", "true").lower()
    if verification not in _TRUTHS:
        raise invalid_kafka_setting(
            setting="enable.ssl.certificate.verification", problem="it must be true or false"
        )
    identification = settings.get("ssl.endpoint.identification.algorithm", "https").lower()
    if identification not in {"https", "none"}:
        raise invalid_kafka_setting(
            setting="ssl.endpoint.identification.algorithm", problem="it must be https or none"
        )
    return Tls(
        authorities=None if authorities == "probe" else authorities,
        certificate=settings.get("ssl.certificate.location"),
        key=settings.get("ssl.key.location"),
        key_password=settings.get("ssl.key.password"),
        verifies_certificate=_TRUTHS[verification],
        verifies_host=_TRUTHS[verification] and identification == "https",
    )
