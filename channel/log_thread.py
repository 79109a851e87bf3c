"""The one thread of a process that owns a `Log` handle: it tails the log and appends to it, for a host in an asyncio loop.

May live here: `LogThread`, the outcomes that it reports, and its bounds. What a record means is its host's business; so is
trying an append again, because a proposal that was not appended must be decided anew.

A turn of the thread
1. Append what is queued, as one batch: all that came during the last turn pays for one commit.
2. Read on, at once, because the next entry is most often the one just appended.
3. Hand the outcomes and the entries to the loop in one call. An outcome comes before the entry that it is about.
4. Wait for an entry or for something to append, whichever comes first.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from channel.deadline import Deadline
from channel.errors import AppendTooLarge, Bug, EquipoiseError, LogUnavailable, Overloaded
from channel.log import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, Entry, Log, check_batch

READ_ENTRIES: Final = 512
"""Entries that the loop gets in one turn: about 5 ms of folding, which is what a replay may hold its other work up."""

UNDELIVERED_ENTRIES_MAX: Final = 2 * READ_ENTRIES
"""Entries read and not yet taken by the loop: while it folds one batch the next is read. More would only fill the memory."""

APPENDS_QUEUED_MAX: Final = 2 * BATCH_ENTRIES_MAX
"""Attempts that wait for the log: what the next batch takes, and as many again while that one is under way."""

APPENDS_QUEUED_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""Bytes of the attempts that wait: as above."""

APPEND_MS_MAX: Final = 500
"""How long an append waits for other writers, and tailing with it. Four busy writers keep one another for 50 ms, so after
500 ms one of them is stopped; and of a lease of 3 s enough is left to decide anew."""

ATTEMPT_AGE_MS_MAX: Final = 2 * APPEND_MS_MAX
"""How old an attempt may be when its append begins: it waits for one append that times out, and one slow read. An older one
was overtaken by an outage, or by the machine's sleep, and must not speak as if it were decided now."""

BACK_OFF_MS_MIN: Final = 50
BACK_OFF_MS_MAX: Final = 500
"""The pause between two attempts to read during an outage, doubled each time: short against a lease, cheap for a log that
is struggling back to its feet."""

WAIT_MS_MAX: Final = 1_000
"""How long the thread waits for the log in one call; a bound for its own sake, since what happens ends the wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The record stands on the log at `offset`, a physical one."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAppended:
    """The record is not on the log, and never will be by this attempt."""

    error: EquipoiseError


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """The record may be on the log, or appear there later; only reading on tells."""

    error: LogUnavailable


AppendOutcome = Appended | NotAppended | InDoubt
Done = Callable[[AppendOutcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The log cannot be read: since when (of the clock that runs on while the machine sleeps), and what it last said."""

    since_ns: int
    error: LogUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    data: bytes
    done: Done | None
    queued_ns: int

    def settle(self, outcome: AppendOutcome) -> None:
        """Tell who asked; on the loop."""
        if self.done is not None:
            self.done(outcome)


_Settled = tuple[_Attempt, AppendOutcome]


# Linux has a clock that runs on while the machine sleeps. Elsewhere the monotonic one is the nearest there is, and for a lease
# the comparison with the wall clock is what notices a sleep.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Nanoseconds of a clock that runs on while the machine sleeps, where the system has one."""
    return time.clock_gettime_ns(_BOOT_CLOCK)


class LogThread:
    """Tails the log from `position` on and appends to it. Its methods, and the functions that it was given, run on the loop.

    `deliver` gets entries in order, each once. An `EquipoiseError` that it raises ends the thread, as it ends a reader.
    `caught_up` is called once, when all has been delivered that was there at the start, with the physical end at that time;
    nothing may stand at that very offset. `failed` is called at most once, with what ended the thread: an `OperatorError`
    (the log is damaged, replaced, went back), `LogTruncated`, what `deliver` raised, or a `Bug`.

    `LogUnavailable` is no end: `outage` says that it is so, reading is tried again for ever, and goes on where it was.
    """

    def __init__(
        self,
        open_handle: Callable[[], Log],
        *,
        name: str,
        position: int,
        deliver: Callable[[Sequence[Entry]], None],
        caught_up: Callable[[int], None],
        failed: Callable[[EquipoiseError], None],
        now_ns: Callable[[], int] = boot_ns,
    ) -> None:
        """`open_handle` makes the handle, within the thread; `name` is the log's URL, for messages and for the thread."""
        # The host's side: touched on the loop only.
        self.name = name
        self.outage: Outage | None = None
        self.failure: EquipoiseError | None = None
        self._deliver = deliver
        self._caught_up = caught_up
        self._failed = failed
        self._now_ns = now_ns
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        # Between both: changed while `_changed` is held.
        self._changed = threading.Condition()
        self._queue: deque[_Attempt] = deque()
        self._queued_bytes = 0
        self._undelivered = 0
        self._stopping = False
        self._closed = False
        # The thread's side. The loop only calls the handle's `wake`, which any thread may.
        self._open_handle = open_handle
        self._log: Log | None = None
        self._position = position
        self._end_at_start: int | None = None
        self._is_caught_up = False
        self._outage: Outage | None = None
        self._back_off_ms = BACK_OFF_MS_MIN
        self._behind = 0

    # --- on the loop ---

    @property
    def lag_entries(self) -> int:
        """About how many entries of the log the loop has not taken yet, as of the last read; gaps count as entries."""
        with self._changed:
            return self._undelivered + self._behind

    def start(self) -> None:
        """Begin; within the loop that the host runs in."""
        assert self._loop is None, "a log thread starts once"
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        # A daemon, so that a disk which never answers does not keep the process from ending.
        threading.Thread(target=self._run, name=f"log {self.name}", daemon=True).start()

    async def stop(self, deadline: Deadline) -> None:
        """End the thread and close its handle. What is queued is answered `NotAppended`.

        Raises `DeadlineExceeded` if the log keeps the thread for longer; it ends when the log lets it go.
        """
        if self._ended is None:
            return
        self._halt()
        await deadline.wait(asyncio.shield(self._ended), what=f"the end of the thread of {self.name}")

    def append(self, data: bytes, done: Done | None = None) -> None:
        """Queue one record; never blocks. `done` is called on the loop with its outcome, never before this returns.

        What is not taken (`AppendTooLarge`, `Overloaded`, a thread that has ended) is an outcome like any other.
        """
        assert self._loop is not None, "a log thread is started before it is used"
        attempt = _Attempt(data=data, done=done, queued_ns=self._now_ns())
        with self._changed:
            refusal = self._refusal(data)
            is_first = not self._queue
            if refusal is None:
                self._queue.append(attempt)
                self._queued_bytes += len(data)
                self._changed.notify_all()
        if refusal is not None:
            self._loop.call_soon(attempt.settle, NotAppended(error=refusal))
        elif is_first and self._log is not None:  # Otherwise a wake is already under way.
            self._log.wake()

    def _refusal(self, data: bytes) -> EquipoiseError | None:
        """Why a record cannot be queued; `_changed` is held."""
        if self._closed:
            return self.failure or self._stopped()
        try:
            check_batch(self.name, [data])
        except AppendTooLarge as error:
            return error
        if len(self._queue) >= APPENDS_QUEUED_MAX or self._queued_bytes + len(data) > APPENDS_QUEUED_BYTES_MAX:
            return Overloaded(what=f"the queue of appends to {self.name}", limit=len(self._queue))
        return None

    def _stopped(self) -> LogUnavailable:
        return LogUnavailable(log=self.name, problem="this process no longer uses it", in_doubt=False)

    def _halt(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._log is not None:
            self._log.wake()

    def _take(self, settled: Sequence[_Settled], entries: Sequence[Entry]) -> None:
        """What one turn of the thread brought. After a failure outcomes still count, and entries no longer do."""
        try:
            for attempt, outcome in settled:
                attempt.settle(outcome)
            if entries and self.failure is None:
                self._deliver(entries)
        except EquipoiseError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, this host has missed entries and must not go on
            self._fail(_bug(self.name, error))
        finally:
            with self._changed:
                self._undelivered -= len(entries)
                self._changed.notify_all()

    def _take_end_at_start(self, end: int) -> None:
        if self.failure is None:
            self._caught_up(end)

    def _take_outage(self, outage: Outage | None) -> None:
        self.outage = outage

    def _take_end(self, failure: EquipoiseError | None) -> None:
        if failure is not None:
            self._fail(failure)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: EquipoiseError) -> None:
        if self.failure is None:
            self.failure = error
            self._halt()
            self._failed(error)

    # --- in the thread ---

    def _run(self) -> None:
        failure: EquipoiseError | None = None
        try:
            try:
                self._tail()
            finally:
                if self._log is not None:
                    self._log.close()
        except EquipoiseError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a thread that dies silently is a broker that hangs
            failure = _bug(self.name, error)
        with self._changed:
            self._closed = True
        self._refuse_queued(failure or self._stopped())
        self._post(self._take_end, failure)

    def _tail(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except LogUnavailable as error:
                self._set_outage(Outage(since_ns=self._outage.since_ns if self._outage else self._now_ns(), error=error))
                if self._log is None:
                    self._refuse_queued(error)
                self._pause(self._back_off_ms)
                self._back_off_ms = min(2 * self._back_off_ms, BACK_OFF_MS_MAX)

    def _turn(self) -> None:
        """One turn, as the head of this module tells it. Raises what the log raises in reading."""
        log = self._log or self._opened()
        if self._end_at_start is None:
            self._end_at_start = log.end()
        settled = self._append_queued(log)  # 1.
        entries: Sequence[Entry] = ()
        behind = 0
        limit = min(READ_ENTRIES, UNDELIVERED_ENTRIES_MAX - self._undelivered)
        try:
            if limit > 0:
                entries, behind = self._read(log, limit)  # 2.
        finally:
            self._hand_over(settled, entries, behind)  # 3.
        if limit <= 0:
            self._await_room()
            return
        self._set_outage(None)
        self._back_off_ms = BACK_OFF_MS_MIN
        may_wait = self._is_caught_up and not self._queue
        there = log.wait(self._position, timeout_ms=WAIT_MS_MAX if may_wait else 0)  # 4.
        if not self._is_caught_up and (not there or self._position > self._end_at_start):
            self._is_caught_up = True
            self._post(self._take_end_at_start, self._end_at_start)

    def _opened(self) -> Log:
        log = self._open_handle()
        # Before the queue is looked at, so that an append which comes after that look finds something to wake.
        self._log = log
        return log

    def _read(self, log: Log, limit: int) -> tuple[Sequence[Entry], int]:
        """The next entries, and how far behind them the log's end is: looked up only if the read came back full."""
        entries = log.read(self._position, limit=limit)
        return entries, log.end() - entries[-1].offset if len(entries) == limit else 0

    def _append_queued(self, log: Log) -> list[_Settled]:
        """Append the oldest of what is queued as one batch; too old an attempt is refused instead."""
        batch: list[_Attempt] = []
        settled: list[_Settled] = []
        batch_bytes = 0
        oldest_ns = self._now_ns() - ATTEMPT_AGE_MS_MAX * 1_000_000
        with self._changed:
            while self._queue and len(batch) < BATCH_ENTRIES_MAX and batch_bytes + len(self._queue[0].data) <= BATCH_BYTES_MAX:
                attempt = self._queue.popleft()
                self._queued_bytes -= len(attempt.data)
                if attempt.queued_ns < oldest_ns:
                    settled.append((attempt, NotAppended(error=self._too_old())))
                else:
                    batch.append(attempt)
                    batch_bytes += len(attempt.data)
        if batch:
            settled += zip(batch, self._outcomes(log, batch), strict=True)
        return settled

    def _outcomes(self, log: Log, batch: Sequence[_Attempt]) -> Sequence[AppendOutcome]:
        try:
            offsets = log.append([attempt.data for attempt in batch], timeout_ms=APPEND_MS_MAX)
        except LogUnavailable as error:
            outcome = InDoubt(error=error) if error.in_doubt else NotAppended(error=error)
        except EquipoiseError as error:
            outcome = NotAppended(error=error)
        else:
            return [Appended(offset=offset) for offset in offsets]
        return [outcome] * len(batch)

    def _too_old(self) -> LogUnavailable:
        return LogUnavailable(log=self.name, problem=f"the record waited for more than {ATTEMPT_AGE_MS_MAX} ms", in_doubt=False)

    def _refuse_queued(self, error: EquipoiseError) -> None:
        with self._changed:
            queued = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
        self._hand_over([(attempt, NotAppended(error=error)) for attempt in queued], ())

    def _hand_over(self, settled: Sequence[_Settled], entries: Sequence[Entry], behind: int = 0) -> None:
        if not settled and not entries:
            return
        if entries:
            self._position = entries[-1].offset + 1
            with self._changed:
                self._undelivered += len(entries)
                self._behind = behind
        self._post(self._take, settled, entries)

    def _set_outage(self, outage: Outage | None) -> None:
        if outage is not self._outage:
            self._outage = outage
            self._post(self._take_outage, outage)

    def _pause(self, pause_ms: int) -> None:
        """Let some time pass, but not if there is something to append: the log may take it even if it cannot be read."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._queue, pause_ms / 1_000)

    def _await_room(self) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopping or self._queue or self._undelivered < UNDELIVERED_ENTRIES_MAX, WAIT_MS_MAX / 1_000
            )

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the loop. A loop that has ended without stopping this thread takes it along."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            self._stopping = True


def _bug(log: str, error: Exception) -> Bug:
    """Our error for one that nobody foresaw, with that one as its cause."""
    bug = Bug(f"following the log {log} met {type(error).__name__}: {error}; please report it")
    bug.__cause__ = error
    return bug
