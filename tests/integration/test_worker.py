"""Workers in one process over one log: the host of the agent with real time, a real disk and a real service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import CreateNamespace, Intent, MergeBundles, SplitBundle, Transfer, Unload
from equipoise.brokers.errors import Rejected, UnknownNamespace
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Bundle, Ownership, OwnershipLost, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import EquipoiseError, ForeignLog, OperatorError
from equipoise.channel.core.ranges import even_boundaries, key_hash
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

pytestmark = pytest.mark.integration

NAMESPACE = "t/n"
PATIENCE_MS = 30_000
DEADLINE_S = 120.0


@dataclass
class Diary(Service):
    """A service that writes down what it is told, and refuses what it is told to refuse."""

    told: list[str] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    open_now: dict[str, Ownership] = field(default_factory=dict)
    received: dict[str, bytes | None] = field(default_factory=dict)

    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:
        self.told.append(f"prepare {bundle.name}")
        if bundle.name in self.refuses:
            raise RuntimeError("no room")

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.told.append(f"open {ownership.bundle.name}")
        self.open_now[ownership.bundle.name] = ownership
        self.received[ownership.bundle.name] = handover

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        self.told.append(f"close {bundle.name}")
        self.open_now.pop(bundle.name, None)
        return f"from {bundle.name}".encode()


@dataclass
class Party:
    """Some workers of one cluster, each with its diary."""

    folder: Path
    log_url: str
    workers: list[Worker] = field(default_factory=list)
    diaries: list[Diary] = field(default_factory=list)

    async def join(self, broker: str, **settings: object) -> Worker:
        """Start one more worker, and wait until it is ready."""
        diary = Diary()
        config = WorkerConfig.model_validate({"log_url": self.log_url, "data_dir": self.folder / broker, "broker_id": broker, **settings})
        worker = Worker(config, {"*": diary}, addresses={"http": f"http://{broker}"})
        await worker.start()
        self.workers.append(worker)
        self.diaries.append(diary)
        await worker.ready(timeout_ms=PATIENCE_MS)
        return worker


@asynccontextmanager
async def party(folder: Path, log_url: str, *brokers: str) -> AsyncIterator[Party]:
    """A cluster with one namespace of four bundles, all of them owned."""
    guests = Party(folder, log_url)
    try:
        for broker in brokers:
            await guests.join(broker)
        await guests.workers[0].request(CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(4)), timeout_ms=PATIENCE_MS)
        for worker in guests.workers:
            await worker.until(all_owned, timeout_ms=PATIENCE_MS, what="all bundles being owned")
        yield guests
    finally:
        await asyncio.gather(*(worker.stop() for worker in guests.workers))


def all_owned(view: View) -> bool | None:
    """Whether every bundle has a live owner."""
    bundles = view.bundles_of(NAMESPACE)
    return (bool(bundles) and all(bundle.phase == "owned" for bundle in bundles)) or None


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run one test on a loop of its own, with a bound on the whole of it."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(bounded())


@pytest.mark.on_every_log
async def test_a_transfer_carries_the_handover_and_a_greater_token(tmp_path: Path, log_url: str) -> None:
    """The destination opens with what the source left, under a token greater than the source's."""
    async with party(tmp_path, log_url, "a", "b") as guests:
        a, b = guests.workers
        moved = next(bundle for bundle in a.view.bundles_of(NAMESPACE) if bundle.owner == a.agent.incarnation)
        offset = await b.request(Transfer(bundle=moved.name, destination="b", reason="test"), timeout_ms=PATIENCE_MS)
        await b.until(lambda _: moved.name in b.open_bundles or None, timeout_ms=PATIENCE_MS, what="b owning it")
        ownership = guests.diaries[1].open_now[moved.name]
        assert ownership.is_good
        assert ownership.token > offset > moved.token
        assert f"from {moved.name}".encode() == guests.diaries[1].received[moved.name]
        assert moved.name not in guests.diaries[0].open_now


async def test_sessions_go_on_through_split_and_merge(tmp_path: Path, log_url: str) -> None:
    """Work that began before a split and a merge passes its second check after them, under the same token."""
    async with party(tmp_path, log_url, "a") as guests:
        (a,) = guests.workers
        parent = a.view.bundles_of(NAMESPACE)[0]
        key = next(f"k{n}" for n in range(1_000) if a.view.bundle_at(NAMESPACE, key_hash(f"k{n}")) is parent)
        routed = await a.route(NAMESPACE, key, timeout_ms=PATIENCE_MS)
        assert isinstance(routed, Ownership)
        work = routed.begin(key)
        split = SplitBundle(bundle=parent.name, algorithm="range_equally_divide", reason="test")
        await a.request(split, timeout_ms=PATIENCE_MS)
        await a.until(lambda view: parent.name not in view.bundles or None, timeout_ms=PATIENCE_MS, what="the split")
        work.finish()
        left = a.view.bundles_of(NAMESPACE)[0]
        await a.request(MergeBundles(left=left.name, reason="test"), timeout_ms=PATIENCE_MS)
        work.finish()
        assert parent.token == work.token
        assert 4 == len(a.view.bundles_of(NAMESPACE))


async def test_a_refusal_is_told_and_the_source_keeps_its_token(tmp_path: Path, log_url: str) -> None:
    """A destination whose service refuses calls the transfer off; the source never stops serving."""
    async with party(tmp_path, log_url, "a", "b") as guests:
        a, b = guests.workers
        moved = next(bundle for bundle in a.view.bundles_of(NAMESPACE) if bundle.owner == a.agent.incarnation)
        guests.diaries[1].refuses.add(moved.name)
        reasons: list[str | None] = []
        a.listen(lambda folded: reasons.append(getattr(folded.record, "reason", None)))
        offset = await a.request(Transfer(bundle=moved.name, destination="b", reason="test"), timeout_ms=PATIENCE_MS)
        back = await a.until(
            lambda view: view.bundles[moved.name] if view.bundles[moved.name].last > offset else None,
            timeout_ms=PATIENCE_MS,
            what="the cancellation",
        )
        assert ("owned", a.agent.incarnation, moved.token) == (back.phase, back.owner, back.token)
        assert "could not prepare it: RuntimeError: no room" in reasons
        assert guests.diaries[0].open_now[moved.name].is_good
        await b.reached(a.view.offset, timeout_ms=PATIENCE_MS)
        assert a.agent.incarnation == b.view.bundles[moved.name].owner


@pytest.mark.on_every_log
async def test_a_graceful_stop_moves_everything_away(tmp_path: Path, log_url: str) -> None:
    """After `stop` the log says `left`, the others own everything, and no ownership of the leaver is good."""
    async with party(tmp_path, log_url, "a", "b") as guests:
        a, b = guests.workers
        held = list(guests.diaries[0].open_now.values())
        await a.stop()
        await b.reached(a.view.offset, timeout_ms=PATIENCE_MS)
        assert "left" == b.view.brokers["a"].status
        assert {b.agent.incarnation} == {bundle.owner for bundle in b.view.bundles_of(NAMESPACE)}
        assert [] == [ownership for ownership in held if ownership.is_good]
        with pytest.raises(OwnershipLost):
            held[0].begin("k")


async def test_refusals_have_their_reasons(tmp_path: Path, log_url: str) -> None:
    """Unknown brokers, bundles and namespaces, and a bundle that is not owned, are refused with the reason."""
    async with party(tmp_path, log_url, "a") as guests:
        (a,) = guests.workers
        name = a.view.bundles_of(NAMESPACE)[0].name
        cases: list[tuple[Intent, str]] = [
            (Transfer(bundle=name, destination="nobody", reason="test"), "unknown_broker"),
            (Unload(bundle="t/n/0x00000000_0x00000001", reason="test"), "unknown_bundle"),
            (MergeBundles(left=a.view.bundles_of(NAMESPACE)[-1].name, reason="test"), "not_adjacent"),
            (CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(1)), "illegal_transition"),
            (CreateNamespace(name="t/other", boundaries=(0, 5)), "bad_boundary"),
            (Transfer(bundle=name, destination="a", reason="test"), "illegal_transition"),
        ]
        for intent, reason in cases:
            with pytest.raises(Rejected) as caught:
                await a.request(intent, timeout_ms=PATIENCE_MS)
            assert reason == caught.value.reason
        with pytest.raises(UnknownNamespace):
            await a.route("t/none", "k", timeout_ms=PATIENCE_MS)


async def test_a_restart_with_its_directory_replaces_its_former_self_at_once(tmp_path: Path, log_url: str) -> None:
    """A broker that died without a word comes back under its id without waiting for its lease, in a new incarnation."""
    async with party(tmp_path, log_url, "a", "b") as guests:
        former = guests.workers[0].agent.incarnation
        await guests.workers[0].abort()
        again = await guests.join("a")
        assert again.agent.incarnation != former
        record = again.view.brokers["a"].joined
        assert (True, False) == (record.replaces is not None, record.after_silence)


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"data_dir": "a"}, OperatorError), ({"cluster": "another"}, ForeignLog)],
    ids=["directory of a running broker", "log of another cluster"],
)
async def test_a_start_that_cannot_be_is_refused(
    tmp_path: Path, log_url: str, settings: dict[str, str], error: type[EquipoiseError]
) -> None:
    """A locked directory and another cluster's log refuse the start."""
    async with party(tmp_path, log_url, "a") as guests:
        if "data_dir" in settings:
            settings["data_dir"] = str(tmp_path / settings["data_dir"])
        with pytest.raises(error):
            await guests.join("b", **settings)
