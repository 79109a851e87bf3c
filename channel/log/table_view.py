"""A channel followed live: tails a `Log` into a `View`, tells listeners, and gives a proposal its verdict.

May live here: `TableView`, for hosts in an asyncio loop that only follow a channel and now and then propose as an admin
(clients, HTTP's reading paths, compaction). A broker's agent has a `Reader` of its own. Who has no loop uses `blocking_view`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from equipoise.channel.core.codec import encode
from equipoise.channel.core.difference import Resync, resync_between
from equipoise.channel.core.errors import DeadlineExceeded, EquipoiseError, LogTruncated, OutcomeUnknown, Overloaded
from equipoise.channel.core.log import Entry, Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.snapshot import from_bytes
from equipoise.channel.core.view import View
from equipoise.channel.log.append_queue import Appended, AppendOutcome, NotAppended
from equipoise.channel.log.seat import FROM_NOTHING, LogSeat, Outage
from equipoise.channel.log.thread import LogThread
from equipoise.channel.system.deadline import Deadline

WAITERS_MAX: Final = 10_000
"""Callers that wait in one view for an offset. All are looked at after each batch: 10,000 cost half a millisecond."""

STOP_MS_MAX: Final = 5_000
"""How long leaving the context waits for the thread: it may be in an append (500 ms) or a read (1 s) of a log that hangs."""

Listener = Callable[[Folded], None]
ResyncListener = Callable[[Resync], None]
Told = TypeVar("Told", Folded, Resync)


def _passed_over(_resync: Resync) -> None:
    """The `ResyncListener` of those who ask for records alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Proposal:
    """A record on its way: `key` is what it wants to change, `data` its bytes, `verdict` what its author waits for."""

    log: str
    key: str
    data: bytes
    verdict: asyncio.Future[Folded]

    def resolve(self, folded: Folded) -> None:
        """Tell the verdict."""
        if not self.verdict.done():
            self.verdict.set_result(folded)

    def fail(self, error: EquipoiseError) -> None:
        """Tell that there is none, and why."""
        if not self.verdict.done():
            self.verdict.set_exception(error)

    def unknown(self, problem: EquipoiseError) -> OutcomeUnknown:
        """The error for a verdict that cannot be known, because of `problem`."""
        return OutcomeUnknown(log=self.log, subject=self.key, problem=str(problem))


class TableView:
    """Follows the channel from `start` to `stop`, or as an async context. Everything is called on the loop.

    `view` is as far as the loop has folded; read it freely between two awaits, and do not keep it: truncation may cut the
    reader off, and then it goes on with another one (`listen` tells of it). Lookups: `view.bundle_at`.
    Every wait has a deadline, and raises `DeadlineExceeded` at its end, or at once what ended the following (`failure`).
    """

    def __init__(self, open_handle: Callable[[], Log], *, name: str, cluster: str | None = None, snapshot: bytes | None = None) -> None:
        """Follow the log that `open_handle` opens, from its snapshot, its beginning, or on from `snapshot`; `name` is its URL.

        With `cluster` given, the log of another one ends the following (`ForeignLog`). Raises `SnapshotDamaged`.
        """
        self.name = name
        self._reader = Reader(log=name, cluster=cluster, view=None if snapshot is None else from_bytes(snapshot))
        # A thread of its own, which opens the handle: so a log that is not there yet is an outage like any other.
        self._thread = LogThread(open_handle, name=name)
        self._seat = LogSeat(
            name=name,
            position=FROM_NOTHING if snapshot is None else self._reader.position,
            deliver=self._deliver,
            caught_up=self._caught_up,
            resynced=self._resynced,
            failed=self._failed,
            cluster=cluster,
        )
        self._has_begun = snapshot is not None
        self._end_at_start: int | None = None
        self._listeners: dict[int, tuple[Listener, ResyncListener]] = {}
        self._listeners_ever = 0
        # Who waits: until something holds; for the verdict at a physical offset; for these very bytes to be read.
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._appended: dict[int, _Proposal] = {}
        self._in_doubt: dict[_Proposal, None] = {}

    @property
    def view(self) -> View:
        """What the channel comes to, as far as it has been read."""
        return self._reader.view

    @property
    def is_ready(self) -> bool:
        """Whether all has been folded that was on the log at the start."""
        return self._end_at_start is not None

    @property
    def outage(self) -> Outage | None:
        """Set while the log cannot be read; the view is then as old as that."""
        return self._seat.outage

    @property
    def failure(self) -> EquipoiseError | None:
        """What ended the following for good: see `LogSeat`, and what `Reader.feed` raises."""
        return self._seat.failure

    def start(self) -> None:
        """Begin to follow."""
        self._seat.join(self._thread)

    async def stop(self, deadline: Deadline) -> None:
        """Let go of the log; who still waits meets its deadline. Raises `DeadlineExceeded` if the log hangs."""
        await self._seat.stop(deadline)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop(Deadline.after(timeout_ms=STOP_MS_MAX))

    def listen(self, listener: Listener, *, resynced: ResyncListener = _passed_over) -> Callable[[], None]:
        """Call `listener` with every record that is folded from now on, rejected ones too; what is returned ends that.

        The view stands just after the record. Where records are left out, since truncation took them first, `resynced` is
        called instead, and `view` is another object from then on. What either raises goes to the loop's exception handler:
        a listener cannot keep others, nor the view, from the record.
        """
        self._listeners_ever += 1
        number = self._listeners_ever
        self._listeners[number] = (listener, resynced)

        def end() -> None:
            self._listeners.pop(number, None)

        return end

    async def ready(self, deadline: Deadline) -> None:
        """Wait until `is_ready`."""
        await self._until(lambda: self.is_ready, deadline, what=f"reading {self.name} to its end")

    async def reached(self, offset: int, deadline: Deadline) -> None:
        """Wait until the logical `offset` has been folded, so that one who wrote it elsewhere reads it here.

        Raises `Overloaded` if `WAITERS_MAX` wait already.
        """
        await self._until(lambda: self.view.offset >= offset, deadline, what=f"reading offset {offset} of {self.name}")

    def author(self, publisher: str) -> Author:
        """The author of an admin's proposal made against the view as it is now; `publisher` is `admin:NAME`.

        A view that is ready stands at the end that it saw at the start, even if nothing stands at that very offset.
        """
        end = 0 if self._end_at_start is None else self._end_at_start + self.view.base
        return Author(publisher=publisher, as_of=max(end, self.view.offset), timestamp_ms=time.time_ns() // 1_000_000)

    async def append(self, record: AnyRecord, deadline: Deadline) -> Folded:
        """Put one record to the log, and wait for its verdict; a rejection is a result, not an error.

        Raises `OutcomeUnknown` if the verdict is not known by the deadline, or when the following ends before; and the
        error of an append that certainly failed (`LogUnavailable`, `LogStorageFull`, `AppendTooLarge`, `Overloaded`).
        """
        if self.failure is not None:
            raise self.failure
        verdict: asyncio.Future[Folded] = asyncio.get_running_loop().create_future()
        proposal = _Proposal(log=self.name, key=record.key, data=encode(record), verdict=verdict)
        self._seat.append(proposal.data, partial(self._settle, proposal))
        try:
            return await deadline.wait(verdict, what="the verdict")
        except DeadlineExceeded as error:
            raise proposal.unknown(error) from error
        finally:
            self._in_doubt.pop(proposal, None)

    async def _until(self, condition: Callable[[], bool], deadline: Deadline, *, what: str) -> None:
        if condition():
            return
        if self.failure is not None:
            raise self.failure
        if len(self._waiting) >= WAITERS_MAX:
            raise Overloaded(what=f"the row of those who wait for {self.name}", limit=WAITERS_MAX)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = condition
        try:
            await deadline.wait(waiter, what=what)
        finally:
            del self._waiting[waiter]

    # --- what the thread brings ---

    def _deliver(self, entries: Sequence[Entry]) -> None:
        """Fold a batch; who waits for a record gets it at once, who waits for a condition at the end of the batch."""
        for entry in entries:
            folded = self._reader.feed(entry)
            own = self._appended.pop(entry.offset, None)
            if own is not None:
                own.resolve(folded)
            for proposal in self._in_doubt:
                if proposal.data == entry.data:
                    proposal.resolve(folded)
            for listener, _ in tuple(self._listeners.values()):
                self._tell(listener, folded)
        self._look_at_waiting()

    def _resynced(self, reader: Reader) -> None:
        """Go on with a view that has left records out: what was proposed in them has a verdict that nobody can read.

        The first time that is how a view begins, and nobody has missed anything.
        """
        if not self._has_begun:
            self._reader, self._has_begun = reader, True
            self._look_at_waiting()
            return
        resync, left = resync_between(self._reader.view, reader.view), self._reader
        self._reader = reader
        for offset in [offset for offset in self._appended if offset < reader.position]:
            self._lose(self._appended.pop(offset), offset)
        for proposal in self._in_doubt:
            self._lose(proposal, left.position)
        for _, listener in tuple(self._listeners.values()):
            self._tell(listener, resync)
        self._look_at_waiting()

    def _lose(self, proposal: _Proposal, position: int) -> None:
        proposal.fail(proposal.unknown(LogTruncated(log=self.name, position=position, start=self._reader.position)))

    def _tell(self, listener: Callable[[Told], None], told: Told) -> None:
        try:
            listener(told)
        except Exception as error:  # noqa: BLE001 - see `listen`
            message = f"a listener of {self.name} failed at offset {told.offset}"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def _caught_up(self, end: int) -> None:
        self._end_at_start = end
        self._look_at_waiting()

    def _look_at_waiting(self) -> None:
        for waiter, condition in self._waiting.items():
            if not waiter.done() and condition():
                waiter.set_result(None)

    def _failed(self, error: EquipoiseError) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)
        for proposal in (*self._appended.values(), *self._in_doubt):
            proposal.fail(proposal.unknown(error))

    def _settle(self, proposal: _Proposal, outcome: AppendOutcome) -> None:
        """Know where the verdict will be read: at an offset, or at the next record of these very bytes.

        The thread tells an outcome before it delivers what it read afterwards, so none can have been missed. The record
        of another author with the same bytes would be the same proposal, of the same name against the same view.
        """
        if isinstance(outcome, NotAppended):
            proposal.fail(outcome.error)
        elif self.failure is not None:
            proposal.fail(proposal.unknown(self.failure))
        elif isinstance(outcome, Appended) and outcome.offset < self._reader.position:
            self._lose(proposal, outcome.offset)  # A resync has come between.
        elif isinstance(outcome, Appended):
            self._appended[outcome.offset] = proposal
        elif not proposal.verdict.done():
            self._in_doubt[proposal] = None
