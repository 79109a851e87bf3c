"""Objects by key: one call at a time, moved with their bundle, saved before the answer."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from pydantic import BaseModel, ConfigDict

from equipoise import Cluster, Deadline, Keyed, SqliteStore
from equipoise.brokers.sharded.saving import StaleToken
from equipoise.errors import (
    CallerError,
    DeadlineExceeded,
    InvalidName,
    Overloaded,
    PeerError,
)
from equipoise.pytest import MakeCluster
from tests.channels import keyed_hunt

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
        self.saves = 0
        self.breaks = False
        self.refuses = False
        self.pause: asyncio.Event | None = None

    async def load(self, namespace: str, key: str) -> bytes | None:
        await asyncio.sleep(0)
        self.loads += 1
        return self.states.get(f"{namespace}/{key}", (0, None))[1]

    async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
        await asyncio.sleep(0)
        self.saves += 1
        if self.refuses:
            raise OSError("refused")
        if self.pause is not None:
            await self.pause.wait()
        if token < self.states.get(f"{namespace}/{key}", (0, b""))[0]:
            raise StaleToken(key=f"{namespace}/{key}", token=token)
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


def test_the_queue_of_a_key_is_bounded(equipoise_cluster: MakeCluster) -> None:
    cluster = cluster_of(equipoise_cluster)
    shadows = cluster.service("broker-1")

    async def calls() -> list[int | BaseException]:
        return await asyncio.gather(*(report(shadows) for _ in range(520)), return_exceptions=True)

    answers = cluster.call(calls())
    refused = [each for each in answers if isinstance(each, Overloaded)]
    assert len(refused) == 520 - 513
    assert list(range(1, 514)) == [each for each in answers if isinstance(each, int)]


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


def behind(store: MemoryStore, *, unsaved_ms: int = 60_000) -> Shadows:
    return Keyed(NAMESPACE, Shadow, store=store, unsaved_ms=unsaved_ms, call_ms=200)


def reports_in(store: MemoryStore, key: str = "lamp") -> int:
    return int(json.loads(store.states.get(f"{NAMESPACE}/{key}", (0, b"{}"))[1]).get("reports", 0))


def test_a_change_may_be_answered_before_it_is_saved(equipoise_cluster: MakeCluster) -> None:
    """It is saved in the time that `unsaved_ms` names, the last of several only."""
    store = MemoryStore()
    cluster = cluster_of(equipoise_cluster, lambda: behind(store, unsaved_ms=100))

    async def calls() -> None:
        for _ in range(5):
            await report(cluster.service("broker-1"))
        assert reports_in(store) == 0
        began_s = time.monotonic()
        while reports_in(store) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert time.monotonic() - began_s < 0.1

    cluster.call(calls())
    assert (1, 1) == (store.loads, store.saves)


def test_a_killed_process_loses_what_is_unsaved(equipoise_cluster: MakeCluster) -> None:
    store = MemoryStore()
    cluster = cluster_of(equipoise_cluster, lambda: behind(store))
    reported(cluster, "broker-1")
    cluster.kill("broker-1")
    cluster.advance(20_000)
    assert reported(cluster, "broker-2") == 1


def test_a_key_whose_save_failed_takes_no_change_until_one_succeeds(
    equipoise_cluster: MakeCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other keys do, as long as the list of unsaved objects has room. The log has the reason."""
    monkeypatch.setattr("equipoise.brokers.sharded.saving._PAUSE_S_MIN", 0.01)
    monkeypatch.setattr("equipoise.brokers.sharded.saving.UNSAVED_MAX", 2)
    store = MemoryStore()
    cluster = cluster_of(equipoise_cluster, lambda: behind(store, unsaved_ms=10))
    shadows = cluster.service("broker-1")

    async def calls() -> None:
        store.refuses = True
        assert await report(shadows) == 1
        while "saves failed" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        with pytest.raises(
            PeerError, match="lamp takes no change until its last one is saved: the"
        ):
            await report(shadows)
        assert await report(shadows, "fan") == 1
        with pytest.raises(Overloaded, match="the list of unsaved objects of iot/shadows is full"):
            await report(shadows, "door")
        store.refuses = False
        while True:
            with suppress(PeerError):
                assert await report(shadows) == 2
                break
            await asyncio.sleep(0.001)
        while reports_in(store, "fan") < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    cluster.call(calls())
    assert "OSError: refused; try again later; 1 objects of iot/shadows are unsaved" in caplog.text


@pytest.mark.parametrize("hangs", [False, True])
def test_what_a_close_cannot_save_goes_to_the_next_owner(
    equipoise_cluster: MakeCluster, caplog: pytest.LogCaptureFixture, *, hangs: bool
) -> None:
    """It saves that in turn."""
    store = MemoryStore()
    cluster = cluster_of(equipoise_cluster, lambda: behind(store))
    bundle = cluster.ownership(NAMESPACE, "lamp").bundle
    assert reported(cluster, "broker-1") == 1
    store.refuses, store.pause = not hangs, asyncio.Event() if hangs else None
    closing = cluster.service("broker-1").close(bundle, None, Deadline.after(timeout_ms=150))
    handover = cluster.call(closing)
    assert "1 objects are unsaved, and lost unless there is a next" in caplog.text
    assert reports_in(store) == 0
    store.refuses, store.pause = False, None
    ownership = cluster.ownership(NAMESPACE, "lamp")
    cluster.call(cluster.service("broker-2").open(ownership, handover))
    cluster.call(cluster.service("broker-2").close(bundle, None, Deadline.after(timeout_ms=150)))
    assert reports_in(store) == 1


def test_an_unsaved_change_that_comes_too_late_is_lost_aloud(
    equipoise_cluster: MakeCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a process that was cut off, and whose key another one has had. The store has it all."""
    monkeypatch.setattr("equipoise.brokers.sharded.saving._PAUSE_S_MIN", 0.01)
    store = MemoryStore()
    cluster = cluster_of(equipoise_cluster, lambda: behind(store, unsaved_ms=10))

    async def calls() -> int:
        await report(cluster.service("broker-1"))
        store.states[f"{NAMESPACE}/lamp"] = 1_000, b'{"reports": 7}'
        while "a change is lost: the state of iot/shadows/lamp" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return await report(cluster.service("broker-1"))

    assert cluster.call(calls()) == 8


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

    for value, given in (("many", "str"), (float("nan"), "float")):
        problem = f"lamp does not fit its type: reports: it must be int, not {given}; nothing"
        with pytest.raises(CallerError, match=problem):
            cluster.call(spoil(value))
    assert reported(cluster, "broker-1") == 1


def test_what_is_charged_to_a_bundle_that_is_cut_is_not_lost(
    equipoise_cluster: MakeCluster,
) -> None:
    """Neither in the unit of its calls, nor what work that goes on uses."""
    cluster = cluster_of(equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, unit="tokens/s"))
    ownership, shadows = cluster.ownership(NAMESPACE, "lamp"), cluster.service("broker-1")
    shadows.charge("lamp", 100)
    cluster.split(ownership.bundle.name)
    ownership.account.bytes += 10
    loads = shadows.load().values()
    assert (2, 1) == (len(loads), len({load.cost > 0 and load.cost for load in loads}))
    used = [
        cluster.ownership(NAMESPACE, key).account.take() for key in ("lamp", "door", "a", "b", "c")
    ]
    assert 2 == sum(load is not None and load.bytes_per_second > 0 for load in used)


def test_objects_that_no_close_took_away_are_dropped_when_the_bundle_returns(
    equipoise_cluster: MakeCluster,
) -> None:
    """A close that overruns its deadline is cancelled, and the bundle goes on elsewhere."""
    cluster = cluster_of(equipoise_cluster)
    assert reported(cluster, "broker-1") == 1
    ownership = cluster.ownership(NAMESPACE, "lamp")
    cluster.call(cluster.service("broker-1").open(ownership, b'"lamp"\n{"reports":7,"seen":[]}'))
    assert reported(cluster, "broker-1") == 8


def test_an_idle_object_leaves_the_memory(equipoise_cluster: MakeCluster) -> None:
    store = MemoryStore()
    cluster = cluster_of(
        equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store, idle_ms=0)
    )
    shadows = cluster.service("broker-1")
    assert [1, 2] == [reported(cluster, "broker-1") for _ in range(2)]
    assert store.loads == 1
    shadows.load()
    assert reported(cluster, "broker-1") == 3
    assert store.loads == 2


def test_objects_that_nobody_uses_never_outnumber_those_in_use(
    equipoise_cluster: MakeCluster,
) -> None:
    """Each call drops two of them. Those that a call has stay."""

    class Counted(Shadow):
        pass

    cluster = cluster_of(
        equipoise_cluster, lambda: Keyed(NAMESPACE, Counted, store=MemoryStore(), idle_ms=0)
    )
    shadows = cluster.service("broker-1")

    async def calls() -> None:
        async with shadows.at("held") as held:
            for number in range(50):
                await report(shadows, f"device-{number}")
            gc.collect()
            assert sum(isinstance(each, Counted) for each in gc.get_objects()) <= 3
            held.reports += 1

    cluster.call(calls())
    assert reported(cluster, "broker-1", "held") == 2


def test_its_load_is_what_its_calls_cost(equipoise_cluster: MakeCluster) -> None:
    """Calls, their CPU time, how long they last, and the bytes of what they change."""
    cluster = equipoise_cluster(lambda: Keyed(NAMESPACE, Shadow), brokers=1)
    (bundle,) = cluster.create(NAMESPACE, bundles=1)
    cluster.give(bundle, "broker-1")
    shadows, account = cluster.service("broker-1"), cluster.ownership(NAMESPACE, "lamp").account

    @shadows.route("key")
    async def work(key: str, shadow: Shadow, pauses: int) -> None:
        """Use the CPU, and then wait."""
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            pass
        for _ in range(pauses):
            await asyncio.sleep(0.02)
        shadow.seen.append("x" * 1_000)

    async def work_at() -> None:
        async with shadows.at("lamp") as shadow:
            end_s = time.thread_time() + 0.02
            while time.thread_time() < end_s:
                shadow.reports += 1

    def used(call: Coroutine[Any, Any, None]) -> list[float]:
        account.take()
        began_s = time.monotonic()
        cluster.call(call)
        load = account.take()
        assert load is not None
        elapsed_s = time.monotonic() - began_s
        return [
            elapsed_s * each
            for each in (
                load.calls_per_second,
                load.cpu_seconds_per_second,
                load.wall_seconds_per_second,
                load.bytes_per_second,
            )
        ]

    calls, cpu_s, wall_s, size = used(work("lamp", pauses=3))
    assert calls == pytest.approx(1, rel=0.1)
    assert cpu_s == pytest.approx(0.02, rel=0.4)
    assert wall_s > 0.07
    assert 1_000 < size < 1_500
    for call in (work("fan", pauses=0), work_at()):
        calls, cpu_s, wall_s, size = used(call)
        assert cpu_s == pytest.approx(0.02, rel=0.4)
        assert wall_s >= cpu_s * 0.9


def test_many_idle_objects_do_not_stop_the_loop(equipoise_cluster: MakeCluster) -> None:
    """A question for the load drops a bounded number of them, those first that came first."""
    store = MemoryStore()
    cluster = cluster_of(
        equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store, idle_ms=0)
    )
    shadows = cluster.service("broker-1")
    handover = b"\n".join(b'"%d"\n{}' % number for number in range(5_000))
    cluster.call(shadows.open(cluster.ownership(NAMESPACE, "lamp"), handover))
    for loads in (0, 0, 1):
        shadows.load()
        reported(cluster, "broker-1", "4500")
        assert store.loads == loads
    reported(cluster, "broker-1", "3000")
    assert store.loads == 2


def test_large_objects_move_as_well(equipoise_cluster: MakeCluster) -> None:
    """The next owner fetches what a record cannot hold."""
    cluster = equipoise_cluster(lambda: Keyed(NAMESPACE, Shadow), brokers=2, serves_peers=True)
    (bundle,) = cluster.create(NAMESPACE, bundles=1)
    cluster.give(bundle, "broker-1")
    keys = [f"device-{number}" for number in range(40)]
    for key in keys:
        reported(cluster, "broker-1", key, "x" * 50_000)
    cluster.give(bundle, "broker-2")
    assert {2} == {reported(cluster, "broker-2", key) for key in keys}


def test_an_object_has_a_bound(
    equipoise_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is larger already may shrink. Without a store all together have one, too."""
    cluster = cluster_of(equipoise_cluster)
    with pytest.raises(CallerError, match=r"lamp has 1,\d+,\d+ bytes, of 1,048,576 at most"):
        reported(cluster, "broker-1", what="x" * 1_100_000)
    assert reported(cluster, "broker-1", what="x" * 1_000) == 1
    monkeypatch.setattr("equipoise.brokers.sharded.keyed.STATE_BYTES_MAX", 100)
    with pytest.raises(CallerError, match="nothing of this call is kept"):
        reported(cluster, "broker-1")

    async def shrink() -> None:
        async with cluster.service("broker-1").at("lamp") as shadow:
            shadow.seen[0] = "x" * 900

    cluster.call(shrink())
    monkeypatch.setattr("equipoise.brokers.sharded.keyed.KEPT_BYTES_MAX", 1_000)
    with pytest.raises(Overloaded, match="the memory for objects without a store"):
        reported(cluster, "broker-1", "fan", "x" * 60)


def test_a_call_is_charged_in_a_unit_of_its_own(equipoise_cluster: MakeCluster) -> None:
    """The cost of a bundle is what its calls have cost since the last question, per second."""
    cluster = cluster_of(equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, unit="tokens/s"))
    shadows = cluster.service("broker-1")

    async def charged(*amounts: float) -> tuple[float, set[str]]:
        shadows.load()
        began_s = time.monotonic()
        for amount in amounts:
            shadows.charge("lamp", amount)
        await asyncio.sleep(0.05)
        loads = shadows.load().values()
        elapsed_s = time.monotonic() - began_s
        return elapsed_s * sum(load.cost for load in loads), {load.unit for load in loads}

    amount, units = cluster.call(charged(600, 300))
    assert pytest.approx(900, rel=0.2) == amount
    assert {"tokens/s"} == units
    assert (0, {"tokens/s"}) == cluster.call(charged())
    for bad in (-1, math.nan, math.inf, 1e300):
        with pytest.raises(CallerError, match="a call cannot have amount="):
            shadows.charge("lamp", bad)
    with pytest.raises(CallerError, match="give Keyed unit="):
        Keyed(NAMESPACE, Shadow).charge("lamp", 1)
    with pytest.raises(CallerError, match="no unit of costs"):
        Keyed(NAMESPACE, Shadow, unit="x" * 33)


def test_a_load_that_fails_or_hangs_stops_only_its_key(equipoise_cluster: MakeCluster) -> None:
    class BrokenStore(MemoryStore):
        async def load(self, namespace: str, key: str) -> bytes | None:
            if key == "hangs":
                await asyncio.get_running_loop().create_future()
            if key == "raises":
                raise OSError("disk is on fire")
            return await super().load(namespace, key)

    cluster = cluster_of(
        equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=BrokenStore(), call_ms=50)
    )
    with pytest.raises(PeerError, match=r"not load the state of .*: OSError: disk is on fire"):
        reported(cluster, "broker-1", "raises")
    with pytest.raises(DeadlineExceeded, match="the store giving the state of iot/shadows/hangs"):
        reported(cluster, "broker-1", "hangs")
    assert reported(cluster, "broker-1") == 1


def test_impossible_types_and_keys_are_refused(equipoise_cluster: MakeCluster) -> None:
    class Socket:
        """Not a type that pydantic knows."""

    @dataclass
    class Named:
        name: str

    @dataclass
    class Half:
        socket: Any = field(default_factory=Socket)

    @dataclass(unsafe_hash=True)
    class Hashed:
        number: int = 0

    class Color(Enum):
        RED = "red"

    class Frozen(BaseModel):
        model_config = ConfigDict(frozen=True)

    class Point(NamedTuple):
        x: int = 0

    with pytest.raises(CallerError, match="the state of iot/shadows cannot be encoded as JSON"):
        Keyed(NAMESPACE, Socket)
    with pytest.raises(CallerError, match="'name'; give all fields a default, or give Keyed new="):
        Keyed(NAMESPACE, Named)
    with pytest.raises(CallerError, match=r"the state of iot/shadows cannot be encoded.*: Half"):
        Keyed(NAMESPACE, Half)
    for kind in (int, str, tuple[int, ...], Color, Frozen, Point):
        with pytest.raises(CallerError, match="the objects of iot/shadows could never change"):
            Keyed[Any](NAMESPACE, kind, new=lambda _: None)
    for changing in (dict[str, int], set[int], list[str], Hashed, Shadow):
        Keyed[Any](NAMESPACE, changing)
    with pytest.raises(CallerError, match="unsaved_ms=9 of iot/shadows has no effect without a"):
        Keyed(NAMESPACE, Shadow, unsaved_ms=9)
    with pytest.raises(CallerError, match=r"'a\.db' is no store for iot/shadows; .* SqliteStore"):
        Keyed(NAMESPACE, Shadow, store=cast("Any", "a.db"))
    with pytest.raises(CallerError, match="1 to 4096 bundles, not 0"):
        Keyed(NAMESPACE, Shadow, shards=0)
    with pytest.raises(CallerError, match="give this Keyed to the Equipoise"):
        asyncio.run(report(Keyed(NAMESPACE, Shadow)))
    cluster = cluster_of(equipoise_cluster)
    for key in ("", "k" * 1_025, "k" * 10_000, "\ud800", "not\ufffdutf-8"):
        with pytest.raises(InvalidName, match=r"1 to 1,024 bytes"):
            reported(cluster, "broker-1", key)


def test_a_state_of_another_shape_is_named(equipoise_cluster: MakeCluster) -> None:
    store = MemoryStore()
    store.states[f"{NAMESPACE}/lamp"] = 0, b'{"reports": "many"}'
    cluster = cluster_of(equipoise_cluster, lambda: Keyed(NAMESPACE, Shadow, store=store))
    with pytest.raises(CallerError, match="the state of iot/shadows/lamp does not fit its type"):
        reported(cluster, "broker-1")


@pytest.mark.parametrize("seed", range(12))
def test_what_was_answered_is_made_once_whatever_happens(seed: int) -> None:
    """tests.mutants looks for broken rules with the same hunt."""
    keyed_hunt.play(seed)
