"""Translate librdkafka's access settings, in which users write them, to the options of Faust's
client.

A load worker first connects through librdkafka, like a broker, and then reads and writes through
Faust's client. Access settings apply to both, and unsupported ones are refused. Tuning settings
apply to librdkafka only. The caller reads the files.

Faust's client gets its tokens of OAUTHBEARER from an endpoint, by the client's id and secret (RFC
6749, section 4.4).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import orjson
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError

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


_ANSWER_S: Final = 10.0
"""How long the endpoint may take. As long as Kafka itself."""

_ANSWER_BYTES_MAX: Final = 1 << 20
"""A token has some kilobytes."""

_USED_OF_LIFE: Final = 0.8
"""A token is renewed after this share of its life, as by the library of the brokers."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc] # The library has no types.
    """Keeps one token, and replaces it in time. Used from one loop."""

    def __init__(self, tokens: Tokens) -> None:
        """Ask for nothing yet. Raises OSError for a file of certificates that cannot be read."""
        self._tokens = tokens
        self._context = ssl.create_default_context(cafile=tokens.authorities)
        self._lock = asyncio.Lock()
        self._token = ""
        self._until_s = 0.0

    async def token(self) -> str:
        """Return a token for a new connection. Raises `AuthenticationFailedError`."""
        async with self._lock:
            asked_s = time.monotonic()
            if asked_s >= self._until_s:
                self._token, life_s = await self._asked()
                self._until_s = asked_s + _USED_OF_LIFE * life_s
            return self._token

    def extensions(self) -> Mapping[str, str]:
        """Return what Kafka gets beside the token."""
        return self._tokens.extensions

    async def _asked(self) -> tuple[str, float]:
        """Return a new token, and how many seconds it lives."""
        tokens = self._tokens
        form = {"grant_type": "client_credentials"} | (
            {} if tokens.scope is None else {"scope": tokens.scope}
        )
        login = {"Authorization": aiohttp.encode_basic_auth(tokens.client_id, tokens.client_secret)}
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        try:
            async with (
                aiohttp.ClientSession(headers=login, timeout=timeout) as session,
                session.post(
                    tokens.endpoint, data=form, ssl=self._context, allow_redirects=False
                ) as answer,
            ):
                body = await answer.content.read(_ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, OSError) as error:  # A timeout is an OSError, too.
            raise self._failed(str(error) or type(error).__name__) from error
        match _parsed(body):
            case {"access_token": str(token), **rest} if answer.ok:
                life_s = rest.get("expires_in", 0)
                return token, life_s if isinstance(life_s, int | float) else 0
        raise self._failed(f"it answered {answer.status} and no token")

    def _failed(self, problem: str) -> AuthenticationFailedError:
        return AuthenticationFailedError(
            f"no token from {self._tokens.endpoint}, the token endpoint: {problem}"
        )


def _parsed(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
