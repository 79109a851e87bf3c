"""The session example over real WebSockets: sessions move, and die, with brokers while their
clients talk.
"""

from __future__ import annotations

import asyncio
import uuid

import aiohttp
import pytest

from equipoise import Ownership
from equipoise.brokers.runtime.embedding.embedded import Worker
from equipoise.examples.session_client import SessionClient
from equipoise.examples.sessions import GO_ON, INVALID, LOST, Sessions

pytestmark = pytest.mark.integration

NAMESPACE = "web/chats"
DEADLINE_S = 60.0


async def closed(
    http: aiohttp.ClientSession, url: str, sent: str = "nonsense"
) -> tuple[object, str | None]:
    """Connect, send something, and return the code and the reason of the close."""
    async with http.ws_connect(url) as socket:
        await socket.send_str(sent)
        async with asyncio.timeout(DEADLINE_S):
            frame = await socket.receive()
        assert frame.type is aiohttp.WSMsgType.CLOSE
        return frame.data, frame.extra


async def test_a_client_learns_where_its_session_is_and_that_it_is_lost() -> None:
    """By the code and the reason with which a broker closes the connection, which browsers show to
    pages, too.
    """
    log = f"memory:{uuid.uuid4()}"
    path = f"/sessions/{NAMESPACE}/red?client=ann"
    async with (
        aiohttp.ClientSession() as http,
        Worker(log, Sessions(), http_port=0) as one,
        Worker(log, Sessions(), http_port=0) as two,
    ):
        await one.create_namespace(NAMESPACE)
        served = await one.route(NAMESPACE, "red")
        owner, other = (
            f"http://{each.broker_id}"
            for each in ((one, two) if isinstance(served, Ownership) else (two, one))
        )
        assert (GO_ON, owner) == await closed(http, other + path)
        for sent in ("nonsense", "[1]", "[1, 2]", '[2, "one is missing"]', "[" * 10_000):
            assert INVALID == (await closed(http, owner + path, sent))[0]
        assert LOST == (await closed(http, f"{owner}{path}&after=1"))[0]
        for query in ("", "?client=ann&after=x"):
            async with http.get(f"{owner}/sessions/{NAMESPACE}/red{query}") as answer:
                assert 400 == answer.status
        client = SessionClient([other], NAMESPACE, "red", "ann")
        client.messages.append(("ann", 1, "what a dead broker had"))
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ConnectionAbortedError, match="began anew"):
                await client.run()
            with pytest.raises(aiohttp.WSServerHandshakeError, match="404"):
                await SessionClient([other], "web/nowhere", "red", "ann").run()
