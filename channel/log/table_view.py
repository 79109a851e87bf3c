"""Follow a channel live in an asyncio loop: tail a `Log` into a `View`, notify listeners, and wait for the verdicts of proposals.

For hosts that follow a channel and propose only as an admin (clients, HTTP reads, compaction). A broker's agent has its own `Reader`;
programs without a loop use `blocking_view`.
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
from equipoise.channel.log.subscription import FROM_NOTHING, Outage, Subscription
from equipoise.channel.system.deadline import Deadline

WAITERS_MAX: Final = 10_000
"""Callers that wait in one view for an offset. Each batch checks all of them: 10,000 take half a millisecond."""

STOP_MS_MAX: Final = 5_000
"""How long leaving the context waits for the thread, which may be in an append (500 ms) or a read (1 s) of a hanging log."""

Listener = Callable[[Folded], None]
ResyncListener = Callable[[Resync], None]
Event = TypeVar("Event", Folded, Resync)


def _ignore(_resync: Resync) -> None:
    """Ignore a resync, for listeners that want records only."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Proposal:
    """A record on its way: `key` is what it changes, `data` its bytes, `verdict` the future that its author awaits."""

    log: str
    key: str
    data: bytes
    verdict: asyncio.Future[Folded]

    def resolve(self, folded: Folded) -> None:
        """Deliver the verdict."""
        if not self.verdict.done():
            self.verdict.set_result(folded)

    def fail(self, error: EquipoiseError) -> None:
        """Report that there is no verdict, and why."""
        if not self.verdict.done():
            self.verdict.set_exception(error)

    def unknown(self, problem: EquipoiseError) -> OutcomeUnknown:
        """Return the error for a verdict that cannot be known because of `problem`."""
        return OutcomeUnknown(log=self.log, subject=self.key, problem=str(problem))


class TableView:
    """A live view of the channel from `start` to `stop`, or as an async context. Call everything on the loop.

    Read `view` freely between two awaits, but do not keep it: a resync replaces it (see `listen`). `view.bundle_at` is the lookup. Every
    wait has a deadline and raises `DeadlineExceeded` when it passes, or at once what ended the subscription (`failure`).
    """

    def __init__(self, open_handle: Callable[[], Log], *, name: str, cluster: str | None = None, snapshot: bytes | None = None) -> None:
        """Follow the log that `open_handle` opens, from `snapshot`, or else from the log's own snapshot or beginning. `name` is its URL.

        With `cluster`, a log of another cluster ends the subscription (`ForeignLog`). Raises `SnapshotDamaged`.
        """
        self.name = name
        self._reader = Reader(log=name, cluster=cluster, view=None if snapshot is None else from_bytes(snapshot))
        # Its thread opens the handle, so that a log that does not exist yet is an ordinary outage.
        self._subscription = Subscription(
            open_handle,
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
        # Waiters: for a condition; for the verdict at a physical offset; for a record with the same bytes.
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._appended: dict[int, _Proposal] = {}
        self._in_doubt: dict[_Proposal, None] = {}

    @property
    def view(self) -> View:
        """The folded channel, as far as it has been read."""
        return self._reader.view

    @property
    def is_ready(self) -> bool:
        """Whether everything has been folded that was on the log at the start."""
        return self._end_at_start is not None

    @property
    def outage(self) -> Outage | None:
        """Set while the log cannot be read. The view is then as old as the outage."""
        return self._subscription.outage

    @property
    def failure(self) -> EquipoiseError | None:
        """What ended the subscription for good: see `Subscription`, and what `Reader.feed` raises."""
        return self._subscription.failure

    def start(self) -> None:
        """Start to follow."""
        self._subscription.start()

    async def stop(self, deadline: Deadline) -> None:
        """Stop to follow and release the log. Pending waits run into their deadlines. Raises `DeadlineExceeded` if the log hangs."""
        await self._subscription.stop(deadline)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop(Deadline.after(timeout_ms=STOP_MS_MAX))

    def listen(self, listener: Listener, *, resynced: ResyncListener = _ignore) -> Callable[[], None]:
        """Call `listener` with every record folded from now on, including rejected ones. Return a function that ends that.

        During the call the view stands just after the record. If truncation removed records before they were read, `resynced` is called
        instead, and `view` is another object from then on. Errors of listeners go to the loop's exception handler, so that they affect
        neither the view nor other listeners.
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
        """Wait until the logical `offset` is folded, so that a record written elsewhere is visible here.

        Raises `Overloaded` if `WAITERS_MAX` callers already wait.
        """
        await self._until(lambda: self.view.offset >= offset, deadline, what=f"reading offset {offset} of {self.name}")

    def author(self, publisher: str) -> Author:
        """Return the author of an admin's proposal against the current view. `publisher` is `admin:NAME`.

        A ready view counts as read up to the end that it saw at the start, even if that is a gap.
        """
        end = 0 if self._end_at_start is None else self._end_at_start + self.view.base
        return Author(publisher=publisher, as_of=max(end, self.view.offset), timestamp_ms=time.time_ns() // 1_000_000)

    async def append(self, record: AnyRecord, deadline: Deadline) -> Folded:
        """Append one record and return its verdict. A rejection is a result, not an error.

        Raises `OutcomeUnknown` if the verdict is not known by the deadline or the subscription ends first, and the error of an append that
        certainly failed (`LogUnavailable`, `LogStorageFull`, `Overloaded`, or `CallerError` for a record that is too large).
        """
        if self.failure is not None:
            raise self.failure
        verdict: asyncio.Future[Folded] = asyncio.get_running_loop().create_future()
        proposal = _Proposal(log=self.name, key=record.key, data=encode(record), verdict=verdict)
        self._subscription.append(proposal.data, partial(self._settle, proposal))
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
            raise Overloaded(what=f"the queue of callers that wait for {self.name}", limit=WAITERS_MAX)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = condition
        try:
            await deadline.wait(waiter, what=what)
        finally:
            del self._waiting[waiter]

    # --- calls from the thread ---

    def _deliver(self, entries: Sequence[Entry]) -> None:
        """Fold a batch. Resolve verdicts after each record, and conditions after the batch."""
        for entry in entries:
            folded = self._reader.feed(entry)
            own = self._appended.pop(entry.offset, None)
            if own is not None:
                own.resolve(folded)
            for proposal in self._in_doubt:
                if proposal.data == entry.data:
                    proposal.resolve(folded)
            for listener, _ in tuple(self._listeners.values()):
                self._notify(listener, folded)
        self._check_waiting()

    def _resynced(self, reader: Reader) -> None:
        """Replace the view after a resync. Proposals in the skipped records get `OutcomeUnknown`.

        The first resync starts the view and skips nothing.
        """
        if not self._has_begun:
            self._reader, self._has_begun = reader, True
            self._check_waiting()
            return
        resync, left = resync_between(self._reader.view, reader.view), self._reader
        self._reader = reader
        for offset in [offset for offset in self._appended if offset < reader.position]:
            self._lose(self._appended.pop(offset), offset)
        for proposal in self._in_doubt:
            self._lose(proposal, left.position)
        for _, listener in tuple(self._listeners.values()):
            self._notify(listener, resync)
        self._check_waiting()

    def _lose(self, proposal: _Proposal, position: int) -> None:
        proposal.fail(proposal.unknown(LogTruncated(log=self.name, position=position, start=self._reader.position)))

    def _notify(self, listener: Callable[[Event], None], event: Event) -> None:
        try:
            listener(event)
        except Exception as error:  # noqa: BLE001 - see `listen`
            message = f"a listener of {self.name} failed at offset {event.offset}"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def _caught_up(self, end: int) -> None:
        self._end_at_start = end
        self._check_waiting()

    def _check_waiting(self) -> None:
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
        """Note where the verdict will be read: at an offset, or at the next record with the same bytes.

        The thread reports an outcome before it delivers later entries, so the record cannot be missed. An equal record is the same
        proposal: it has the same author and the same view.
        """
        if isinstance(outcome, NotAppended):
            proposal.fail(outcome.error)
        elif self.failure is not None:
            proposal.fail(proposal.unknown(self.failure))
        elif isinstance(outcome, Appended) and outcome.offset < self._reader.position:
            self._lose(proposal, outcome.offset)  # A resync came first.
        elif isinstance(outcome, Appended):
            self._appended[outcome.offset] = proposal
        elif not proposal.verdict.done():
            self._in_doubt[proposal] = None
