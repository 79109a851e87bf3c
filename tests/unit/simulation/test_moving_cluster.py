"""A move at every await point: which points there are, what a run does there, and which faults it
finds.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any

import pytest

from equipoise.brokers.runtime.service import Bundle, Ownership, OwnershipLost, Peer, Service
from equipoise.brokers.testing.moving_cluster import MovingCluster, moves_at_every_await
from equipoise.brokers.testing.virtual_cluster import Cluster
from equipoise.brokers.testing.virtual_member import Member
from equipoise.channel.core.errors import CallerError
from equipoise.channel.system.clocks import Deadline

NAMESPACE, ITEM = "shop/stock", "tea"


class Stock(Service):
    """Counts sales in memory, and waits for a journal in between."""

    def __init__(self) -> None:
        self.sold = Counter[str]()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.sold.update(json.loads(handover or b"{}"))

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        leaving = {
            item: self.sold.pop(item)
            for item in list(self.sold)
            if bundle.contains(NAMESPACE, item)
        }
        return json.dumps(leaving).encode()

    async def sell(self, ownership: Ownership, item: str) -> int:
        with ownership.begin(item):
            return await self.count(item)

    async def count(self, item: str) -> int:
        sold = self.sold[item]
        await journal()
        self.sold[item] = sold + 1
        return sold + 1


class Unchecked(Stock):
    """A mutant: it reads before an await and writes after it, and never checks its ownership."""

    async def sell(self, ownership: Ownership, item: str) -> int:
        return await self.count(item)


def runs_of(
    service: Callable[[], Stock],
    *,
    only: int | None = None,
    **options: Any,  # noqa: ANN401
) -> Generator[MovingCluster[Stock]]:
    """Return the runs of a scenario."""
    return moves_at_every_await(
        lambda at: MovingCluster(service, NAMESPACE, ITEM, at=at, **options),
        about="'tea' in shop/stock",
        only=only,
    )


async def journal() -> None:
    """Stand in for a write over the network."""
    await asyncio.sleep(0)


async def sell(cluster: Cluster[Any]) -> int:
    """Sell as a caller does: at the owner, and again if the bundle moves meanwhile."""
    broker = "broker-1"
    while True:
        served = await cluster.host(broker).route(NAMESPACE, ITEM, timeout_ms=5_000)
        if isinstance(served, Peer):
            broker = served.broker
            continue
        try:
            result: int = await cluster.service(broker).sell(served, ITEM)
        except OwnershipLost:
            continue
        return result


def sales(cluster: Cluster[Any], *, count: int = 3) -> list[int]:
    """Create the namespace, sell, and return the answers."""
    cluster.create(NAMESPACE, bundles=1)
    return [cluster.call(sell(cluster)) for _ in range(count)]


def run(
    runs: Iterable[MovingCluster[Stock]], scenario: Callable[[MovingCluster[Stock]], object]
) -> None:
    """Run a scenario with each cluster."""
    for cluster in runs:
        scenario(cluster)


def line_in(function: Callable[..., object], text: str) -> int:
    """Return the number of the line of a function that has a text."""
    lines, first = inspect.getsourcelines(function)
    (found,) = (number for number, line in enumerate(lines, first) if text in line)
    return found


def test_each_await_point_has_a_run_in_which_the_bundle_moves_there() -> None:
    moves = []
    for cluster in runs_of(Stock):
        assert [1, 2, 3] == sales(cluster)
        moves.append(cluster.move)
    assert moves[0] is None
    assert [1, 2, 3] == [move.number for move in moves if move]
    assert {("broker-1", "broker-2")} == {(move.source, move.destination) for move in moves if move}


def test_a_service_that_does_not_check_its_ownership_is_caught_at_the_await() -> None:
    """The former owner writes to memory that nobody reads any more, and the sale is lost."""
    runs = runs_of(Unchecked)
    unmoved = next(runs)
    assert [1, 2, 3] == sales(unmoved)
    moving = next(runs)
    assert [1, 1, 2] == sales(moving)
    move = moving.move
    assert move is not None
    places = [(call.name, call.lineno) for call in move.calls]
    assert [
        ("sell", line_in(sell, "await cluster.service")),
        ("Unchecked.sell", line_in(Unchecked.sell, "await")),
        ("Stock.count", line_in(Stock.count, "await")),
        ("journal", line_in(journal, "await")),
    ] == places
    assert move.place.endswith(f"test_moving_cluster.py:{places[-1][1]} in journal")
    runs.close()


def test_one_run_can_be_repeated_alone() -> None:
    (answers,) = (sales(cluster) for cluster in runs_of(Unchecked, only=2))
    assert [1, 2, 2] == answers


class Loading(Stock):
    """Each of its methods awaits something."""

    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
        await journal()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        await journal()
        await super().open(ownership, handover)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        await journal()
        return await super().close(bundle, moved_to, deadline)


def test_a_bundle_that_opens_may_move_on_and_one_that_closes_may_not() -> None:
    """The broker owns the bundle before it calls `open`, and no longer when it calls `close`."""
    functions = []
    for cluster in runs_of(Loading):
        assert [1] == sales(cluster, count=1)
        cluster.give(cluster.bundle(NAMESPACE, ITEM), "broker-3")
        assert [2, 3] == [cluster.call(sell(cluster)), cluster.call(sell(cluster))]
        functions += [cluster.move.calls[0].name] if cluster.move else []
    assert ["Loading.open", "sell", "Loading.open", "sell", "sell"] == functions


class Spawning(Stock):
    """It sells in a task of its own."""

    async def count(self, item: str) -> int:
        return await asyncio.create_task(super().count(item))


def test_tasks_of_the_service_have_await_points_too() -> None:
    """The task waits for its journal, and its caller for the task."""
    functions = []
    for cluster in runs_of(Spawning):
        sales(cluster, count=1)
        functions += [cluster.move.calls[-1].name] if cluster.move else []
    assert ["Spawning.count", "journal"] == functions


class Settling(Stock):
    """Its `close` waits for sales in progress, which therefore end before the bundle moves."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = asyncio.Event()
        self.idle.set()

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        await self.idle.wait()
        return await super().close(bundle, moved_to, deadline)

    async def sell(self, ownership: Ownership, item: str) -> int:
        self.idle.clear()
        try:
            return await self.count(item)
        finally:
            self.idle.set()


def test_code_that_the_move_waits_for_goes_on() -> None:
    """So a service that settles its work in `close` is right without a second check."""
    owners = []
    for cluster in runs_of(Settling, patience_ms=20):
        assert [1, 2] == sales(cluster, count=2)
        owners.append(cluster.owner(cluster.bundle(NAMESPACE, ITEM)))
    assert ["broker-1", "broker-2", "broker-2"] == owners


def test_a_scenario_without_an_await_point_is_refused() -> None:
    """It could not fail."""
    with pytest.raises(
        CallerError, match="no await point at which the bundle of 'tea' in shop/stock could move"
    ):
        run(runs_of(Stock), lambda cluster: cluster.create(NAMESPACE))


def test_a_single_broker_has_nowhere_to_move_to() -> None:
    with pytest.raises(CallerError, match="no await point"):
        run(runs_of(Stock, brokers=1), sales)


@pytest.mark.parametrize(
    ("only", "problem"),
    [(None, "it has 1; the run without a move has 3"), (4, "await point 4: it has 1. Make")],
)
def test_a_scenario_that_differs_from_run_to_run_is_refused(only: int | None, problem: str) -> None:
    counts = iter([1, 1] if only else [3, 3, 1])
    with pytest.raises(CallerError, match=problem):
        run(
            runs_of(Stock, only=only),
            lambda cluster: sales(cluster, count=next(counts)),
        )


def test_a_scenario_in_which_nothing_may_move_is_refused() -> None:
    async def drain(cluster: Cluster[Stock]) -> None:
        host = cluster.host("broker-2")
        assert isinstance(host, Member)
        host.drain()

    def scenario(cluster: Cluster[Stock]) -> None:
        cluster.call(drain(cluster))
        sales(cluster)

    with pytest.raises(
        CallerError,
        match=r"refused the move at each await point, so the scenario shows nothing: .*draining",
    ):
        run(runs_of(Stock, brokers=2), scenario)


@pytest.mark.parametrize("until", ["killed", "ended"])
def test_code_that_ends_with_its_broker_is_not_held(until: str) -> None:
    """Nothing would let it go on."""

    async def hang(tidied: list[str]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await journal()
            tidied.append(until)

    tidied: list[str] = []

    class Hanging(Stock):
        async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
            if bundle.namespace != NAMESPACE:
                await hang(tidied)

    with MovingCluster(Hanging, NAMESPACE, ITEM, at=4, brokers=2, patience_ms=20) as cluster:
        sales(cluster, count=1)
        cluster.create("shop/other", bundles=2)
        if until == "killed":
            cluster.kill("broker-2")
            assert tidied
    assert tidied
    assert cluster.points == 3  # The sale, and two bundles that hang.
