"""Test the questions to other brokers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from equipoise.brokers.pulsar.hosting import Hosting
from equipoise.brokers.pulsar.peers import Listing, Peers, are_whole
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.own_token import NO_TOKEN
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.ranges import HASH_MAX, bundle_name
from tests.unit.http.cluster import until

HERE, THERE = bundle_name("t/n", 0, 1 << 31), bundle_name("t/n", 1 << 31, HASH_MAX)


class StandIn:
    """A broker that answers with its bundles and topics once its gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.bundles: object = [THERE]
        self.topics: list[str] = []
        self.asked = 0
        self.status = 200
        self.looks = 0
        self.placed = [
            SimpleNamespace(name=name, server=server)
            for name, server in ((HERE, 1), (THERE, 2), ("t/n/gone", 2))
        ]

    def bundles_of(self, _: str) -> Sequence[SimpleNamespace]:
        """Return the bundles of the namespace as the other broker sees them now."""
        self.looks += 1
        return self.placed

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the bundles and topics at the time of the question."""
        self.asked += 1
        document = {"bundles": self.bundles, "topics": list(self.topics)}
        assert "true" == request.query["local"]
        await self.gate.wait()
        return web.json_response(document, status=self.status)


@asynccontextmanager
async def asking(
    stand_in: StandIn, *, moving_ms: int = 20_000, open_here: str = HERE, program: str | None = None
) -> AsyncIterator[Peers]:
    """Run a broker beside the stand-in, with a bundle of its own. `program` is the address of the
    stand-in's program.
    """
    app = web.Application()
    app.router.add_get("/admin/v2/non-persistent/t/n", stand_in.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await web.SockSite(runner, listening).start()
        own = f"http://127.0.0.1:{listening.getsockname()[1]}"
        addresses = {"http": own} if program is None else {"http": program, "peer": own}
        live = {
            number: SimpleNamespace(broker=broker, joined=SimpleNamespace(addresses=addresses))
            for number, broker in ((1, "me"), (2, "other"))
        }
        view = SimpleNamespace(bundles_of=stand_in.bundles_of, live=live)
        worker = SimpleNamespace(
            view=view,
            broker_id="me",
            access=SimpleNamespace(own_token=NO_TOKEN, certificates=SimpleNamespace(client=True)),
            open_bundles=["t/other/0x00000000_0xffffffff", open_here],
        )
        hosting = Hosting(Settings(), limits=lambda _: TopicLimits(), tenant_topics_max=lambda: 1)
        peers = Peers(cast("Worker", worker), hosting, timeout_ms=20_000, moving_ms=moving_ms)
        async with peers.asking():
            yield peers
        await runner.cleanup()


async def test_concurrent_questions_share_an_answer_newer_than_themselves() -> None:
    """Callers that come while a question runs share the next one."""
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


async def test_a_broker_inside_a_program_is_asked_at_its_own_address() -> None:
    """The program's address has none of a broker's paths."""
    stand_in = StandIn()
    stand_in.gate.set()
    stand_in.topics = ["a"]
    async with asking(stand_in, program="http://127.0.0.1:1") as peers:
        assert ["a"] == await peers.topics_of("t/n")


async def test_a_broker_that_answers_with_an_error_is_named() -> None:
    """The next question asks it again."""
    stand_in = StandIn()
    stand_in.gate.set()
    stand_in.status = 503
    async with asking(stand_in) as peers:
        for _ in range(2):
            with pytest.raises(
                PeerError, match="broker other does not answer for its topics: it answers 503"
            ):
                await peers.topics_of("t/n")
        assert 2 == stand_in.asked


async def test_the_question_is_repeated_while_a_bundle_is_missing() -> None:
    stand_in = StandIn()
    stand_in.gate.set()
    stand_in.bundles = []
    async with asking(stand_in) as peers:
        asked = asyncio.ensure_future(peers.topics_of("t/n"))
        await until(lambda: stand_in.asked >= 2)
        assert not asked.done()
        stand_in.topics.append("moved")
        stand_in.bundles = [THERE]
        assert ["moved"] == await asked


async def test_the_question_fails_if_a_bundle_stays_missing() -> None:
    stand_in = StandIn()
    stand_in.gate.set()
    async with asking(stand_in, moving_ms=50, open_here=bundle_name("t/n", 0, 7)) as peers:
        with pytest.raises(PeerError, match="a bundle of namespace t/n had no broker for 50 ms"):
            await peers.topics_of("t/n")


PATH = "/admin/v2/non-persistent/t/n"


@pytest.mark.parametrize("server", [None, 7])
async def test_all_are_asked_once_each_bundle_has_a_live_broker(server: int | None) -> None:
    """A change that goes round while a bundle moves would miss its topics."""
    stand_in = StandIn()
    stand_in.gate.set()
    stand_in.placed[1].server = server
    async with asking(stand_in) as peers:
        asked = asyncio.ensure_future(peers.ask_all("t/n", PATH))
        await until(lambda: stand_in.looks >= 3)
        assert (False, 0) == (asked.done(), stand_in.asked)
        stand_in.placed[1].server = 2
        assert 1 == len(await asked)


async def test_all_are_asked_again_if_a_bundle_moved_meanwhile() -> None:
    stand_in = StandIn()
    async with asking(stand_in) as peers:
        asked = asyncio.ensure_future(peers.ask_all("t/n", PATH))
        await until(lambda: stand_in.asked == 1)
        stand_in.placed = [SimpleNamespace(name=HERE, server=2), *stand_in.placed[1:]]
        stand_in.gate.set()
        await asked
        assert 2 == stand_in.asked


async def test_nobody_is_asked_if_a_bundle_has_no_broker_for_long() -> None:
    stand_in = StandIn()
    stand_in.placed[1].server = None
    async with asking(stand_in, moving_ms=50) as peers:
        with pytest.raises(
            PeerError, match="a bundle of namespace t/n had no broker for 50 ms; ask again"
        ):
            await peers.ask_all("t/n", PATH)
        assert 0 == stand_in.asked


@pytest.mark.parametrize("bundles", [None, 7, ["no bundle"]])
async def test_an_answer_that_is_not_a_listing_is_refused(bundles: object) -> None:
    stand_in = StandIn()
    stand_in.gate.set()
    stand_in.bundles = bundles
    async with asking(stand_in) as peers:
        with pytest.raises(PeerError, match="is not a list of topics"):
            await peers.topics_of("t/n")


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [
        ([(0, HASH_MAX)], True),
        ([(0, 9), (9, HASH_MAX)], True),
        ([(0, 9), (4, 7), (7, HASH_MAX), (9, HASH_MAX)], True),  # A split or a move was under way.
        ([(0, 9), (10, HASH_MAX)], False),
        ([(1, HASH_MAX)], False),
        ([(0, 9), (9, HASH_MAX - 1)], False),
        ([], False),
    ],
)
def test_listings_are_whole_if_no_point_is_missing(
    cuts: list[tuple[int, int]], expected: bool
) -> None:
    listings = [
        Listing(bundles=[bundle_name("t/n", low, high)], topics=()) for low, high in reversed(cuts)
    ]
    assert expected == are_whole(listings)
