"""Outages of a real Kafka: stopped, slow, cut off, and without the leader of the partition."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from compose.local_kafka.node import Node
from equipoise.brokers.agent.requests import CreateNamespace, SetPolicy
from equipoise.brokers.balancing.namespace_policies import ON_CHANNEL_LOSS, OnChannelLoss
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import LogUnavailable, OperatorError, OutcomeUnknown, PeerError
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import BrokerRecord, NamespaceRecord, Unreadable
from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.clocks import Deadline
from tests.kafka.fixtures import OwnKafka
from tests.kafka.proxy import Direction
from tests.kafka.topics import delete_topics
from tests.repeats import times
from tests.unit.runtime.service_bench import Plain
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Answer = TypeVar("Answer")

PATIENCE_MS = 120_000
FENCING, SERVING = "shop/fencing", "shop/serving"
KEYS = [f"key-{number}" for number in range(16)]

# Short leases, so that outages outlast them, but longer than the pauses of a busy machine. The one
# Kafka of these tests has no other node to fail over to.
SHORT = {
    "lease_ms": 8_000,
    "renew_ms": 500,
    "grace_ms": 1_500,
    "round_trip_ms": 1_000,
    "reconnect_ms": 3_000,
    "failover_ms": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Brokers of one loop, each with a thread and clients of its own, on one topic."""

    workers: Sequence[Worker]
    log_url: str

    @property
    def incarnations(self) -> list[int | None]:
        """In which incarnation each lives."""
        return [worker.agent.incarnation for worker in self.workers]

    @property
    def owners(self) -> dict[str, tuple[int | None, int]]:
        """Who owns each bundle, under which token, as the first broker reads it."""
        return {
            bundle.name: (bundle.owner, bundle.token)
            for bundle in self.workers[0].view.bundles.values()
        }

    def good(self, namespace: str) -> int:
        """For how many keys of a namespace some broker may work now."""
        return sum(
            worker.ownership(namespace, key) is not None for worker in self.workers for key in KEYS
        )

    def has_leases(self) -> list[bool]:
        """Which brokers have a lease that is good."""
        return [worker.agent.lease.good(worker.clock.now()) for worker in self.workers]

    async def served(self) -> None:
        """Wait until every key is served by exactly one broker, and the first broker has read
        that.
        """

        def is_served() -> bool:
            phases = {
                bundle.phase
                for name in (FENCING, SERVING)
                for bundle in self.workers[0].view.bundles_of(name)
            }
            return [len(KEYS)] * 2 == [
                self.good(namespace) for namespace in (FENCING, SERVING)
            ] and phases == {"owned"}

        await until(is_served, "every key being served")


@asynccontextmanager
async def brokers(
    folder: Path, urls: Sequence[str], *, log_url: str, **settings: object
) -> AsyncIterator[Cluster]:
    """A broker without HTTP at each URL of one topic, and two namespaces whose bundles they
    serve.
    """
    async with AsyncExitStack() as parts:
        workers = []
        for number, url in enumerate(urls):
            config = WorkerConfig.model_validate(
                {
                    "log_url": url,
                    "data_dir": folder / f"{number}",
                    "broker_id": f"b{number}",
                    "balance": False,
                    "drain_ms": 2_000,
                    "extend_ms": 0,
                    **settings,
                }
            )
            worker = Worker(config, {"*": Plain()}, addresses={})
            parts.push_async_callback(worker.stop)
            await worker.start()
            await worker.ready(timeout_ms=PATIENCE_MS)
            workers.append(worker)
        cluster = Cluster(workers=workers, log_url=log_url)
        for namespace, choice in ((FENCING, OnChannelLoss.FENCE), (SERVING, OnChannelLoss.SERVE)):
            intent = CreateNamespace(
                name=namespace,
                boundaries=even_boundaries(4),
                policies={ON_CHANNEL_LOSS: choice.value},
            )
            await workers[0].request(intent, timeout_ms=PATIENCE_MS)
        await cluster.served()
        yield cluster


def url_of(address: str, topic: str) -> str:
    """The log in a topic, as a client at this address reaches it."""
    return f"kafka://{address}/{topic}"


# --- what is in flight ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A namespace whose creation was asked for, and what was said to that: the offset, or an
    error.
    """

    name: str
    outcome: int | PeerError


async def ask_on(worker: Worker, stop: asyncio.Event) -> list[Asked]:
    """Ask for one namespace after the other until it is enough."""
    asked: list[Asked] = []
    while not stop.is_set():
        name = f"asked-of/{worker.broker_id}-{len(asked)}"
        outcome: int | PeerError
        try:
            intent = CreateNamespace(name=name, boundaries=even_boundaries(1))
            outcome = (await worker.request(intent, timeout_ms=2_000)).offset
        except PeerError as error:
            outcome = error
        asked.append(Asked(name=name, outcome=outcome))
        await asyncio.sleep(0.02)
    return asked


@asynccontextmanager
async def asking(cluster: Cluster) -> AsyncIterator[list[Asked]]:
    """All brokers are asked for things while the body lasts; the list has the answers when it is
    over.
    """
    stop, answers = asyncio.Event(), list[Asked]()
    tasks = [asyncio.ensure_future(ask_on(worker, stop)) for worker in cluster.workers]
    try:
        yield answers
    finally:
        stop.set()
        for asked in await asyncio.gather(*tasks):
            answers += asked


def patiently(call: Callable[[], Answer], what: str) -> Answer:
    """Ask until the log answers. A Kafka that has just come back, or is busy, may need longer than
    one attempt.
    """
    deadline = Deadline.after(timeout_ms=60_000)
    while True:
        try:
            return call()
        except LogUnavailable:
            deadline.check(what)
            time.sleep(0.1)


def history(log_url: str) -> Iterator[Folded]:
    """Every record of the log, folded."""
    reader = Reader(log=log_url)
    with closing(patiently(lambda: open_log(log_url, create=False), f"opening {log_url}")) as log:
        end = patiently(log.end, f"the end of {log_url}")
        while reader.position <= end:
            read = partial(log.read, reader.position, limit=1_000)
            if not (entries := patiently(read, f"reading {log_url}")):
                break
            yield from map(reader.feed, entries)


def check_settled_once(asked: Sequence[Asked], records: Sequence[Folded]) -> None:
    """What was told is what the log says: what succeeded stands there once, what failed for certain
    does not, and nothing twice.
    """
    accepted = Counter(
        folded.record.key
        for folded in records
        if isinstance(folded.record, NamespaceRecord) and folded.verdict.accepted
    )
    at = {
        folded.record.key: folded.offset
        for folded in records
        if isinstance(folded.record, NamespaceRecord) and folded.verdict.accepted
    }
    for each in asked:
        if isinstance(each.outcome, int):
            assert (each.outcome, 1) == (at.get(each.name), accepted[each.name]), each
        elif not isinstance(each.outcome, OutcomeUnknown):
            assert 0 == accepted[each.name], each
    readable = [folded.record for folded in records if not isinstance(folded.record, Unreadable)]
    attempts = Counter(
        (record.publisher, record.incarnation, record.sequence)
        for record in readable
        if record.sequence is not None
    )
    assert [] == [attempt for attempt, times in attempts.items() if times > 1], (
        "an idempotent producer writes nothing twice"
    )


def deaths(records: Sequence[Folded]) -> list[str]:
    """Who was declared dead."""
    return [
        folded.record.key
        for folded in records
        if isinstance(folded.record, BrokerRecord)
        and folded.record.status == "down"
        and folded.verdict.accepted
    ]


@contextmanager
def nothing_lost(cluster: Cluster) -> Iterator[None]:
    """An outage by itself costs nobody anything: the same brokers own the same bundles under the
    same tokens.
    """
    owners = {
        name: held for name, held in cluster.owners.items() if name.startswith((FENCING, SERVING))
    }
    incarnations = cluster.incarnations
    yield
    assert incarnations == cluster.incarnations
    assert owners == {name: held for name, held in cluster.owners.items() if name in owners}


def play(story: Coroutine[None, None, None]) -> None:
    """Run one story, which ends."""

    async def bounded() -> None:
        async with asyncio.timeout(5 * PATIENCE_MS / 1_000):
            await story

    asyncio.run(bounded())


# --- the stories ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A way in which Kafka goes away, and the one in which it comes back."""

    name: str
    go: Callable[[Node], None]
    come_back: Callable[[Node], None]


FALLS = (
    Fall(name="killed", go=Node.kill, come_back=Node.start),
    Fall(name="hanging", go=Node.suspend, come_back=Node.resume),
)


@pytest.mark.parametrize("fall", FALLS, ids=lambda fall: fall.name)
def test_kafka_goes_away_and_comes_back(tmp_path: Path, own_kafka: OwnKafka, fall: Fall) -> None:
    """Past their leases brokers serve on only what says so; afterwards everybody has what it had,
    and each request one outcome.
    """
    url, node = url_of(own_kafka.address, own_kafka.topic(fall.name)), own_kafka.cluster.node(1)

    async def story() -> None:
        async with brokers(tmp_path, [url] * 3, log_url=url, **SHORT) as cluster:
            with nothing_lost(cluster):
                async with asking(cluster) as asked:
                    await asyncio.to_thread(fall.go, node)
                    await until(lambda: not any(cluster.has_leases()), "the end of all leases")
                    assert [0, len(KEYS)] == [
                        cluster.good(namespace) for namespace in (FENCING, SERVING)
                    ]
                    assert all(worker.channel_loss is not None for worker in cluster.workers)
                    await asyncio.to_thread(fall.come_back, node)
                    await until(lambda: all(cluster.has_leases()), "all having come back")
                    await cluster.served()
            assert any(isinstance(each.outcome, PeerError) for each in asked)
            records = await asyncio.to_thread(lambda: list(history(url)))
            check_settled_once(asked, records)
            assert [] == deaths(records)

    play(story())


@pytest.mark.slow
def test_kafka_is_slow(tmp_path: Path, own_kafka: OwnKafka) -> None:
    """Where every append takes longer than it is waited for, renewals come back all the same, and
    nobody is fenced.
    """
    topic = own_kafka.topic("slow")
    url = url_of(own_kafka.proxied_address, topic)

    async def story() -> None:
        async with brokers(
            tmp_path, [url] * 2, log_url=url_of(own_kafka.address, topic)
        ) as cluster:
            with nothing_lost(cluster):
                own_kafka.proxy.delay(400)
                lasts = [
                    worker.agent.entry.last
                    for worker in cluster.workers
                    if worker.agent.entry is not None
                ]
                async with asking(cluster) as asked:
                    await until(
                        lambda: _have_renewed(cluster, lasts, times=2),
                        "renewals through a slow Kafka",
                    )
                    # On a busy machine a renewal may be late once. Nobody is fenced for it.
                    await until(
                        lambda: [True, True] == cluster.has_leases(), "leases through a slow Kafka"
                    )
                    own_kafka.proxy.heal()
            records = await asyncio.to_thread(lambda: list(history(cluster.log_url)))
            check_settled_once(asked, records)
            assert [] == deaths(records)

    play(story())


def _have_renewed(cluster: Cluster, lasts: Sequence[int], *, times: int) -> bool:
    """Whether each broker has read back so many renewals since its entry was last changed at these
    offsets.
    """
    entries = [worker.agent.entry for worker in cluster.workers]
    return all(
        entry is not None and entry.last >= last + times
        for entry, last in zip(entries, lasts, strict=True)
    )


def test_connections_are_reset_and_answers_lost(tmp_path: Path, own_kafka: OwnKafka) -> None:
    """What was carried out and not answered, and what was cut off on its way, is on the log once or
    not at all, as it was told.
    """
    topic = own_kafka.topic("reset")
    url = url_of(own_kafka.proxied_address, topic)

    async def story() -> None:
        async with brokers(
            tmp_path, [url] * 2, log_url=url_of(own_kafka.address, topic)
        ) as cluster:
            with nothing_lost(cluster):
                async with asking(cluster) as asked:
                    for _ in range(3):
                        own_kafka.proxy.black_hole(Direction.TO_CLIENT)
                        # Longer than an append is waited for, and part of what is tried.
                        await asyncio.sleep(0.7)
                        own_kafka.proxy.reset()
                        own_kafka.proxy.heal()
                        offset = max(worker.view.offset for worker in cluster.workers)
                        for worker in cluster.workers:
                            await worker.reached(offset + 1, timeout_ms=PATIENCE_MS)
                await cluster.served()
            assert any(isinstance(each.outcome, int) for each in asked)
            records = await asyncio.to_thread(lambda: list(history(cluster.log_url)))
            check_settled_once(asked, records)
            assert [] == deaths(records)

    play(story())


def test_one_broker_is_cut_off(tmp_path: Path, own_kafka: OwnKafka) -> None:
    """It fences itself, serves on what it may, is declared dead by the other, and begins anew when
    it reads of that.
    """
    topic = own_kafka.topic("cut off")
    direct, through_proxy = (
        url_of(address, topic) for address in (own_kafka.address, own_kafka.proxied_address)
    )

    async def story() -> None:
        async with brokers(tmp_path, [direct, through_proxy], log_url=direct, **SHORT) as cluster:
            other, cut_off = cluster.workers
            former = cut_off.agent.incarnation
            mine = {namespace: _key_of(cut_off, namespace) for namespace in (FENCING, SERVING)}
            tokens = {namespace: _token(cut_off, namespace, key) for namespace, key in mine.items()}
            own_kafka.proxy.black_hole()
            await until(
                lambda: all(
                    other.ownership(namespace, key) is not None for namespace, key in mine.items()
                ),
                "a take-over",
            )
            assert None is cut_off.ownership(FENCING, mine[FENCING])
            # Both serve it now, and the store can tell which of them is out of date.
            assert (
                tokens[SERVING]
                == _token(cut_off, SERVING, mine[SERVING])
                < _token(other, SERVING, mine[SERVING])
            )
            own_kafka.proxy.heal()
            await until(
                lambda: cut_off.agent.incarnation not in (former, None), "a new incarnation"
            )
            await until(lambda: all(cluster.has_leases()), "a lease for everybody")
            assert [None, None] == [
                cut_off.ownership(namespace, key) for namespace, key in mine.items()
            ]
            await cluster.served()
            records = await asyncio.to_thread(lambda: list(history(direct)))
            check_settled_once([], records)
            assert ["b1"] == deaths(records)

    play(story())


def _key_of(worker: Worker, namespace: str) -> str:
    """A key that a broker owns."""
    return next(key for key in KEYS if worker.ownership(namespace, key) is not None)


def _token(worker: Worker, namespace: str, key: str) -> int:
    """The token under which a broker serves a key."""
    ownership = worker.ownership(namespace, key)
    assert ownership is not None
    return ownership.token


@pytest.mark.slow
def test_a_kafka_that_came_back_without_its_end_is_refused(
    tmp_path: Path, own_kafka: OwnKafka
) -> None:
    """A broker that crashed does not start on an older copy of its Kafka, however often it tries;
    nor without its topic.
    """
    topic, node = own_kafka.topic("older"), own_kafka.cluster.node(1)
    url = url_of(own_kafka.address, topic)
    goes_back = r"does not go on from offset .*: "

    async def story() -> None:
        async with brokers(tmp_path / "brokers", [url], log_url=url, **SHORT) as cluster:
            await asyncio.to_thread(node.stop)
            await asyncio.to_thread(shutil.copytree, node.data, tmp_path / "copy")
            await asyncio.to_thread(node.start)
            (worker,) = cluster.workers
            copied = worker.view.offset
            await until(
                lambda: _noted(worker.config.data_dir) > copied + 3,
                "a note of records that the copy lacks",
            )
            await worker.abort()
        await asyncio.to_thread(node.kill)
        shutil.rmtree(node.data)
        shutil.move(tmp_path / "copy", node.data)
        await asyncio.to_thread(node.start)
        for _ in range(2):
            assert re.search(goes_back + r"it ends at offset", await _refusal(worker))
        await asyncio.to_thread(delete_topics, own_kafka.address, [topic])
        # The node may show a topic for a while after its controller has deleted it.
        refusal = await _refusal(worker, before="it ends at offset")
        assert re.search(goes_back + r"there is no topic", refusal)

    play(story())


def _noted(directory: Path) -> int:
    """The highest offset that a data directory notes as read."""
    return max(
        map(int, re.findall(rb" (\d+) \d+ [0-9a-f]{8}\n", (directory / "mark").read_bytes())),
        default=0,
    )


async def _refusal(worker: Worker, *, before: str | None = None) -> str:
    """Start a broker with the settings and the data directory of one that has ended, until Kafka
    answers and no longer says what it said `before`. Return the refusal.
    """
    deadline = Deadline.after(timeout_ms=PATIENCE_MS)
    while True:
        try:
            await _start_again(worker)
        except LogUnavailable:
            # On a busy machine the controller of a Kafka that has just come back takes its time.
            deadline.check("an answer of Kafka")
        except OperatorError as error:
            if before is None or before not in str(error):
                return str(error)
            deadline.check(f"no longer {before}")
        else:
            pytest.fail("the broker has started")
        await asyncio.sleep(0.1)


async def _start_again(worker: Worker) -> None:
    """Start a broker with the settings and the data directory of one that has ended."""
    again = Worker(worker.config, {"*": Plain()}, addresses={})
    try:
        await again.start()
        await again.ready(timeout_ms=PATIENCE_MS)
    finally:
        await again.stop()


@asynccontextmanager
async def peers(
    folder: Path, log_url: str, *, count: int, **settings: object
) -> AsyncIterator[list[Worker]]:
    """Brokers as they are on Kafka by default: they reach each other over HTTP, and outlast their
    leases. They serve one namespace.
    """
    async with AsyncExitStack() as parts:
        workers = []
        for number in range(count):
            config = WorkerConfig.model_validate(
                {
                    "log_url": log_url,
                    "data_dir": folder / f"{number}",
                    "broker_id": f"b{number}",
                    "http_port": 0,
                    "check_address": False,
                    "balance": False,
                    "drain_ms": 2_000,
                    **settings,
                }
            )
            worker = await parts.enter_async_context(Broker(config, {"*": Plain()}))
            await worker.ready(timeout_ms=PATIENCE_MS)
            workers.append(worker)
        intent = CreateNamespace(name=FENCING, boundaries=even_boundaries(4))
        await workers[0].request(intent, timeout_ms=PATIENCE_MS)
        cluster = Cluster(workers=workers, log_url=log_url)
        await until(lambda: cluster.good(FENCING) == len(KEYS), "every key being served")
        yield workers


LOSSES = {
    "killed": (Node.kill, Node.start, {}),
    "hanging": (Node.suspend, Node.resume, {}),
    # The default of 15 s leaves clients of a busy machine little time to find the new leader.
    "killed, long leases": (
        Node.kill,
        Node.start,
        {"extend_ms": 0, "lease_ms": 30_000, "grace_ms": 1_500},
    ),
}


@pytest.mark.parametrize(("go", "come_back", "settings"), LOSSES.values(), ids=LOSSES)
def test_the_partitions_leader_goes_away(
    tmp_path: Path,
    three_kafkas: OwnKafka,
    go: Callable[[Node], None],
    come_back: Callable[[Node], None],
    settings: Mapping[str, object],
) -> None:
    """Nobody is even fenced: brokers outlast the session and the election by assurances, or by
    leases that are long enough.
    """
    topic = three_kafkas.topic("leader")
    url = f"{url_of(three_kafkas.address, topic)}?replication=3"

    async def story() -> None:
        async with peers(tmp_path, url, count=3, **settings) as workers:
            cluster = Cluster(workers=workers, log_url=url)
            await asyncio.sleep(2)
            incarnations, fenced = cluster.incarnations, list[bool]()
            leader = await asyncio.to_thread(three_kafkas.leader_of, topic)
            outlasted = list[bool]()
            async with _watching(cluster, fenced), _noting(workers, outlasted):
                await asyncio.to_thread(go, leader)
                await asyncio.to_thread(lambda: three_kafkas.leader_of(topic, other_than=leader))
                lasts = [worker.agent.entry.last for worker in workers if worker.agent.entry]
                await until(
                    lambda: _have_renewed(cluster, lasts, times=3), "renewals at the new leader"
                )
            assert (not settings, []) == (any(outlasted), fenced)
            assert incarnations == cluster.incarnations
            await asyncio.to_thread(come_back, leader)
            records = await asyncio.to_thread(lambda: list(history(url)))
            assert [] == deaths(records)

    play(story())


@asynccontextmanager
async def _noting(workers: Sequence[Worker], outlasted: list[bool]) -> AsyncIterator[None]:
    """Note each moment at which some broker serves past its lease."""

    async def watch() -> None:
        while True:
            outlasted.extend(
                True for worker in workers if not worker.agent.lease.holds(worker.clock.now())
            )
            await asyncio.sleep(0.02)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()


@pytest.mark.parametrize("is_away", [False, True], ids=["with the log", "in an outage"])
def test_a_death_is_noticed_after_a_lease(
    tmp_path: Path, own_kafka: OwnKafka, *, is_away: bool
) -> None:
    """As is one in an outage of the log, when that is over. The others stop in between, since the
    dead assures nobody. They are as on different machines: none sees the end of the other.
    """
    topic, node = own_kafka.topic("death"), own_kafka.cluster.node(1)
    url = url_of(own_kafka.address, topic)

    async def story() -> None:
        async with peers(tmp_path, url, count=3, prove_deaths=False) as workers:
            await asyncio.sleep(2)
            *others, dead = workers
            alive = Cluster(workers=others, log_url=url)
            if is_away:
                await asyncio.to_thread(node.suspend)
                await until(
                    lambda: all(
                        lease.good(now) and not lease.holds(now)
                        for lease, now in (
                            (worker.agent.lease, worker.clock.now()) for worker in workers
                        )
                    ),
                    "all outlasting their leases",
                )
            await dead.abort()
            if is_away:
                await until(lambda: not any(alive.has_leases()), "the others being fenced")
                await asyncio.to_thread(node.resume)
            began = time.monotonic()
            await until(lambda: alive.good(FENCING) == len(KEYS), "a take-over")
            took_s = time.monotonic() - began
            logging.getLogger(__name__).info("taken over after %.1f s", took_s)
            assert took_s >= 1.5
            records = await asyncio.to_thread(lambda: list(history(url)))
            assert ["b2"] == deaths(records)

    play(story())


@pytest.mark.soak
@pytest.mark.repeats
def test_the_partitions_leader_is_deposed(tmp_path: Path, three_kafkas: OwnKafka) -> None:
    """A leader that is cut off from the other nodes, and not from the brokers, ends below what they
    have read. No broker ends.
    """
    topic = three_kafkas.topic("deposed")
    url = f"{url_of(three_kafkas.address, topic)}?replication=3"

    async def story() -> None:
        async with brokers(tmp_path, [url] * 3, log_url=url) as cluster:
            async with asking(cluster) as asked:
                for number in range(times(1, many=10)):
                    deposed = await asyncio.to_thread(three_kafkas.leader_of, topic)
                    three_kafkas.links.isolate(deposed)
                    await asyncio.to_thread(
                        partial(three_kafkas.leader_of, topic, other_than=deposed)
                    )
                    for worker in cluster.workers:
                        await _insist(
                            worker,
                            SetPolicy(
                                name=SERVING,
                                policy=worker.broker_id,
                                value=f"after election {number}",
                            ),
                        )
                    await until(lambda: all(cluster.has_leases()), "a lease for everybody")
                    deposed_url = url_of(three_kafkas.address.split(",")[deposed.number - 1], topic)
                    await asyncio.to_thread(
                        _read_at, deposed_url, cluster.workers[0].view.offset + 1
                    )
                    three_kafkas.links.rejoin()
                    await cluster.served()
            records = await asyncio.to_thread(lambda: list(history(url)))
            check_settled_once(asked, records)

    play(story())


def _read_at(url: str, position: int) -> None:
    """Read as one who begins at the leader that was deposed. That may be an outage, but the log
    never ends below the position.
    """
    with closing(patiently(lambda: open_log(url, create=False), f"opening {url}")) as log:
        for _ in range(3):
            with suppress(LogUnavailable):
                log.read(position, limit=1)
                assert log.end() >= position - 1


@asynccontextmanager
async def _watching(cluster: Cluster, fenced: list[bool]) -> AsyncIterator[None]:
    """Note each moment at which some broker has no lease."""

    async def watch() -> None:
        while True:
            if not all(cluster.has_leases()):
                fenced.append(True)
            await asyncio.sleep(0.02)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()


async def _insist(worker: Worker, intent: SetPolicy) -> None:
    """Have something done as soon as the log takes it."""
    deadline = Deadline.after(timeout_ms=PATIENCE_MS)
    while True:
        try:
            await worker.request(intent, timeout_ms=5_000)
        except PeerError:
            deadline.check("a record after the election")
            await asyncio.sleep(0.1)
        else:
            return
