"""Objects by key: one call at a time, moved with their bundle, saved before the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from equipoise import Cluster, Keyed, SqliteStore
from equipoise.brokers.sharded.keyed import StaleToken
from equipoise.errors import (
    CallerError,
    InvalidName,
    NotServed,
    Overloaded,
    OwnershipLost,
    PeerError,
)
from equipoise.pytest import MakeCluster, MovesAtEveryAwait

NAMESPACE = "iot/shadows"


@dataclass
class Shadow:
    """The state of a device."""

    reports: int = 0
    seen: list[str] = field(default_factory=list)


Shadows = Keyed[Shadow]


class MemoryStore:
    """A store that all brokers of a test share. It suspends its caller, as a network does."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[int, bytes]] = {}
        self.loads = 0
        self.breaks = False
        self.pause: asyncio.Event | None = None

    async def load(self, namespace: str, key: str) -> bytes | None:
        await asyncio.sleep(0)
        self.loads += 1
        return self.states.get(f"{namespace}/{key}", (0, None))[1]

    async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
        await asyncio.sleep(0)
        if self.pause is not None:
            await self.pause.wait()
        if token < self.states.get(f"{namespace}/{key}", (0, b""))[0]:
            raise StaleToken(namespace=namespace, key=key, token=token)
        self.states[f"{namespace}/{key}"] = token, state
        if self.breaks:
            raise OSError("no answer")


def cluster_of(
    make: MakeCluster, service: Callable[[], Shadows] = lambda: Keyed(NAMESPACE, Shadow)
) -> Cluster[Shadows]:
    cluster = make(service, brokers=2)
    cluster.create(NAMESPACE, bundles=1)
    cluster.give(cluster.bundle(NAMESPACE, "lamp"), "broker-1")
    return cluster


async def report(shadows: Shadows, key: str = "lamp", what: str = "on") -> int:
    async with shadows.at(key) as shadow:
        reports = shadow.reports
        await asyncio.sleep(0)
        shadow.reports = reports + 1
        shadow.seen.append(what)
        return shadow.reports


def reported(cluster: Cluster[Shadows], broker: str, key: str = "lamp", what: str = "on") -> int:
    return cluster.call(report(cluster.service(broker), key, what))


def owner_of(cluster: Cluster[Shadows], key: str = "lamp") -> str:
    owner = cluster.owner(cluster.bundle(NAMESPACE, key))
    assert owner is not None
    return owner


def test_an_object_moves_with_its_bundle(equipoise_cluster: MakeCluster) -> None:
    """Its former owner names the next one."""
    cluster = cluster_of(equipoise_cluster)
    assert [1, 2] == [reported(cluster, "broker-1") for _ in range(2)]
    cluster.give(cluster.bundle(NAMESPACE, "lamp"), "broker-2")
    assert reported(cluster, "broker-2") == 3
    with pytest.raises(PeerError, match="broker-2 owns iot/shadows/lamp, not broker-1"):
        reported(cluster, "broker-1")


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_no_change_is_lost_wherever_the_key_moves(
    equipoise_moves: MovesAtEveryAwait, store: MemoryStore | None
) -> None:
    async def reported_somewhere(cluster: Cluster[Shadows]) -> int:
        while True:
            for broker in cluster.brokers:
                try:
                    return await report(cluster.service(broker))
                except PeerError:  # Also `OwnershipLost`: what a call has changed is dropped.
                    continue

    for cluster in equipoise_moves(
        lambda: Keyed(NAMESPACE, Shadow, store=store), NAMESPACE, "lamp"
    ):
        if store is not None:
            store.states.clear()
        cluster.create(NAMESPACE, bundles=1)
        counts = [cluster.call(reported_somewhere(cluster)) for _ in range(3)]
        assert [1, 2, 3] == counts


def test_calls_of_one_key_take_turns(equipoise_cluster: MakeCluster) -> None:
    """In their order, and beside those of other keys."""
    cluster = cluster_of(equipoise_cluster)
    shadows = cluster.service("broker-1")
    order: list[str] = []

    async def call(key: str, name: str, pauses: int) -> None:
        async with shadows.at(key):
            for _ in range(pauses):
                await asyncio.sleep(0)
            order.append(name)

    async def calls() -> None:
        await asyncio.gather(
            call("lamp", "first", 9), call("lamp", "second", 0), call("fan", "other", 0)
        )

    cluster.call(calls())
    assert ["other", "first", "second"] == order


def test_the_queue_of_a_key_is_bounded(equipoise_cluster: MakeCluster) -> None:
    cluster = cluster_of(equipoise_cluster)
    shadows = cluster.service("broker-1")

    async def calls() -> list[int | BaseException]:
        return await asyncio.gather(*(report(shadows) for _ in range(520)), return_exceptions=True)

    answers = cluster.call(calls())
    refused = [each for each in answers if isinstance(each, Overloaded)]
    assert len(refused) == 520 - 513
    assert list(range(1, 514)) == [each for each in answers if isinstance(each, int)]


def test_a_failed_call_changes_nothing(equipoise_cluster: MakeCluster) -> None:
    cluster = cluster_of(equipoise_cluster)
    assert reported(cluster, "broker-1") == 1

    async def fail() -> None:
        async with cluster.service("broker-1").at("lamp") as shadow:
            shadow.seen.append("half")
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        cluster.call(fail())
    assert reported(cluster, "broker-1") == 2

    async def seen() -> list[str]:
        async with cluster.service("broker-1").at("lamp") as shadow:
            return shadow.seen

    assert ["on", "on"] == cluster.call(seen())


def test_objects_follow_splits_and_merges(equipoise_cluster: MakeCluster) -> None:
    cluster = cluster_of(equipoise_cluster)
    keys = [f"device-{number}" for number in range(20)]
    for key in keys:
        reported(cluster, "broker-1", key)
    cluster.split(cluster.bundle(NAMESPACE, "lamp"))
    left, right = cluster.bundles(NAMESPACE)
    cluster.give(right, "broker-2")
    assert {2} == {reported(cluster, owner_of(cluster, key), key) for key in keys}
    assert {"broker-1", "broker-2"} == {owner_of(cluster, key) for key in keys}
    cluster.give(right, "broker-1")
    cluster.merge(left)
    assert {3} == {reported(cluster, "broker-1", key) for key in keys}


def test_what_was_saved_outlives_its_process(
    equipoise_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = cluster_of(
        equipoise_cluster,
        lambda: Keyed(NAMESPACE, Shadow, store=SqliteStore(tmp_path / "states.db")),
    )
    assert [1, 2] == [reported(cluster, "broker-1") for _ in range(2)]
    cluster.kill("broker-1")
    cluster.advance(20_000)
    assert reported(cluster, "broker-2") == 3


def test_after_a_save_in_doubt_the_store_is_asked(equipoise_cluster: MakeCluster) -> None:
    """It may have saved what it gave no answer to."""
    store = MemoryStore()
    cluster = cluster_of(equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store))
    assert reported(cluster, "broker-1") == 1
    store.breaks = True
    with pytest.raises(OSError, match="no answer"):
        reported(cluster, "broker-1")
    store.breaks = False
    assert reported(cluster, "broker-1") == 3


def test_a_save_whose_caller_gave_up_comes_before_the_next_call(
    equipoise_cluster: MakeCluster,
) -> None:
    """Otherwise the older state could be saved last."""
    store = MemoryStore()
    cluster = cluster_of(equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store))

    async def calls() -> int:
        store.pause = asyncio.Event()
        first = asyncio.create_task(report(cluster.service("broker-1")))
        for _ in range(9):
            await asyncio.sleep(0)
        first.cancel()
        second = asyncio.create_task(report(cluster.service("broker-1")))
        await asyncio.sleep(0)
        store.pause.set()
        return await second

    assert cluster.call(calls()) == 2
    assert b'{"reports":2,"seen":["on","on"]}' == store.states[f"{NAMESPACE}/lamp"][1]


def test_a_key_that_is_only_read_leaves_nothing(equipoise_cluster: MakeCluster) -> None:
    store = MemoryStore()
    cluster = cluster_of(equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store))

    async def read() -> int:
        async with cluster.service("broker-1").at("lamp") as shadow:
            return shadow.reports

    assert [0, 0] == [cluster.call(read()) for _ in range(2)]
    assert ({}, 2) == (store.states, store.loads)


def test_what_its_next_owner_could_not_read_is_refused(equipoise_cluster: MakeCluster) -> None:
    cluster = cluster_of(equipoise_cluster)

    async def spoil(value: object) -> None:
        async with cluster.service("broker-1").at("lamp") as shadow:
            vars(shadow)["reports"] = value

    for value in ("many", float("nan")):
        with pytest.raises(CallerError, match="iot/shadows/lamp does not fit its type"):
            cluster.call(spoil(value))
    assert reported(cluster, "broker-1") == 1


def test_objects_that_no_close_took_away_are_dropped_when_the_bundle_returns(
    equipoise_cluster: MakeCluster,
) -> None:
    """A close that overruns its deadline is cancelled, and the bundle goes on elsewhere."""
    cluster = cluster_of(equipoise_cluster)
    assert reported(cluster, "broker-1") == 1
    ownership = cluster.ownership(NAMESPACE, "lamp")
    cluster.call(cluster.service("broker-1").open(ownership, b'"lamp"\n{"reports":7,"seen":[]}'))
    assert reported(cluster, "broker-1") == 8


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_a_call_that_outlasts_its_ownership_changes_nothing(
    equipoise_cluster: MakeCluster, store: MemoryStore | None
) -> None:
    """Also if its key has come back meanwhile. It does not reach the store."""
    cluster = cluster_of(equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store))
    bundle, released = cluster.bundle(NAMESPACE, "lamp"), asyncio.Event()

    async def slow() -> None:
        async with cluster.service("broker-1").at("lamp") as shadow:
            await released.wait()
            shadow.reports = 100

    async def begun() -> asyncio.Task[None]:
        task = asyncio.create_task(slow())
        await asyncio.sleep(0)
        return task

    task = cluster.call(begun())
    with pytest.raises(NotServed):  # The move waits for the call.
        cluster.give(bundle, "broker-2")
    cluster.advance(60_000)
    assert cluster.owner(bundle) == "broker-2"
    assert reported(cluster, "broker-2") == 1
    cluster.give(bundle, "broker-1")

    async def ended() -> None:
        released.set()
        await task

    with pytest.raises(OwnershipLost):
        cluster.call(ended())
    assert reported(cluster, "broker-1") == 2


def test_a_store_refuses_a_former_owner(tmp_path: Path) -> None:
    async def use() -> bytes | None:
        store = SqliteStore(tmp_path / "states.db")
        await store.save("a/b", "key", b"1", token=5)
        await store.save("a/b", "key", b"2", token=5)
        with pytest.raises(StaleToken, match="not saved under token 4"):
            await store.save("a/b", "key", b"3", token=4)
        assert await store.load("a/b", "other") is None
        return await store.load("a/b", "key")

    assert asyncio.run(use()) == b"2"


def test_an_idle_object_leaves_the_memory(equipoise_cluster: MakeCluster) -> None:
    store = MemoryStore()
    cluster = cluster_of(
        equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store, idle_ms=0)
    )
    shadows = cluster.service("broker-1")
    assert [1, 2] == [reported(cluster, "broker-1") for _ in range(2)]
    assert store.loads == 1
    (load,) = shadows.load().values()
    assert load.calls_per_second > 0
    assert reported(cluster, "broker-1") == 3
    assert store.loads == 2


def test_impossible_types_and_keys_are_refused(equipoise_cluster: MakeCluster) -> None:
    class Socket:
        """Not a type that pydantic knows."""

    @dataclass
    class Named:
        name: str

    with pytest.raises(CallerError, match="the state of iot/shadows cannot be encoded as JSON"):
        Keyed(NAMESPACE, Socket)
    with pytest.raises(CallerError, match="'name'; give all fields a default, or give Keyed new="):
        Keyed(NAMESPACE, Named)
    with pytest.raises(CallerError, match="1 to 4096 bundles, not 0"):
        Keyed(NAMESPACE, Shadow, shards=0)
    with pytest.raises(CallerError, match="give this Keyed to the Equipoise"):
        asyncio.run(report(Keyed(NAMESPACE, Shadow)))
    cluster = cluster_of(equipoise_cluster)
    for key in ("", "k" * 1_025, "\ud800"):
        with pytest.raises(InvalidName, match=r"1 to 1,024 bytes"):
            reported(cluster, "broker-1", key)


def test_a_state_of_another_shape_is_named(equipoise_cluster: MakeCluster) -> None:
    store = MemoryStore()
    store.states[f"{NAMESPACE}/lamp"] = 0, b'{"reports": "many"}'
    cluster = cluster_of(equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store))
    with pytest.raises(CallerError, match="the state of iot/shadows/lamp does not fit its type"):
        reported(cluster, "broker-1")
