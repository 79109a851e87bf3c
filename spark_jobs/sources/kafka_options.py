"""Translate librdkafka settings into options for Spark's Kafka connector, which uses the Java
client.

Users write settings once, in librdkafka's names (`channel.kafka.settings`). They become connector
options `kafka.NAME`. The functions are pure: the caller reads the files whose text Java needs.

Settings that only tune librdkafka are dropped. Settings about access are translated or refused: a
connection with other security than requested is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from equipoise.channel.core.errors import invalid_kafka_setting

_SAME: Final = frozenset(
    {
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "sasl.kerberos.service.name",
        "security.protocol",
        "ssl.cipher.suites",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)
"""Settings with the same name and meaning in both clients."""

_RENAMED: Final = {"sasl.mechanism": "sasl.mechanism", "sasl.mechanisms": "sasl.mechanism"}

_HANDLED: Final = frozenset(
    {
        "sasl.kerberos.keytab",
        "sasl.kerberos.principal",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.pem",
    }
)

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_KERBEROS: Final = "com.sun.security.auth.module.Krb5LoginModule"
_PEM: Final = "PEM"


def connector_options(settings: Mapping[str, str], *, read: Callable[[str], str]) -> dict[str, str]:
    """Return connector options for settings in librdkafka's names. `read` returns the text of a
    certificate or key file.

    Raises `CallerError` for an access setting that Java's client lacks, or whose file
    cannot be read.
    """
    for setting in sorted(settings):
        is_about_access = setting.startswith(
            ("sasl.", "ssl.", "enable.ssl", "enable.sasl", "oauthbearer", "https.")
        )
        if is_about_access and setting not in _SAME | _HANDLED | _RENAMED.keys():
            raise invalid_kafka_setting(
                setting=setting,
                problem="Spark's connector, which uses Java's client, has nothing like it",
            )
    java = {name: value for name, value in settings.items() if name in _SAME}
    java |= {_RENAMED[name]: value for name, value in settings.items() if name in _RENAMED}
    if "ssl.keystore.location" in java:
        java["ssl.keystore.type"] = "PKCS12"
    java |= (
        _trust(settings, read)
        | _keys(settings, read)
        | _login(java.get("sasl.mechanism"), settings)
    )
    if "ssl.endpoint.identification.algorithm" in settings:
        algorithm = settings["ssl.endpoint.identification.algorithm"]
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return {f"kafka.{name}": value for name, value in sorted(java.items())}


def _trust(settings: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str]:
    """Return the trusted certificates as text. A path would have to exist on every worker."""
    text = _text(settings, "ssl.ca", read)
    return (
        {} if text is None else {"ssl.truststore.type": _PEM, "ssl.truststore.certificates": text}
    )


def _keys(settings: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str]:
    """Return the client's certificate and key."""
    certificate, key = _text(settings, "ssl.certificate", read), _text(settings, "ssl.key", read)
    if certificate is None and key is None:
        return {}
    if certificate is None or key is None:
        raise invalid_kafka_setting(
            setting="ssl.key.location",
            problem="it and ssl.certificate.location are given together, or not at all",
        )
    return {
        "ssl.keystore.type": _PEM,
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": key,
    }


def _text(settings: Mapping[str, str], stem: str, read: Callable[[str], str]) -> str | None:
    if f"{stem}.pem" in settings:
        return settings[f"{stem}.pem"]
    path = settings.get(f"{stem}.location")
    # librdkafka's name for the system's certificates, which are Java's default.
    if path is None or path == "probe":
        return None
    try:
        return read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise invalid_kafka_setting(
            setting=f"{stem}.location", problem=f"the file cannot be read: {error}"
        ) from error


def _login(mechanism: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the login options: Java takes several librdkafka settings in one line."""
    if mechanism in _MODULES:
        words = {
            "username": settings.get("sasl.username", ""),
            "password": settings.get("sasl.password", ""),
        }
        return {"sasl.jaas.config": _line(_MODULES[mechanism], words)}
    if mechanism == "GSSAPI" and "sasl.kerberos.keytab" in settings:
        words = {
            "useKeyTab": "true",
            "storeKey": "true",
            "keyTab": settings["sasl.kerberos.keytab"],
            "principal": settings.get("sasl.kerberos.principal", ""),
        }
        return {"sasl.jaas.config": _line(_KERBEROS, words)}
    if mechanism is not None:
        known = ", ".join((*_MODULES, "GSSAPI with sasl.kerberos.keytab"))
        raise invalid_kafka_setting(
            setting="sasl.mechanism",
            problem=f"the Spark jobs log in by {known}, not by {mechanism}",
        )
    return {}


def _line(module: str, words: Mapping[str, str]) -> str:
    quoted = {
        name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in words.items()
    }
    return (
        f"{module} required "
        + " ".join(f'{name}="{value}"' for name, value in quoted.items())
        + ";"
    )
