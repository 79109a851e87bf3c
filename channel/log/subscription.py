"""Subscribe to a log: tail it and append to it, in a thread that owns the handle.

The thread does not interpret records, and it does not retry appends: the author of a proposal that
was not appended must decide again.

Theory of operation: one turn of the thread
1. Append the queued records as one batch, so that everything queued during the last turn costs one
   commit.
2. Ask the log for its end if anyone wants to read up to it, and read at once, since the next entry
   is usually the one just appended.
3. Pass outcomes and entries to the loop in one call. The outcome of an append comes before its
   entry.
4. Restore from the snapshot if truncation has removed the position, or if the channel was copied to
   this log.
5. Report that the end is reached, after the entries before it.
6. Wait for an entry, or for something to append.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from equipoise.channel.core.errors import (
    BegunAbove,
    Bug,
    ChannelIncomplete,
    EquipoiseError,
    LogTruncated,
    LogUnavailable,
    LogWentBack,
)
from equipoise.channel.core.log import FIRST_OFFSET, Entry, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.log.append_queue import (
    AppendQueue,
    Attempt,
    Done,
    InDoubt,
    NotAppended,
    Settled,
    all_settled,
    append_batch,
)
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.system.clocks import Deadline, boot_ns

FROM_NOTHING: Final = FIRST_OFFSET - 1
"""The position of a subscriber that has read nothing and has no snapshot."""

READ_ENTRIES: Final = 512
"""Entries that the loop gets in one turn: folding them takes about 5 ms. No replay may delay other
work for longer."""

UNDELIVERED_ENTRIES_MAX: Final = 2 * READ_ENTRIES
"""Entries read but not yet taken by the loop: one batch being folded, and the next one."""

BACK_OFF_MS_MIN: Final = 50
BACK_OFF_MS_MAX: Final = 500
"""The pause between attempts to read during an outage, doubled each time. Much shorter than a
lease, and rare enough to spare the log."""

OUTAGE_LOG_INTERVAL_MS: Final = 10_000
"""The least time between two outages that are logged."""

WAIT_MS_MAX: Final = 1_000
"""How long one call waits for the log.

Any event ends the wait, except the closing of the loop, which is noticed after at most this time.
"""

RESYNCS_MAX: Final = 3
"""How often a subscription is restored before it reads an entry again.

A restored reader has at least the ten minutes of log that are always retained. One truncation
during a restore is bad luck. After this many, restoring takes longer than the ten minutes, and the
subscription ends.
"""

COPY_MS_MAX: Final = 60_000
"""How long a subscriber of an empty log waits for the snapshot of a copy, whose genesis record
comes first.

A copy of 100,000 bundles takes under 10 s. After this time the copy has failed, and the
subscription ends.
"""

Argument = TypeVar("Argument")

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The log cannot be read.

    * `since_ns`: when the outage began, by a clock that also runs while the machine sleeps.
    * `error`: the last error of the log.
    """

    since_ns: int
    error: LogUnavailable


class Subscription:
    """One subscription to a log, with its own handle and thread. Its methods and callbacks run on
    the loop that starts it.

    * `deliver` gets the entries in order, each once. An `EquipoiseError` that it raises ends the
      subscription.
    * `caught_up` is called once, when everything has been delivered that was on the log at the
      start. It gets the physical end at that time, which may be a gap.
    * `resynced` gets a reader that `channel.snapshots.restore` made, when entries are missing:
      truncation removed them, or `deliver` raised `BegunAbove` because a channel was copied to an
      empty log. `deliver` goes on from the reader's position. If `restored` raises an error, the
      subscription ends with it.
    * `failed` is called at most once, with what ended the subscription: an `OperatorError` (the log
      is damaged, was replaced or went back), what `deliver` raised, or a `Bug`.

    `LogUnavailable` does not end a subscription: it sets `outage`, and reading is retried for ever
    from the same position.
    """

    def __init__(
        self,
        open_handle: Callable[[], Log],
        *,
        name: str,
        position: int,
        deliver: Callable[[Sequence[Entry]], None],
        caught_up: Callable[[int], None],
        resynced: Callable[[Reader], None],
        failed: Callable[[EquipoiseError], None],
        cluster: str | None = None,
        now_ns: Callable[[], int] = boot_ns,
    ) -> None:
        """Create a subscription. `start` starts its thread.

        * `open_handle`: opens the log. The thread calls it, and closes the handle.
        * `name`: the log's URL, for messages and as the thread's name.
        * `position`: the first offset to deliver. With `FROM_NOTHING`, `resynced` is called first,
          with a reader from the snapshot or from the first record.
        * `cluster`: the cluster that the log must belong to.
        """
        self.name = name
        self._now_ns = now_ns
        # The loop's side.
        # What ended the subscription; None while it runs, or if `stop` ended it.
        self.failure: EquipoiseError | None = None
        self.outage: Outage | None = None  # Set while the log cannot be read.
        self._deliver, self._caught_up, self._resynced, self._failed = (
            deliver,
            caught_up,
            resynced,
            failed,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._awaits_resync = False
        self._has_caught_up = False
        self._askers = deque[tuple[int, asyncio.Future[bool]]]()  # By the number of their question.
        self._logged_outage: Outage | None = None
        self._quiet_until_ns = 0
        # Shared: changed while `_changed` is held.
        self._changed = threading.Condition()
        self._queue = AppendQueue(name)
        self._undelivered = 0
        self._behind = 0
        self._is_leaving = False
        self._is_gone = False
        # How often the loop has asked to read to the end, once for the start, and the number of the
        # last question that was answered.
        self._asked = 1
        self._answered = 0
        # A shared flag: the loop requests a resync into a copy, the thread clears it when done.
        self._awaits_copy = False
        # The thread's side. The loop calls only the handle's `wake`, which is thread-safe.
        self._open_handle = open_handle
        self._log: Log | None = None
        self._cluster = cluster
        self._position = position
        self._resyncs = 0
        # The number of the question under way, and the end of the log at that time.
        self._goal: tuple[int, int] | None = None
        self._read_outage: Outage | None = None
        self._back_off_ms = BACK_OFF_MS_MIN

    # --- on the loop, for the subscriber ---

    def start(self) -> None:
        """Start the thread."""
        assert self._loop is None, "a subscription starts once"
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        # A daemon thread, so that a disk which never answers does not keep the process from ending.
        threading.Thread(target=self._run, name=f"log {self.name}", daemon=True).start()

    @property
    def lag_entries(self) -> int:
        """About how many entries the subscriber has not taken yet, as of the last read. Gaps count
        as entries.
        """
        return self._undelivered + self._behind

    def append(self, data: bytes, done: Done | None = None) -> None:
        """Queue one record. Never blocks. `done` is called on the loop with the outcome, never
        before this returns.

        A refusal (too large, `Overloaded`, an ended subscription) is an outcome, too.
        """
        assert self._loop is not None, "a subscription starts before it is used"
        attempt = Attempt(
            data=data,
            done=None if done is None else partial(self._call, done),
            queued_ns=self._now_ns(),
        )
        with self._changed:
            refusal = (
                (self.failure or self._stopped()) if self._is_gone else self._queue.refusal(data)
            )
            is_first = not self._queue
            if refusal is None:
                self._queue.put(attempt)
                self._changed.notify_all()
        if refusal is not None:
            self._loop.call_soon(attempt.settle, NotAppended(error=refusal))
        elif is_first:  # Otherwise a wake is already under way.
            self._wake()

    def read_on(self) -> asyncio.Future[bool]:
        """Read to the end that the log has now or later. Return whether it is delivered; False if
        the log cannot be read.

        Callers share one question to the log if none of them came after it was put.
        """
        assert self._loop is not None, "a subscription starts before it is used"
        answer: asyncio.Future[bool] = self._loop.create_future()
        if self.outage is not None or self._is_gone:
            answer.set_result(False)
            return answer
        with self._changed:
            # Otherwise the thread looks again before it waits.
            may_wait = self._asked == self._answered
            self._asked += 1
        self._askers.append((self._asked, answer))
        if may_wait:
            self._wake()
        return answer

    async def stop(self, deadline: Deadline) -> None:
        """End the subscription and close the handle. Queued records get `NotAppended`.

        Raises `DeadlineExceeded` if the log blocks the thread for longer; the subscription then
        ends when the log returns.
        """
        if self._ended is None:
            return
        self._leave()
        await deadline.wait(
            asyncio.shield(self._ended), what=f"the end of the thread of {self.name}"
        )

    def _leave(self) -> None:
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        if self._log is not None:
            self._log.wake()

    def _stopped(self) -> LogUnavailable:
        return LogUnavailable(
            log=self.name, problem="this process no longer uses it", in_doubt=False
        )

    # --- on the loop, for the thread ---

    def _take(self, settled: Sequence[Settled], entries: Sequence[Entry]) -> None:
        """Take the results of one turn. After a failure, outcomes still count and entries do
        not.
        """
        try:
            for attempt, outcome in settled:
                attempt.settle(outcome)
            if entries and self.failure is None and not self._awaits_resync:
                self._call(self._deliver, entries)
        finally:
            with self._changed:
                self._undelivered -= len(entries)
                self._changed.notify_all()

    def _take_goal(self, number: int, end: int) -> None:
        """Take that everything up to `end` was delivered, which is as far as the question `number`
        and those before it want.
        """
        if self._awaits_resync:
            with self._changed:
                self._asked += 1  # The entries were not folded; the thread asks again.
        elif self.failure is None:
            if not self._has_caught_up:
                self._has_caught_up = True
                self._call(self._caught_up, end)
            self._answer_askers(number, is_reached=True)

    def _answer_askers(self, number: int, *, is_reached: bool) -> None:
        while self._askers and self._askers[0][0] <= number:
            answer = self._askers.popleft()[1]
            if not answer.done():
                answer.set_result(is_reached)

    def _take_resync(self, reader: Reader) -> None:
        self._awaits_resync = False
        if self.failure is None:
            self._call(self._resynced, reader)

    def _take_outage(self, outage: Outage | None) -> None:
        """Set or clear the outage. Log its beginning and its end, at most once per
        `OUTAGE_LOG_INTERVAL_MS`.
        """
        self.outage = outage
        if outage is not None:
            self._answer_askers(self._asked, is_reached=False)
        now_ns = self._now_ns()
        if outage is None and self._logged_outage is not None:
            outage_ms = (now_ns - self._logged_outage.since_ns) // 1_000_000
            _logger.info("the log can be read again: %s", self.name, extra={"outage_ms": outage_ms})
            self._logged_outage = None
        elif outage is not None and self._logged_outage is None and now_ns >= self._quiet_until_ns:
            _logger.warning("the log cannot be read: %s", outage.error)
            self._logged_outage, self._quiet_until_ns = (
                outage,
                now_ns + OUTAGE_LOG_INTERVAL_MS * 1_000_000,
            )

    def _take_end(self, failure: EquipoiseError | None) -> None:
        if failure is not None:
            self._fail(failure)
        self._answer_askers(self._asked, is_reached=False)
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)

    def _call(self, callback: Callable[[Argument], None], argument: Argument) -> None:
        """Call the subscriber. An error ends the subscription, except `BegunAbove`, which triggers
        a resync.
        """
        try:
            callback(argument)
        except BegunAbove:  # Skip what is on its way: the new reader covers it.
            self._awaits_resync = self._awaits_copy = True
            self._wake()
        except EquipoiseError as error:
            self._fail(error)
        # After any error the subscriber has missed something and must not go on.
        except Exception as error:  # noqa: BLE001
            self._fail(_bug(self.name, error))

    def _fail(self, error: EquipoiseError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self._leave()
        try:
            self._failed(error)
        # The subscription has failed already, and must still end.
        except Exception as raised:  # noqa: BLE001
            assert self._loop is not None
            message = f"the failure callback of a subscription to {self.name} failed"
            self._loop.call_exception_handler({"message": message, "exception": raised})

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
        # A thread that dies silently is a broker that hangs.
        except Exception as error:  # noqa: BLE001
            failure = _bug(self.name, error)
        with self._changed:
            self._is_gone = True
        self._refuse_queued(failure or self._stopped())
        self._post(self._take_end, failure)

    def _tail(self) -> None:
        assert self._loop is not None
        # Closing the loop does not wake this thread.
        while not (self._is_leaving or self._loop.is_closed()):
            try:
                self._turn()
            except LogUnavailable as error:
                self._set_outage(
                    Outage(
                        since_ns=self._read_outage.since_ns
                        if self._read_outage
                        else self._now_ns(),
                        error=error,
                    )
                )
                if self._log is None:
                    self._refuse_queued(error)
                self._pause(self._back_off_ms)
                self._back_off_ms = min(2 * self._back_off_ms, BACK_OFF_MS_MAX)

    def _turn(self) -> None:
        """Run one turn (see the module docstring). Raises what reading the log raises, and what
        ends the subscription.
        """
        log = self._log or self._opened()
        settled = self._append_queued(log)  # 1.
        has_room = self._has_room()
        entries: Sequence[Entry] = ()
        is_cut_off = self._awaits_copy
        try:
            if has_room and not is_cut_off:
                self._aim(log)  # 2.
                entries = self._read(log)
        except LogTruncated:
            is_cut_off = True
        finally:
            self._hand_over(settled, entries)  # 3.
        if not has_room:
            self._await_room()
            return
        if is_cut_off:
            self._restore(log)  # 4.
        self._set_outage(None)
        self._back_off_ms = BACK_OFF_MS_MIN
        self._check_goal(is_end=not entries and not is_cut_off)  # 5.
        if self._may_wait():
            _wait(log, self._position, timeout_ms=WAIT_MS_MAX)  # 6.

    def _opened(self) -> Log:
        log = self._open_handle()
        # Set this before checking the state that the loop changes, so that a later change finds a
        # handle to wake.
        self._log = log
        return log

    def _append_queued(self, log: Log) -> Sequence[Settled]:
        if not self._queue:
            return ()
        with self._changed:
            batch = self._queue.take_batch()
        try:
            return append_batch(log, batch, now_ns=self._now_ns())
        except Exception as error:
            # This ends the thread, so the authors get their outcome now or never.
            problem = f"the append failed with {type(error).__name__}: {error}"
            self._hand_over(
                all_settled(batch, InDoubt(error=LogUnavailable(log=self.name, problem=problem))),
                (),
            )
            raise

    def _aim(self, log: Log) -> None:
        """Take the next question, and only then ask for the end: all that its askers know lies
        below.
        """
        if self._goal is None and self._asked != self._answered:
            number = self._asked
            self._goal = number, log.end()

    def _read(self, log: Log) -> Sequence[Entry]:
        entries = log.read(self._position, limit=READ_ENTRIES)
        if entries:
            # Look up the end only after a full read: otherwise the read reached it.
            self._behind = log.end() - entries[-1].offset if len(entries) == READ_ENTRIES else 0
        return entries

    def _hand_over(self, settled: Sequence[Settled], entries: Sequence[Entry]) -> None:
        if entries:
            self._position = entries[-1].offset + 1
            self._resyncs = 0
            with self._changed:
                self._undelivered += len(entries)
        if settled or entries:
            self._post(self._take, settled, entries)

    def _restore(self, log: Log) -> None:
        """Restore the subscriber from the channel's snapshot. Raises `LogUnavailable`, and what
        ends the subscription.
        """
        if self._resyncs == RESYNCS_MAX:
            raise LogTruncated(log=self.name, position=self._position, start=log.start())
        try:
            reader = restored(log, cluster=self._cluster, check=self._check_wanted)
        except CancelledError:
            return
        except LogTruncated:
            self._resyncs += 1  # Truncated again during the restore.
        except ChannelIncomplete as error:
            if self._awaits_copy and not self._outage_exceeds(COPY_MS_MAX):
                raise LogUnavailable(
                    log=self.name, problem="a channel is being copied to it", in_doubt=False
                ) from error
            raise
        else:
            self._resyncs += 1
            self._position, self._awaits_copy = reader.position, False
            self._post(self._take_resync, reader)

    def _outage_exceeds(self, duration_ms: int) -> bool:
        return (
            self._read_outage is not None
            and self._now_ns() - self._read_outage.since_ns >= duration_ms * 1_000_000
        )

    def _check_wanted(self) -> None:
        """Abort a restore if the subscriber has left."""
        if self._is_leaving:
            raise CancelledError

    def _check_goal(self, *, is_end: bool) -> None:
        """Report the goal if it is reached. `is_end`: there was nothing to read. The end itself may
        be a gap.
        """
        if self._goal is None or self._is_leaving or self._awaits_copy:
            return
        number, end = self._goal
        if is_end or self._position > end:
            self._goal = None
            with self._changed:
                self._answered = number
            self._post(self._take_goal, number, end)

    def _may_wait(self) -> bool:
        with self._changed:
            return not self._is_wanted()

    def _refuse_queued(self, error: EquipoiseError) -> None:
        with self._changed:
            refused = self._queue.drain()
        self._hand_over(all_settled(refused, NotAppended(error=error)), ())

    def _set_outage(self, outage: Outage | None) -> None:
        if outage is not self._read_outage:
            self._read_outage = outage
            self._post(self._take_outage, outage)

    def _has_room(self) -> bool:
        return self._undelivered + READ_ENTRIES <= UNDELIVERED_ENTRIES_MAX

    def _is_wanted(self) -> bool:
        """Return whether there is work that needs no entry. The caller holds `_changed`."""
        return (
            bool(self._queue)
            or self._is_leaving
            or self._awaits_copy
            or self._asked != self._answered
        )

    def _pause(self, pause_ms: int) -> None:
        """Pause, unless there is something to append: the log may accept appends while reads
        fail.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue) or self._is_leaving, pause_ms / 1_000)

    def _await_room(self) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._queue) or self._is_leaving or self._has_room(),
                WAIT_MS_MAX / 1_000,
            )

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the loop. Does nothing if the loop is closed."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)


def _wait(log: Log, position: int, *, timeout_ms: int) -> None:
    """Wait for something to read, also for the error of the following read at a position that
    cannot be read.
    """
    with suppress(LogTruncated, LogWentBack):
        log.wait(position, timeout_ms=timeout_ms)


def _bug(log: str, error: Exception) -> Bug:
    bug = Bug(
        f"following the log {log} failed with {type(error).__name__}: {error}; please report it"
    )
    bug.__cause__ = error
    return bug
