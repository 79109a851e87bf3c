"""Look topics up while bundles move, split and merge: no answer names a broker that the view no
longer names.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.brokers.balancing.named import server_of
from equipoise.brokers.http.lookup import Lookup
from equipoise.brokers.pulsar.server import Server
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.runtime.worker import Lookups
from equipoise.channel.core.ranges import parse_topic, topic_hash
from tests.unit.pulsar.wire_client import NAMESPACE, Brokers, Member, brokers

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
TOPICS = tuple(f"non-persistent://{NAMESPACE}/topic-{number}" for number in range(2))

changes = st.lists(
    st.tuples(
        st.sampled_from(["transfer", "transfer", "unload", "split", "merge"]),
        st.integers(0, 7),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


class Asker:
    """The lookups of one broker, over both protocols, each checked in the step of the loop in which
    it is answered.
    """

    def __init__(self, member: Member) -> None:
        lookups = Lookups(member.worker)
        self._member = member
        self._http = Lookup(member.worker, lookups)
        self._server = Server(member.service, member.worker, lookups)
        self.answers = 0

    async def ask(self, topic: str) -> None:
        """Look a topic up by each way that names a broker."""
        response = await self._http.lookup(
            make_mocked_request("GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")
        )
        assert isinstance(response.body, bytes)
        self._check(topic, json.loads(response.body)["brokerUrl"])
        self._check(topic, await self._server.directory.locate(parse_topic(topic)))
        routed = await self._member.worker.route(NAMESPACE, topic, timeout_ms=20_000)
        self._check(
            topic, routed.addresses["pulsar"] if isinstance(routed, Peer) else self._member.url
        )

    def _check(self, topic: str, url: str) -> None:
        view = self._member.worker.view
        bundle = view.bundle_at(NAMESPACE, topic_hash(topic))
        assert bundle is not None
        server = server_of(view, bundle)
        assert server is not None, f"{topic}: {url}, but {bundle} has no broker"
        assert server.joined.addresses["pulsar"] == url, f"{topic}: {bundle}"
        self.answers += 1


class Running:
    """A loop with a cluster of two brokers, which runs only while it is used."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._context = self._brokers(folder)
        self._runner.run(self._context.__aenter__())

    @asynccontextmanager
    async def _brokers(self, folder: Path) -> AsyncIterator[None]:
        async with brokers(folder, count=2, bundles=2) as running:
            self._running: Brokers = running
            self.askers = [Asker(member) for member in running.members]
            yield

    def close(self) -> None:
        """End the brokers and the loop."""
        self._runner.run(self._context.__aexit__(None, None, None))
        self._runner.close()

    def ask_during(self, changes: Sequence[tuple[str, int, bool]]) -> None:
        """Make changes, and look topics up at both brokers until the last one is done. Fails with
        the first wrong answer.
        """
        self._runner.run(asyncio.wait_for(self._ask_during(changes), DEADLINE_S))

    async def _ask_during(self, changes: Sequence[tuple[str, int, bool]]) -> None:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for asker in self.askers:
                for topic in TOPICS:
                    tasks.create_task(self._ask(asker, topic, over))
            for change in changes:
                await self._change(*change)
            await self._running.settled()
            over.set()

    async def _ask(self, asker: Asker, topic: str, over: asyncio.Event) -> None:
        while not over.is_set():
            await asker.ask(topic)
            await asyncio.sleep(0)

    async def _change(self, kind: str, place: int, is_first: bool) -> None:
        """Ask for one change. One that is impossible now is refused."""
        first, second = self._running.members
        bundles = first.worker.view.bundles_of(NAMESPACE)
        path = f"/admin/v2/namespaces/{bundles[place % len(bundles)].name}"
        to = (first if is_first else second).worker.broker_id
        verb = {
            "transfer": f"unload?destinationBroker={to}",
            "unload": "unload",
            "split": "split",
            "merge": "merge",
        }[kind]
        if kind != "split" or len(bundles) < 4:
            await second.ask("PUT", f"{path}/{verb}")


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder))
        yield running
        running.close()


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=changes)
def test_no_answer_names_a_broker_that_the_view_no_longer_names(
    running: Running, changes: list[tuple[str, int, bool]]
) -> None:
    running.ask_during(changes)
    assert all(asker.answers for asker in running.askers)
