"""A channel followed live: listeners, waits with deadlines, and proposals that get their verdict, also through trouble."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    ForeignLog,
    LogDamaged,
    LogUnavailable,
    OutcomeUnknown,
    Overloaded,
    SnapshotDamaged,
)
from equipoise.channel.core.log import RECORD_BYTES_MAX, Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import AnyRecord, Reason
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.log import table_view
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.deadline import Deadline
from tests.channels.compacting import begin_copy
from tests.channels.folding import channel_with
from tests.channels.troubled_log import TroubledLog

CLUSTER = "test"
OPS = "admin:ops"
numbers = itertools.count()


def soon() -> Deadline:
    """A deadline that only a test which fails meets."""
    return Deadline.after(timeout_ms=30_000)


def at_once() -> Deadline:
    """A deadline that comes before anything can have happened."""
    return Deadline.after(timeout_ms=1)


def name() -> str:
    """A log that no other test uses."""
    return f"memory:table-view-{next(numbers)}"


def genesis(base: int = 0) -> bytes:
    """The bytes of a log's first record."""
    return encode(propose.genesis(Author(publisher=OPS), cluster=CLUSTER, base=base))


def policy(view: TableView, value: int = 0, *, publisher: str = OPS) -> AnyRecord:
    """A record that sets a policy, against the view as it is."""
    return propose.set_policy(view.author(publisher), view.view, name="limit", document={"value": value})


@asynccontextmanager
async def following(log: Log, **options: str | bytes) -> AsyncIterator[TableView]:
    """A view of a log, ready."""
    async with partial(TableView, lambda: log, name=log.name, **options)() as view:  # type: ignore[arg-type] # each test knows its options
        await view.ready(soon())
        yield view


def run(scenario: Callable[[TableView, TroubledLog], Coroutine[None, None, None]], *records: bytes, **options: str | bytes) -> None:
    """Run a scenario with a view, ready, of a log that begins with a genesis and holds `records`."""
    log = TroubledLog(name=name())
    log.append([genesis(), *records], timeout_ms=0)
    log.at_gate.clear()

    async def with_view() -> None:
        async with following(log, **options) as view:
            await scenario(view, log)

    asyncio.run(with_view())


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_a_proposal_is_appended_and_read_back(scheme: str, tmp_path: Path) -> None:
    """A record that is proposed comes back with its offset and its verdict, and by then the view holds what it changed."""
    url = f"sqlite:{tmp_path}/log.db" if scheme == "sqlite" else name()
    async with TableView(partial(open_log, url), name=url) as view:
        await view.ready(soon())
        begun = await view.append(propose.genesis(view.author(OPS), cluster=CLUSTER), soon())
        assert (1, True) == (begun.offset, begun.verdict.accepted)
        for value in range(20):
            record = policy(view, value)
            folded = await view.append(record, soon())
            assert (record, True) == (folded.record, folded.verdict.accepted)
            assert {"value": value} == view.view.policies["limit"].document


def test_a_rejection_is_a_result() -> None:
    """A proposal that loses a race returns with the reason, and the view is as the winner left it."""

    async def scenario(view: TableView, _: TroubledLog) -> None:
        first, second = policy(view, 1), policy(view, 2)
        both = await asyncio.gather(view.append(first, soon()), view.append(second, soon()))
        assert [None, Reason.STALE] == [folded.verdict.reason for folded in both]
        assert {"value": 1} == view.view.policies["limit"].document

    run(scenario)


async def test_a_view_is_ready_once_it_has_read_what_was_there() -> None:
    """Ready means folded up to the end that the log had at the start."""
    records = channel_with("a:1", bundles=4).entries
    log = MemoryLog(name=name())
    log.append([data for _, data in records], timeout_ms=0)
    view = TableView(lambda: log, name=log.name)
    before = view.is_ready
    view.start()
    await view.ready(soon())
    assert [False, True] == [before, view.is_ready]
    assert len(records) == view.view.offset
    assert 4 == len(view.view.bundles_of("tenant/ns"))
    found = view.view.bundle_at("tenant/ns", HASH_MAX)
    assert found is not None
    assert found.contains(HASH_MAX)
    await view.stop(soon())


def test_what_was_written_elsewhere_is_reached() -> None:
    """Who knows the offset of a record waits until the view has folded it; an offset below is reached already."""

    async def scenario(view: TableView, log: TroubledLog) -> None:
        writer = MemoryLog(name=log.name)
        waiting = asyncio.create_task(view.reached(3, soon()))
        await asyncio.sleep(0)
        writer.append([b"x"], timeout_ms=0)
        await view.reached(2, soon())
        assert not waiting.done()
        writer.append([b"x"], timeout_ms=0)
        await waiting
        assert 3 == view.view.offset
        await view.reached(1, at_once())

    run(scenario)


async def test_offsets_are_logical() -> None:
    """On a log that goes on above another one, waits, verdicts and authors count from the base of its genesis."""
    log = TroubledLog(name=name())
    begin_copy(log, channel_with(), base=1_000)
    async with following(log) as view:
        assert 1_001 == view.author(OPS).as_of
        folded = await view.append(policy(view), soon())
        assert (1_002, True) == (folded.offset, folded.verdict.accepted)
        await view.reached(1_002, at_once())


async def test_an_admin_is_not_late_after_a_gap() -> None:
    """Where offsets have skipped ahead of the last record, an author's view is as new as the gap's end, not as old as the record."""

    class Skipping(TroubledLog):
        def end(self) -> int:
            return super().end() + 1_000_000

    log = Skipping(name=name())
    log.append([genesis()], timeout_ms=0)
    async with following(log) as view:
        assert 1_000_001 == view.author(OPS).as_of


def test_each_wait_ends_at_its_deadline() -> None:
    """Waits for an offset that does not come, and for a log that cannot be opened, end in a typed error that says for what."""

    async def scenario(view: TableView, _: TroubledLog) -> None:
        with pytest.raises(DeadlineExceeded, match="reading offset 9 of memory:"):
            await view.reached(9, at_once())

    async def unopened() -> None:
        def refuse() -> Log:
            raise LogUnavailable(log="x", problem="away", in_doubt=False)

        async with TableView(refuse, name="x") as view:
            with pytest.raises(DeadlineExceeded, match="reading x to its end"):
                await view.ready(at_once())

    run(scenario)
    asyncio.run(unopened())


def test_those_who_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than may wait is refused with a typed error, and there is room again when one has gone."""
    monkeypatch.setattr(table_view, "WAITERS_MAX", 2)

    async def scenario(view: TableView, _: TroubledLog) -> None:
        waiting = [asyncio.create_task(view.reached(9, soon())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await view.reached(9, soon())
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        with pytest.raises(DeadlineExceeded):
            await view.reached(9, at_once())
        waiting[1].cancel()

    run(scenario)


def test_listeners_hear_every_record_and_may_stop_listening() -> None:
    """A listener gets each record that is folded from then on, rejected ones too, with the view just after it, until it ends."""

    async def scenario(view: TableView, log: TroubledLog) -> None:
        heard: list[tuple[int, bool]] = []
        end = view.listen(lambda folded: heard.append((folded.offset, folded.verdict.accepted)))
        views: list[bool] = []
        view.listen(lambda folded: views.append(view.view.offset == folded.offset))
        await view.append(policy(view), soon())
        MemoryLog(name=log.name).append([b"garbage"], timeout_ms=0)
        await view.reached(3, soon())
        end()
        end()
        await view.append(policy(view), soon())
        assert [(2, True), (3, False)] == heard
        assert [True] * 3 == views

    run(scenario)


def test_a_listener_that_fails_harms_nobody() -> None:
    """What a listener raises goes to the loop's handler; the view, and the other listeners, get the record."""

    async def scenario(view: TableView, _: TroubledLog) -> None:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(str(context["message"])))
        heard: list[Folded] = []

        def fail(folded: Folded) -> None:
            raise KeyError(folded.offset)

        view.listen(fail)
        view.listen(heard.append)
        folded = await view.append(policy(view), soon())
        assert [folded] == heard
        assert [f"a listener of {view.name} failed at offset 2"] == complaints
        assert view.failure is None

    run(scenario)


async def test_a_view_starts_from_a_snapshot() -> None:
    """With a snapshot only what follows it is read, and the view is the one that a fold from zero gives."""
    channel = channel_with("a:1", bundles=4)
    log = MemoryLog(name=name())
    log.append([data for _, data in channel.entries], timeout_ms=0)
    reader = Reader(log=log.name)
    for entry in log.read(1, limit=2):
        reader.feed(entry)
    heard: list[int] = []
    view = TableView(lambda: log, name=log.name, snapshot=to_bytes(reader.view))
    view.listen(lambda folded: heard.append(folded.offset))
    async with view:
        await view.ready(soon())
        assert to_bytes(channel.view) == to_bytes(view.view)
    assert list(range(3, len(channel.entries) + 1)) == heard


def test_a_damaged_snapshot_is_refused() -> None:
    """Bytes that are no snapshot are refused before anything is read."""
    with pytest.raises(SnapshotDamaged):
        TableView(lambda: MemoryLog(name="memory:x"), name="memory:x", snapshot=b"{}")


UNAVAILABLE = LogUnavailable(log="x", problem="it is away", in_doubt=False)
DOUBTFUL = LogUnavailable(log="x", problem="it is away")


def test_a_record_that_no_log_takes_is_refused() -> None:
    """A record of more than the log's bound is the caller's error."""

    async def scenario(view: TableView, _: TroubledLog) -> None:
        record = propose.set_policy(view.author(OPS), view.view, name="x" * (RECORD_BYTES_MAX + 1), document={})
        with pytest.raises(CallerError, match="bytes in one record"):
            await view.append(record, soon())

    run(scenario)


def test_doubt_is_resolved_by_reading_on() -> None:
    """An append in doubt that is on the log is known by its bytes, and its verdict is returned as any other."""

    async def scenario(view: TableView, log: TroubledLog) -> None:
        log.append_error = DOUBTFUL
        record = policy(view)
        folded = await view.append(record, soon())
        assert (record, 2, True) == (folded.record, folded.offset, folded.verdict.accepted)

    run(scenario)


def test_doubt_that_nothing_resolves_is_a_typed_result() -> None:
    """An append in doubt that is not read by the deadline is unknown, which is neither a success nor a failure."""

    async def scenario(view: TableView, log: TroubledLog) -> None:
        log.append_error = DOUBTFUL
        log.keeps_what_is_in_doubt = False
        with pytest.raises(OutcomeUnknown, match="not known whether") as caught:
            await view.append(policy(view), Deadline.after(timeout_ms=30))
        assert "limit" == caught.value.subject
        log.append_error = None
        assert (await view.append(policy(view), soon())).verdict.accepted

    run(scenario)


def test_a_verdict_that_is_not_read_back_in_time_is_unknown() -> None:
    """A record that was appended, and cannot be read for an outage, is unknown; after the outage the view has it."""

    async def scenario(view: TableView, log: TroubledLog) -> None:
        log.read_error = UNAVAILABLE
        with pytest.raises(OutcomeUnknown):
            await view.append(policy(view), Deadline.after(timeout_ms=100))
        assert view.outage is not None
        log.read_error = None
        await view.reached(2, soon())
        assert "limit" in view.view.policies

    run(scenario)


def test_what_ends_the_following_ends_all_waits() -> None:
    """Damage is told to everybody who waits, and to everybody who comes later; a verdict outstanding is unknown."""
    damaged = LogDamaged(log="x", problem="rust")

    async def scenario(view: TableView, log: TroubledLog) -> None:
        log.append_error = DOUBTFUL
        log.keeps_what_is_in_doubt = False
        doubtful = asyncio.create_task(view.append(policy(view), soon()))
        waiting = asyncio.create_task(view.reached(9, soon()))
        await asyncio.to_thread(log.at_gate.wait, 30)
        log.read_error = damaged
        log.wake()
        with pytest.raises(LogDamaged):
            await waiting
        with pytest.raises(OutcomeUnknown, match="rust"):
            await doubtful
        for later in (view.reached(9, soon()), view.append(policy(view), soon())):
            with pytest.raises(LogDamaged):
                await later
        await view.reached(1, soon())
        assert damaged is view.failure

    run(scenario)


async def test_the_log_of_another_cluster_ends_the_following() -> None:
    """A view that expects one cluster refuses the log of another, and says which it found."""
    log = TroubledLog(name=name())
    log.append([genesis()], timeout_ms=0)
    async with TableView(lambda: log, name=log.name, cluster="mine") as view:
        with pytest.raises(ForeignLog, match="'test', not 'mine'"):
            await view.ready(soon())


def test_a_proposal_appended_after_the_end_is_unknown() -> None:
    """A record that went to the log just as the following ended is unknown at once, since nobody will read it here."""
    foreign: list[EquipoiseError] = []

    async def scenario(view: TableView, log: TroubledLog) -> None:
        log.gate.clear()
        proposing = asyncio.create_task(view.append(policy(view), soon()))
        await asyncio.to_thread(log.at_gate.wait, 30)
        view._subscription._fail(LogDamaged(log="x", problem="rust"))  # noqa: SLF001 - an end that no real log can bring about just here
        log.gate.set()
        with pytest.raises(OutcomeUnknown, match="rust") as caught:
            await proposing
        foreign.append(caught.value)

    run(scenario)
    assert foreign
