"""The tokens of OAUTHBEARER, from an endpoint of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiokafka.errors import AuthenticationFailedError

from equipoise.brokers.load.worker.access import TokenProvider, Tokens

SECRET = "a secret"  # noqa: S105 - not a real one


@dataclass
class Endpoint:
    """What was asked, and what is answered."""

    answer: object
    status: int = 200
    asked: list[tuple[str | None, dict[str, object]]] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        self.asked.append((request.headers.get("Authorization"), dict(await request.post())))
        return web.json_response(self.answer, status=self.status)

    def tokens(self, **others: object) -> Tokens:
        """How a client gets tokens here."""
        usual: dict[str, object] = {
            "endpoint": self.url,
            "client_id": "worker",
            "client_secret": SECRET,
            "scope": None,
            "extensions": {},
            "authorities": None,
        }
        return Tokens(**{**usual, **others})  # type: ignore[arg-type]


@asynccontextmanager
async def serving(endpoint: Endpoint) -> AsyncIterator[Endpoint]:
    app = web.Application()
    app.router.add_post("/token", endpoint.take)
    async with TestServer(app) as server:
        endpoint.url = str(server.make_url("/token"))
        yield endpoint


async def test_a_token_is_kept_while_it_lives() -> None:
    async with serving(Endpoint({"access_token": "t", "expires_in": 3600})) as endpoint:
        provider = TokenProvider(endpoint.tokens(scope="kafka", extensions={"a": "1"}))
        assert ["t", "t"] == [await provider.token(), await provider.token()]
        login = aiohttp.encode_basic_auth("worker", SECRET)
        assert [(login, {"grant_type": "client_credentials", "scope": "kafka"})] == endpoint.asked
        assert {"a": "1"} == provider.extensions()


@pytest.mark.parametrize("life", [{}, {"expires_in": 0}, {"expires_in": "soon"}])
async def test_a_token_of_unknown_life_is_used_once(life: dict[str, object]) -> None:
    async with serving(Endpoint({"access_token": "t", **life})) as endpoint:
        provider = TokenProvider(endpoint.tokens())
        assert ["t", "t"] == [await provider.token(), await provider.token()]
        assert [{"grant_type": "client_credentials"}] * 2 == [form for _, form in endpoint.asked]


@pytest.mark.parametrize(
    ("answer", "status"),
    [({"error": "no"}, 401), ({"access_token": "t"}, 500), ({"access_token": 1}, 200), ([], 200)],
)
async def test_an_endpoint_without_a_token_is_named(answer: object, status: int) -> None:
    async with serving(Endpoint(answer, status)) as endpoint:
        with pytest.raises(
            AuthenticationFailedError,
            match=f"{endpoint.url}, the token endpoint: it answered {status} and no token",
        ) as caught:
            await TokenProvider(endpoint.tokens()).token()
        assert SECRET not in str(caught.value)


async def test_an_endpoint_that_is_away_is_named() -> None:
    tokens = Endpoint(None, url="http://127.0.0.1:1/token").tokens()
    with pytest.raises(
        AuthenticationFailedError,
        match=r"http://127\.0\.0\.1:1/token, the token endpoint: .*refused|[Cc]onnect",
    ):
        await TokenProvider(tokens).token()
