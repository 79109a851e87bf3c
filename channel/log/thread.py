"""Tail and append to a log in one thread that owns the handle, for all subscribers in one asyncio loop.

The thread does not interpret records, and it does not retry appends: a proposal that was not appended must be decided anew.

Theory of operation: one turn of the thread
1. Append the records queued by all subscribers as one batch, so that everything queued during the last turn costs one commit.
2. Read at once, since the next entry is usually the one just appended. Read once per position at which subscribers are; at the log's end
   one read serves them all.
3. Pass outcomes and entries to the loop in one call. An outcome comes before the entry that it is about.
4. Restore one subscriber that truncation or a copy has cut off. Only one, so that the others get a turn in between.
5. Wait for an entry, or for something to append.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from equipoise.channel.core.errors import BegunAbove, Bug, ChannelIncomplete, EquipoiseError, LogTruncated, LogUnavailable, LogWentBack
from equipoise.channel.core.log import Entry, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.log.append_queue import AppendQueue, Attempt, Done, InDoubt, NotAppended, next_batch
from equipoise.channel.log.appending import Settled, all_settled, appended
from equipoise.channel.log.seat import Outage, Place
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.system.boot_clock import boot_ns

READ_ENTRIES: Final = 512
"""Entries that the loop gets in one turn, counted once per subscriber.

That is about 5 ms of folding, the longest that a replay may delay other work. With more subscribers than that, each gets one entry.
"""

UNDELIVERED_ENTRIES_MAX: Final = 2 * READ_ENTRIES
"""Entries read but not yet taken by the loop: one batch being folded, and the next one.

One bound covers all subscribers, since they wait for the same loop.
"""

BACK_OFF_MS_MIN: Final = 50
BACK_OFF_MS_MAX: Final = 500
"""The pause between attempts to read during an outage, doubled each time. Short against a lease, cheap for a log that recovers."""

TOLD_AGAIN_MS: Final = 10_000
"""The least time between two outages that are logged."""

WAIT_MS_MAX: Final = 1_000
"""How long one call waits for the log.

Any event ends the wait, except the closing of the loop, which is noticed after at most this time.
"""

RESYNCS_MAX: Final = 3
"""How often a subscriber is restored before it reads an entry again.

A restored reader has at least the ten minutes of log that are always retained. A second truncation is bad luck; a third means that
restoring takes longer than ten minutes.
"""

COPY_MS_MAX: Final = 60_000
"""How long subscribers of an empty log wait for the snapshot of a copy, whose genesis record comes first.

A copy of 100,000 bundles takes under 10 s. After this time the copy has failed, and the subscriptions end.
"""

Argument = TypeVar("Argument")

_logger: Final = logging.getLogger(__name__)


class _Taken(NamedTuple):
    """Entries for all `places` at one position, and how far the log's end is beyond them."""

    places: Sequence[Place]
    entries: Sequence[Entry]
    behind: int


class LogThread:
    """Tails a log and appends to it for its subscribers. It starts with the first subscriber and ends with the last.

    A fault of the log ends all subscriptions. These faults end one subscription only: an error raised by its host, a position beyond the
    log's end, and a truncated position that cannot be restored.
    """

    def __init__(self, open_handle: Callable[[], Log], *, name: str, now_ns: Callable[[], int] = boot_ns) -> None:
        """`open_handle` opens the handle, within the thread. `name` is the log's URL, for messages and as the thread's name."""
        # The loop's side.
        self.name = name
        self.outage: Outage | None = None
        self._told_outage: Outage | None = None
        self._quiet_until_ns = 0
        self._now_ns = now_ns
        self._loop: asyncio.AbstractEventLoop | None = None
        # Shared: changed while `_changed` is held.
        self._changed = threading.Condition()
        self._places: tuple[Place, ...] = ()
        self._waiting: deque[AppendQueue] = deque()  # The non-empty queues, in the order of their turns.
        self._closed = False
        # The thread's side. The loop calls only the handle's `wake`, which is thread-safe.
        self._open_handle = open_handle
        self._log: Log | None = None
        self._outage: Outage | None = None
        self._back_off_ms = BACK_OFF_MS_MIN

    # --- on the loop, for subscriptions ---

    def admit(self, place: Place) -> bool:
        """Add a subscriber, and start the thread with the first. Return False if the thread has ended or is about to."""
        loop = asyncio.get_running_loop()
        assert self._loop in (None, loop), "a thread serves one loop"
        with self._changed:
            if self._closed:
                return False
            self._places = (*self._places, place)
            place.ended = loop.create_future()
            self._changed.notify_all()
        if self._loop is None:
            self._loop = loop
            # A daemon thread, so that a disk which never answers does not keep the process from ending.
            threading.Thread(target=self._run, name=f"log {self.name}", daemon=True).start()
        else:
            self._wake()
        return True

    def queue(self, place: Place, data: bytes, done: Done | None) -> None:
        """Queue one record; see `LogSeat.append`."""
        assert self._loop is not None
        attempt = Attempt(data=data, done=None if done is None else partial(self._tell, place, done), queued_ns=self._now_ns())
        with self._changed:
            refusal = (place.failure or self._stopped()) if place.is_gone else place.queue.refusal(data)
            is_first = not self._waiting
            if refusal is None:
                if not place.queue:
                    self._waiting.append(place.queue)
                place.queue.put(attempt)
                self._changed.notify_all()
        if refusal is not None:
            self._loop.call_soon(attempt.settle, NotAppended(error=refusal))
        elif is_first:  # Otherwise a wake is already under way.
            self._wake()

    def leave(self, place: Place) -> None:
        """Ask the thread to release a subscriber. `place.ended` is set when it has."""
        with self._changed:
            place.is_leaving = True
            self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        if self._log is not None:
            self._log.wake()

    def _stopped(self) -> LogUnavailable:
        return LogUnavailable(log=self.name, problem="this process no longer uses it", in_doubt=False)

    # --- on the loop, for the thread ---

    def _take(self, settled: Sequence[Settled], read: Sequence[_Taken]) -> None:
        """Take the results of one turn. After a failure, outcomes still count and entries do not."""
        try:
            for attempt, outcome in settled:
                attempt.settle(outcome)
            for places, entries, _ in read:
                for place in places:
                    if place.failure is None and not place.awaits_resync:
                        self._tell(place, place.deliver, entries)
        finally:
            with self._changed:
                for places, entries, _ in read:
                    for place in places:
                        place.undelivered -= len(entries)
                self._changed.notify_all()

    def _take_caught_up(self, place: Place, end: int) -> None:
        if place.awaits_resync:
            place.is_caught_up = False  # Its entries were not folded; the thread checks again.
        elif place.failure is None:
            self._tell(place, place.caught_up, end)

    def _take_resync(self, place: Place, reader: Reader) -> None:
        place.awaits_resync = False
        if place.failure is None:
            self._tell(place, place.resynced, reader)

    def _take_outage(self, outage: Outage | None) -> None:
        self._tell_of_outage(outage)
        self.outage = outage

    def _tell_of_outage(self, outage: Outage | None) -> None:
        """Log the beginning and the end of an outage, at most once per `TOLD_AGAIN_MS`."""
        now_ns = self._now_ns()
        if outage is None and self._told_outage is not None:
            outage_ms = (now_ns - self._told_outage.since_ns) // 1_000_000
            _logger.info("the log can be read again: %s", self.name, extra={"outage_ms": outage_ms})
            self._told_outage = None
        elif outage is not None and self._told_outage is None and now_ns >= self._quiet_until_ns:
            _logger.warning("the log cannot be read: %s", outage.error)
            self._told_outage, self._quiet_until_ns = outage, now_ns + TOLD_AGAIN_MS * 1_000_000

    def _take_end(self, place: Place, failure: EquipoiseError | None) -> None:
        if failure is not None:
            self._fail(place, failure)
        if place.ended is not None and not place.ended.done():
            place.ended.set_result(None)

    def _tell(self, place: Place, call: Callable[[Argument], None], argument: Argument) -> None:
        """Call one host. An error ends its subscription only, except `BegunAbove`, which triggers a resync."""
        try:
            call(argument)
        except BegunAbove:  # Skip what is on its way: the new reader covers it.
            place.awaits_resync = place.is_cut_off = True
            self._wake()
        except EquipoiseError as error:
            self._fail(place, error)
        except Exception as error:  # noqa: BLE001 - after any error this host has missed something and must not go on
            self._fail(place, _bug(self.name, error))

    def _fail(self, place: Place, error: EquipoiseError) -> None:
        if place.failure is not None:
            return
        place.failure = error
        self.leave(place)
        try:
            place.failed(error)
        except Exception as raised:  # noqa: BLE001 - it has failed already, and other hosts must be notified
            assert self._loop is not None
            message = f"a follower of {self.name} failed when it was told of its end"
            self._loop.call_exception_handler({"message": message, "exception": raised})

    # --- in the thread ---

    def _run(self) -> None:
        failure: EquipoiseError | None = None
        try:
            try:
                self._tail()
            finally:
                with self._changed:
                    self._closed = True  # Before the handle is closed, so that nobody joins a closing thread.
                if self._log is not None:
                    self._log.close()
        except EquipoiseError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a thread that dies silently is a broker that hangs
            failure = _bug(self.name, error)
        self._dismiss(self._places, failure)

    def _tail(self) -> None:
        while places := self._staying():
            try:
                self._turn(places)
            except LogUnavailable as error:
                self._set_outage(Outage(since_ns=self._outage.since_ns if self._outage else self._now_ns(), error=error))
                if self._log is None:
                    self._refuse(places, error)
                self._pause(self._back_off_ms)
                self._back_off_ms = min(2 * self._back_off_ms, BACK_OFF_MS_MAX)

    def _staying(self) -> tuple[Place, ...]:
        """Release leaving subscribers and return the others. If none stays, close the thread under the same lock.

        Closing the loop wakes nobody, so this also checks for a closed loop, which releases all.
        """
        assert self._loop is not None
        is_over = self._loop.is_closed()
        with self._changed:
            leaving = tuple(place for place in self._places if place.is_leaving or is_over)
            if len(leaving) == len(self._places):
                self._closed = True
                return ()
            if leaving:
                self._places = tuple(place for place in self._places if not place.is_leaving)
            staying = self._places
        self._dismiss(leaving, None)
        return staying

    def _turn(self, places: tuple[Place, ...]) -> None:
        """Run one turn (see the module docstring). Raises what reading the log raises."""
        log = self._log or self._opened()
        settled = self._append_queued(log)  # 1.
        has_room = self._has_room()
        read: list[_Taken] = []
        cut_off: list[Place] = []
        try:
            if has_room:
                self._read(log, places, read, cut_off)  # 2.
        finally:
            self._hand_over(settled, read)  # 3.
        if not has_room:
            self._await_room()
            return
        if cut_off:
            self._restore(log, cut_off[0])  # 4.
        self._set_outage(None)
        self._back_off_ms = BACK_OFF_MS_MIN
        self._look_who_caught_up(log, places)
        if self._may_wait(places):
            _is_there(log, min(place.position for place in places), timeout_ms=WAIT_MS_MAX)  # 5.

    def _opened(self) -> Log:
        log = self._open_handle()
        # Set this before checking the state that the loop changes, so that a later change finds a handle to wake.
        self._log = log
        return log

    def _read(self, log: Log, places: Sequence[Place], read: list[_Taken], cut_off: list[Place]) -> None:
        """Read once per position, highest first. Subscribers at the log's end leave their unused share to those behind.

        Fills `read` as it goes, since entries read before an error count, and `cut_off` with subscribers whose position is gone.
        """
        at: dict[int, list[Place]] = {}
        for place in places:
            if place.end_at_start is None:
                place.end_at_start = log.end()
            if place.is_cut_off:
                cut_off.append(place)
            else:
                at.setdefault(place.position, []).append(place)
        left, sharing = READ_ENTRIES, len(places)
        for position in sorted(at, reverse=True):
            limit = max(1, left // sharing)
            try:
                entries = log.read(position, limit=limit)
            except LogWentBack as error:  # Only this position is affected.
                self._turn_out(at[position], error)
                continue
            except LogTruncated:
                cut_off += at[position]
                continue
            if entries:
                # Look up the end only after a full read: otherwise the read reached it.
                behind = log.end() - entries[-1].offset if len(entries) == limit else 0
                read.append(_Taken(places=at[position], entries=entries, behind=behind))
            left -= len(entries) * len(at[position])
            sharing -= len(at[position])

    def _restore(self, log: Log, place: Place) -> None:
        """Restore a cut-off subscriber from the channel's snapshot. Raises `LogUnavailable`."""
        if place.resyncs == RESYNCS_MAX:
            self._turn_out([place], LogTruncated(log=self.name, position=place.position, start=log.start()))
            return
        try:
            reader = restored(log, cluster=place.cluster, check=partial(self._go_on_restoring, place))
        except _NobodyWantsItError:
            return
        except LogUnavailable:
            raise
        except LogTruncated:
            place.resyncs += 1  # Truncated again during the restore.
        except EquipoiseError as error:
            if place.is_cut_off and isinstance(error, ChannelIncomplete) and not self._outage_exceeds(COPY_MS_MAX):
                raise LogUnavailable(log=self.name, problem="a channel is just being copied to it", in_doubt=False) from error
            self._turn_out([place], error)
        else:
            place.resyncs += 1
            place.position, place.is_cut_off = reader.position, False
            self._post(self._take_resync, place, reader)

    def _outage_exceeds(self, duration_ms: int) -> bool:
        return self._outage is not None and self._now_ns() - self._outage.since_ns >= duration_ms * 1_000_000

    def _go_on_restoring(self, place: Place) -> None:
        """Abort a restore if its host has left."""
        if place.is_leaving:
            raise _NobodyWantsItError

    def _look_who_caught_up(self, log: Log, places: Sequence[Place]) -> None:
        for place in places:
            if place.is_caught_up or place.is_leaving or place.is_cut_off:
                continue
            end = place.end_at_start
            assert end is not None, "a place has been read for"
            if place.position > end or not _is_there(log, place.position, timeout_ms=0):
                place.is_caught_up = True
                self._post(self._take_caught_up, place, end)

    def _may_wait(self, places: tuple[Place, ...]) -> bool:
        """Return whether there is nothing to do. Call it after the last check of the log without a wait, which may consume a wake."""
        with self._changed:
            is_new = self._places is not places
            return not (is_new or self._waiting) and all(place.is_caught_up and not place.is_leaving for place in places)

    def _append_queued(self, log: Log) -> Sequence[Settled]:
        """Append the oldest queued records as one batch."""
        if not self._waiting:
            return ()
        with self._changed:
            drawn = next_batch(self._waiting)
        try:
            return appended(log, drawn, now_ns=self._now_ns())
        except Exception as error:
            # This ends the thread. First give the authors their outcome, since nobody can later.
            problem = f"appending to it met {type(error).__name__}: {error}"
            self._hand_over(all_settled(drawn, InDoubt(error=LogUnavailable(log=self.name, problem=problem))), ())
            raise

    def _turn_out(self, places: Sequence[Place], error: EquipoiseError) -> None:
        with self._changed:
            for place in places:
                place.ending = error
                place.is_leaving = True

    def _dismiss(self, places: Sequence[Place], failure: EquipoiseError | None) -> None:
        """Release subscribers with `failure`, or with the error that ended each."""
        with self._changed:
            for place in places:
                place.is_gone = True
        for place in places:
            ending = place.ending or failure
            self._refuse([place], ending or self._stopped())
            self._post(self._take_end, place, ending)

    def _refuse(self, places: Sequence[Place], error: EquipoiseError) -> None:
        """Answer the queued records of `places` with an error."""
        refused: list[Attempt] = []
        with self._changed:
            for place in places:
                if place.queue:
                    self._waiting.remove(place.queue)
                    refused += place.queue.drain()
        self._hand_over(all_settled(refused, NotAppended(error=error)), ())

    def _hand_over(self, settled: Sequence[Settled], read: Sequence[_Taken]) -> None:
        if not settled and not read:
            return
        with self._changed:
            for places, entries, behind in read:
                for place in places:
                    place.position = entries[-1].offset + 1
                    place.resyncs = 0
                    place.undelivered += len(entries)
                    place.behind = behind
        self._post(self._take, settled, read)

    def _set_outage(self, outage: Outage | None) -> None:
        if outage is not self._outage:
            self._outage = outage
            self._post(self._take_outage, outage)

    def _has_room(self) -> bool:
        return sum(place.undelivered for place in self._places) + READ_ENTRIES <= UNDELIVERED_ENTRIES_MAX

    def _is_wanted(self) -> bool:
        """Return whether there is work that needs no entry. The caller holds `_changed`."""
        return bool(self._waiting) or any(place.is_leaving for place in self._places)

    def _pause(self, pause_ms: int) -> None:
        """Pause, unless there is something to append: the log may accept appends while reads fail."""
        with self._changed:
            self._changed.wait_for(self._is_wanted, pause_ms / 1_000)

    def _await_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_wanted() or self._has_room(), WAIT_MS_MAX / 1_000)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the loop. Does nothing if the loop is closed."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)


class _NobodyWantsItError(Exception):
    """The host of a restore has left."""


def _is_there(log: Log, position: int, *, timeout_ms: int) -> bool:
    """Wait for something to read. Return True for an unreadable position too: the following read reports it."""
    try:
        return log.wait(position, timeout_ms=timeout_ms)
    except (LogTruncated, LogWentBack):
        return True


def _bug(log: str, error: Exception) -> Bug:
    """Return a `Bug` caused by an unforeseen error."""
    bug = Bug(f"following the log {log} met {type(error).__name__}: {error}; please report it")
    bug.__cause__ = error
    return bug
