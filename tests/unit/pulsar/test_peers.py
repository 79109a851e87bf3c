"""What other brokers are asked, and how often.

May live here: `brokers.pulsar.peers` against a stand-in for a broker's HTTP.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from brokers.pulsar.errors import NotServed
from brokers.pulsar.peers import Peers
from brokers.worker import Worker
from tests.unit.http.cluster import run, until


class StandIn:
    """A broker that answers with the topics that it has once its gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.topics: list[str] = []
        self.asked = 0
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        """Topics as they were when the question came."""
        self.asked += 1
        topics = list(self.topics)
        assert "true" == request.query["local"]
        await self.gate.wait()
        return web.json_response(topics, status=self.status)


@asynccontextmanager
async def asking(stand_in: StandIn) -> AsyncIterator[Peers]:
    """A broker that knows of the stand-in, and of itself."""
    app = web.Application()
    app.router.add_get("/admin/v2/non-persistent/t/n", stand_in.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await web.SockSite(runner, listening).start()
        addresses = {"http": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        live = {
            number: SimpleNamespace(broker=broker, joined=SimpleNamespace(addresses=addresses))
            for number, broker in ((1, "me"), (2, "other"))
        }
        view = SimpleNamespace(bundles_of=lambda _: [SimpleNamespace(server=server) for server in (1, 2, 2, None)], live=live)
        peers = Peers(cast("Worker", SimpleNamespace(view=view, broker_id="me")), timeout_ms=20_000)
        async with peers.asking():
            yield peers
        await runner.cleanup()


def test_many_who_ask_at_once_share_an_answer_that_is_not_older_than_their_question() -> None:
    """A question under way is left to who asked it; all who come meanwhile share the next, and see what was made before."""

    async def story() -> None:
        stand_in = StandIn()
        async with asking(stand_in) as peers:
            first = asyncio.ensure_future(peers.topics_of("t/n"))
            await until(lambda: stand_in.asked == 1)
            stand_in.topics.append("new")
            others = [asyncio.ensure_future(peers.topics_of("t/n")) for _ in range(20)]
            others[0].cancel()
            stand_in.gate.set()
            assert [] == await first
            assert [["new"]] * 19 == await asyncio.gather(*others[1:])
            assert 2 == stand_in.asked
            assert ["new"] == await peers.topics_of("t/n")
            assert 3 == stand_in.asked

    run(story)


def test_a_broker_that_does_not_answer_well_is_named() -> None:
    """Its status is told to all who share the answer, and the next question is asked anew."""

    async def story() -> None:
        stand_in = StandIn()
        stand_in.gate.set()
        stand_in.status = 503
        async with asking(stand_in) as peers:
            for _ in range(2):
                with pytest.raises(NotServed, match="broker other does not answer for its topics: it answers 503"):
                    await peers.topics_of("t/n")
            assert 2 == stand_in.asked

    run(story)
