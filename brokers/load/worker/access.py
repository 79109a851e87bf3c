"""Translate librdkafka's access settings, in which users write them, to the options of Faust's client.

A load worker first connects through librdkafka, like a broker, and then reads and writes through Faust's client. Access settings apply to
both, and unsupported ones are refused. Tuning settings apply to librdkafka only. Pure: the caller reads the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from equipoise.channel.core.errors import InvalidKafkaSetting

_PROTOCOLS: Final = {"plaintext": (False, False), "ssl": (False, True), "sasl_plaintext": (True, False), "sasl_ssl": (True, True)}
"""Each `security.protocol`: whether it uses SASL, and whether it uses TLS."""

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_TRUTHS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

# Settings with these prefixes concern access. Ignoring one would connect in another way than the user configured.
_ABOUT_ACCESS: Final = ("enable.sasl", "enable.ssl", "https.", "sasl.", "security.", "ssl.")

_KNOWN: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
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
class Tls:
    """TLS, with paths of PEM files. `authorities` may be a folder; None means those of the system."""

    authorities: str | None
    certificate: str | None
    key: str | None
    key_password: str | None = field(repr=False)
    verifies_certificate: bool
    verifies_host: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a load worker connects: with or without SASL and TLS."""

    password: Password | None
    tls: Tls | None


def access_of(settings: Mapping[str, str]) -> Access:
    """Return the access part of the Kafka client's settings. Raises `InvalidKafkaSetting` for what a load worker does not support."""
    for setting in sorted(settings):
        if setting.startswith(_ABOUT_ACCESS) and setting not in _KNOWN:
            raise InvalidKafkaSetting(setting=setting, problem=f"a load worker does not know it; it knows {', '.join(sorted(_KNOWN))}")
    protocol = settings.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise InvalidKafkaSetting(setting="security.protocol", problem=f"it must be one of {', '.join(_PROTOCOLS)}")
    has_sasl, has_tls = _PROTOCOLS[protocol]
    return Access(password=_password(settings) if has_sasl else None, tls=_tls(settings) if has_tls else None)


def _password(settings: Mapping[str, str]) -> Password:
    setting = "sasl.mechanism" if "sasl.mechanism" in settings else "sasl.mechanisms"
    mechanism = settings.get(setting, "GSSAPI")
    if mechanism not in _MECHANISMS:
        raise InvalidKafkaSetting(setting=setting, problem=f"a load worker can do {', '.join(_MECHANISMS)}, and not {mechanism}")
    for needed in ("sasl.username", "sasl.password"):
        if needed not in settings:
            raise InvalidKafkaSetting(setting=needed, problem=f"{mechanism} needs it")
    return Password(mechanism=mechanism, username=settings["sasl.username"], password=settings["sasl.password"])


def _tls(settings: Mapping[str, str]) -> Tls:
    authorities = settings.get("ssl.ca.location")
    verification = settings.get("enable.ssl.certificate.verification", "true").lower()
    if verification not in _TRUTHS:
        raise InvalidKafkaSetting(setting="enable.ssl.certificate.verification", problem="it must be true or false")
    identification = settings.get("ssl.endpoint.identification.algorithm", "https").lower()
    if identification not in {"https", "none"}:
        raise InvalidKafkaSetting(setting="ssl.endpoint.identification.algorithm", problem="it must be https or none")
    return Tls(
        authorities=None if authorities == "probe" else authorities,
        certificate=settings.get("ssl.certificate.location"),
        key=settings.get("ssl.key.location"),
        key_password=settings.get("ssl.key.password"),
        verifies_certificate=_TRUTHS[verification],
        verifies_host=_TRUTHS[verification] and identification == "https",
    )
