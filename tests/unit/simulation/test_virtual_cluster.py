"""The cluster in virtual time: what a user's test may do with it, and its errors. See also
tests/examples/test_visits.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from equipoise.brokers.errors import Rejected, UnknownNamespace
from equipoise.brokers.runtime.service import Bundle, Ownership, OwnershipLost, Peer, Service
from equipoise.brokers.testing.virtual_cluster import Cluster
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    InvalidName,
    NotFound,
    PeerError,
)
from equipoise.channel.system.clocks import Deadline

NAMESPACE = "shop/orders"
FAILOVER_MS = 4_000


@dataclass(eq=False)
class Diary(Service):
    """A service that notes its calls, and that refuses, fails or hangs on request."""

    calls: list[str] = field(default_factory=list)
    refuses: bool = False
    fails: bool = False
    hangs: bool = False
    slow: threading.Event | None = None

    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
        self.calls.append(f"prepare, from {source.broker if source else 'nobody'}")
        if self.refuses:
            raise RuntimeError("no room here")
        if self.slow is not None:
            await asyncio.to_thread(self.slow.wait, 30)

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        fetched = None if ownership.fetch is None else await ownership.fetch()
        self.calls.append(f"open with {handover!r} and {fetched!r}")
        if self.fails:
            raise RuntimeError("cannot open")

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        self.calls.append(f"close, to {moved_to.broker if moved_to else 'nobody'}")
        if self.hangs:
            await asyncio.Event().wait()
        return b"state"

    async def fetch(self, bundle: Bundle, token: int) -> bytes | None:
        return b"much state"

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        self.calls.append(f"split into {len(children)}")

    def merge(self, left: Bundle, right: Bundle, union: Ownership) -> None:
        self.calls.append("merge")


@pytest.fixture
def cluster() -> Iterator[Cluster[Diary]]:
    """Two brokers, and a namespace of one bundle, which the first broker serves."""
    with Cluster(Diary, brokers=("a", "b"), patience_ms=200, serves_peers=True) as cluster:
        cluster.create(NAMESPACE, bundles=1)
        assert cluster.owner(whole(cluster)) == "a"
        yield cluster


def whole(cluster: Cluster[Diary]) -> str:
    (bundle,) = cluster.bundles(NAMESPACE)
    return bundle


def test_the_end_of_a_cluster_ends_tasks_that_start_meanwhile() -> None:
    started = list[asyncio.Task[None]]()

    async def last_words() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            started.append(asyncio.create_task(asyncio.sleep(3_600)))

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(last_words())

    with Cluster(Diary, brokers=1, serves_peers=True) as cluster:
        task = cluster.call(begin())
    assert task.cancelled()
    assert [each.cancelled() for each in started] == [True]


def test_a_bundle_is_given_with_its_state(cluster: Cluster[Diary]) -> None:
    """A transfer calls both services: prepare, close, open with the handover, fetch the rest from
    the source.
    """
    cluster.give(whole(cluster), "b")
    assert cluster.owner(whole(cluster)) == "b"
    assert ["prepare, from nobody", "open with None and None", "close, to b"] == cluster.service(
        "a"
    ).calls
    assert ["prepare, from a", "open with b'state' and b'much state'"] == cluster.service("b").calls


def test_state_that_production_could_not_fetch_is_refused() -> None:
    """Like a worker without peers, the cluster refuses a service with `fetch`. The message says how
    to test one.
    """
    with (
        pytest.raises(CallerError, match=r"'Diary' cannot be used: .*serves_peers=True") as refused,
        Cluster(Diary),
    ):
        pass
    assert "MODULE:CLASS" not in str(refused.value), "the name of the service is right"


class Keeps(Service):
    """A service whose state is too large for a record. It notes what it gets, or why it gets
    nothing.
    """

    def __init__(self) -> None:
        self.came: list[tuple[int, str | None]] = []

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.came.append((len(handover or b""), ownership.handover_problem))

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        return b"x" * 20_000


def test_large_state_moves_as_it_would_in_production() -> None:
    """The next owner fetches it from the source, or learns why it cannot."""
    for serves_peers in (True, False):
        with Cluster(Keeps, brokers=("a", "b"), serves_peers=serves_peers) as cluster:
            cluster.create(NAMESPACE, bundles=1)
            (bundle,) = cluster.bundles(NAMESPACE)
            cluster.give(bundle, "b")
            ((size, problem),) = cluster.service("b").came
            assert (
                (20_000, None) == (size, problem)
                if serves_peers
                else (size, "no address to fetch it from" in (problem or "")) == (0, True)
            )


class Streams(Keeps):
    """A service whose state streams."""

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.came.append(
            (sum([len(chunk) async for chunk in ownership.stream()]), ownership.handover_problem)
        )

    async def fetch(self, bundle: Bundle, token: int) -> AsyncIterator[bytes]:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 100

        return chunks()


def test_state_streams_as_it_would_in_production() -> None:
    """Nothing streams when nobody owned the bundle before."""
    with Cluster(Streams, brokers=("a", "b"), serves_peers=True) as cluster:
        cluster.create(NAMESPACE, bundles=1)
        (bundle,) = cluster.bundles(NAMESPACE)
        cluster.give(bundle, "b")
        assert ([(0, None)], [(300, None)]) == (
            cluster.service("a").came,
            cluster.service("b").came,
        )


def test_a_bundle_that_is_taken_stays_with_nobody(cluster: Cluster[Diary]) -> None:
    """Only giving it brings it back, under a greater token, however much time passes."""
    before = cluster.ownership(NAMESPACE, "key")
    cluster.take(whole(cluster))
    cluster.advance(60_000)
    assert cluster.owner(whole(cluster)) is None
    with pytest.raises(PeerError, match="it is free, served by nobody"):
        cluster.ownership(NAMESPACE, "key")
    with pytest.raises(OwnershipLost):
        before.begin("key")
    cluster.give(whole(cluster), "a")
    assert cluster.ownership(NAMESPACE, "key").token > before.token


def test_a_dead_broker_s_bundles_are_served_again_after_its_lease(cluster: Cluster[Diary]) -> None:
    """No other broker serves until the lease of a killed broker has run out. Soon after that one
    does.
    """
    cluster.kill("a")
    cluster.advance(2_500)
    with pytest.raises(PeerError, match="is not served by any broker"):
        cluster.ownership(NAMESPACE, "key")
    cluster.advance(FAILOVER_MS - 2_500)
    assert cluster.owner(whole(cluster)) == "b"
    assert ["b"] == cluster.brokers


def test_splits_and_merges_reach_the_service(cluster: Cluster[Diary]) -> None:
    """A bundle is split in the middle or at given positions, and two neighbours of one owner are
    merged.
    """
    cluster.split(whole(cluster))
    left, right = cluster.bundles(NAMESPACE)
    cluster.merge(left)
    cluster.split(whole(cluster), algorithm="specified_positions_divide", positions=(7, 9))
    assert (f"{NAMESPACE}/0x00000000_0x7fffffff", f"{NAMESPACE}/0x7fffffff_0xffffffff") == (
        left,
        right,
    )
    assert 3 == len(cluster.bundles(NAMESPACE))
    assert ["split into 2", "merge", "split into 3"] == cluster.service("a").calls[2:]


def test_a_refusal_of_the_service_is_an_error_with_its_reason(cluster: Cluster[Diary]) -> None:
    cluster.service("b").refuses = True
    with pytest.raises(PeerError, match=r"not served by b.*served by a.*no room here"):
        cluster.give(whole(cluster), "b")
    cluster.take(whole(cluster))
    cluster.advance(1_000)  # A broker that has refused is not asked again at once.
    with pytest.raises(PeerError, match=r"not served by b.*served by nobody.*no room here"):
        cluster.give(whole(cluster), "b")


def test_a_failed_opening_is_an_error_with_its_reason(cluster: Cluster[Diary]) -> None:
    cluster.service("b").fails = True
    with pytest.raises(PeerError, match="cannot open"):
        cluster.give(whole(cluster), "b")


def test_a_bundle_without_an_owner_cannot_be_taken(cluster: Cluster[Diary]) -> None:
    cluster.take(whole(cluster))
    with pytest.raises(Rejected, match="free"):
        cluster.take(whole(cluster))


UNKNOWN: dict[str, Callable[[Cluster[Diary]], object]] = {
    "service": lambda cluster: cluster.service("nobody"),
    "host": lambda cluster: cluster.host("nobody"),
    "kill": lambda cluster: cluster.kill("nobody"),
    "give to nobody": lambda cluster: cluster.give(whole(cluster), "nobody"),
    "owner": lambda cluster: cluster.owner("nothing"),
    "give": lambda cluster: cluster.give("nothing", "a"),
    "take": lambda cluster: cluster.take("nothing"),
    "split": lambda cluster: cluster.split("nothing"),
    "merge": lambda cluster: cluster.merge("nothing"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_name_is_an_error_with_the_known_ones(
    case: str, cluster: Cluster[Diary]
) -> None:
    with pytest.raises(
        NotFound, match=r"'(nobody|nothing)'; it has (a, b|shop/orders/0x00000000_0xffffffff)$"
    ):
        UNKNOWN[case](cluster)


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Cluster[Diary]], object]]] = {
    "bundles of an unknown namespace": (
        UnknownNamespace,
        "shop/returns",
        lambda cluster: cluster.bundles("shop/returns"),
    ),
    "a key of an unknown namespace": (
        UnknownNamespace,
        "shop/returns",
        lambda cluster: cluster.ownership("shop/returns", "key"),
    ),
    "a namespace that exists": (Rejected, "exists", lambda cluster: cluster.create(NAMESPACE)),
    "an impossible namespace": (
        InvalidName,
        "nonsense",
        lambda cluster: cluster.create("nonsense"),
    ),
    "too many bundles": (
        CallerError,
        "1 to 4096 bundles, not 4097",
        lambda cluster: cluster.create("shop/returns", bundles=4_097),
    ),
    "a broker that runs": (CallerError, "'a' runs already", lambda cluster: cluster.start("a")),
    "an impossible broker": (InvalidName, "a b", lambda cluster: cluster.start("a b\n")),
    "positions that are not taken": (
        CallerError,
        "range_equally_divide finds its positions itself",
        lambda cluster: cluster.split(whole(cluster), positions=(7,)),
    ),
    "an unknown algorithm": (
        PeerError,
        "was not split: it is owned, served by a",
        lambda cluster: cluster.split(whole(cluster), algorithm="by_the_moon"),
    ),
    "fewer than no brokers": (
        CallerError,
        "there are not -1 of them",
        lambda _: Cluster(Diary, brokers=-1),
    ),
    "a broker named twice": (
        CallerError,
        "a name stands twice in a, b, a",
        lambda _: Cluster(Diary, brokers=("a", "b", "a")),
    ),
    "an impossible broker at the start": (
        InvalidName,
        "a b",
        lambda _: Cluster(Diary, brokers=("a b\n",)),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_impossible_request_is_refused_and_changes_nothing(
    case: str, cluster: Cluster[Diary]
) -> None:
    kind, message, request = REFUSED[case]
    bundle = whole(cluster)
    with pytest.raises(kind, match=message):
        request(cluster)
    assert (bundle, "a") == (whole(cluster), cluster.owner(bundle))


def test_an_error_names_at_most_twenty_bundles(cluster: Cluster[Diary]) -> None:
    cluster.create("shop/returns", bundles=64)
    with pytest.raises(NotFound, match="and 45 more"):
        cluster.owner("nothing")


def test_a_cluster_may_begin_with_no_broker() -> None:
    with Cluster(Diary, brokers=0, serves_peers=True) as cluster:
        with pytest.raises(CallerError, match="no broker of the cluster runs"):
            cluster.create(NAMESPACE)
        cluster.start("first")
        assert ["first"] * 4 == [cluster.owner(bundle) for bundle in cluster.create(NAMESPACE)]


def test_a_cluster_is_used_inside_its_context() -> None:
    cluster = Cluster(Diary, brokers=1, serves_peers=True)
    with pytest.raises(CallerError, match="it has not been started"):
        cluster.advance(1)
    with cluster, pytest.raises(CallerError, match="it was started before"), cluster:
        pass
    for call in (
        lambda: cluster.create(NAMESPACE),
        lambda: cluster.start("b"),
        lambda: cluster.advance(1),
    ):
        with pytest.raises(CallerError):
            call()


def test_a_service_that_hangs_is_ended_by_its_deadline(cluster: Cluster[Diary]) -> None:
    """A close that never returns keeps the bundle until its deadline on the cluster's clock."""
    cluster.service("a").hangs = True
    with pytest.raises(PeerError, match="it is releasing"):
        cluster.give(whole(cluster), "b")
    cluster.advance(6_000)
    assert cluster.owner(whole(cluster)) == "b"


def test_a_service_that_is_slow_in_the_real_world_is_waited_for() -> None:
    with (
        Cluster(Diary, brokers=2, patience_ms=10, serves_peers=True) as cluster,
        ThreadPoolExecutor() as pool,
    ):
        cluster.create(NAMESPACE, bundles=1)
        begun_ms = cluster.now_ms
        slow = cluster.service("broker-2").slow = threading.Event()
        pool.submit(lambda: threading.Timer(0.2, slow.set).start())
        cluster.give(whole(cluster), "broker-2")
        assert begun_ms == cluster.now_ms


def test_a_call_may_take_virtual_time(cluster: Cluster[Diary]) -> None:
    """Time passes only until the call is done, and not at all without `within_ms`."""
    cluster.kill("a")
    cluster.advance(2_000)
    begun_ms = cluster.now_ms
    with pytest.raises(DeadlineExceeded, match="route"):
        cluster.call(cluster.host("b").route(NAMESPACE, "key", timeout_ms=60_000))
    assert begun_ms == cluster.now_ms
    served = cluster.call(
        cluster.host("b").route(NAMESPACE, "key", timeout_ms=60_000), within_ms=10_000
    )
    assert isinstance(served, Ownership)
    assert 0 < cluster.now_ms - begun_ms <= FAILOVER_MS - 2_000


def test_a_lookup_has_a_deadline_on_the_cluster_s_clock(cluster: Cluster[Diary]) -> None:
    """A lookup of a key without an owner ends with its own error after its own timeout."""
    cluster.take(whole(cluster))
    begun_ms = cluster.now_ms
    with pytest.raises(DeadlineExceeded, match="an owner for shop/orders/key"):
        cluster.call(cluster.host("b").route(NAMESPACE, "key", timeout_ms=1_500), within_ms=10_000)
    assert 1_500 <= cluster.now_ms - begun_ms <= 2_000


def test_errors_of_a_call_reach_the_test(cluster: Cluster[Diary]) -> None:

    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        cluster.call(fail())


def test_a_cluster_has_its_own_loop() -> None:

    async def within() -> None:
        with Cluster(Diary):
            pass

    with pytest.raises(CallerError, match="not from a coroutine"):
        asyncio.run(within())


def test_a_cluster_whose_brokers_are_all_dead_answers_nothing(cluster: Cluster[Diary]) -> None:
    cluster.kill("a")
    cluster.kill("b")
    with pytest.raises(CallerError, match="no broker of the cluster runs"):
        cluster.bundles(NAMESPACE)
    cluster.start("c")
    cluster.advance(FAILOVER_MS)
    assert cluster.owner(whole(cluster)) == "c"


def test_a_cluster_that_never_rests_is_an_error(cluster: Cluster[Diary]) -> None:
    bred: set[asyncio.Task[None]] = set()

    async def breed() -> None:
        loop = asyncio.get_running_loop()
        bred.clear()
        bred.update(
            loop.create_task(breed() if number == 0 else asyncio.sleep(0)) for number in range(100)
        )

    with pytest.raises(CallerError, match="does not come to rest"):
        cluster.call(breed())
