"""Get the tokens of OAUTHBEARER for Faust's client: from an endpoint, by the client's id and secret
(RFC 6749, section 4.4).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import Final

import aiohttp
import orjson
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError

from equipoise.brokers.load.worker.access import Tokens

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
