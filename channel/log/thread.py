"""The one thread that owns a `Log` handle: it tails the log and appends to it, for all who follow that log in one asyncio loop.

May live here: `LogThread` and its bounds. Its hosts reach it by a `LogSeat`. What a record means is their business; so is trying
an append again, because a proposal that was not appended must be decided anew.

A turn of the thread
1. Append what is queued at all seats, as one batch: all that came during the last turn pays for one commit.
2. Read on, at once, because the next entry is most often the one just appended: once for each position at which somebody
   is. Who catches up comes to the log's end, where all are at one position and one read serves them all.
3. Hand the outcomes and the entries to the loop in one call. An outcome comes before the entry that it is about.
4. Restore one of those who were cut off, by truncation or by a copy, if there are any: one, so that the others get a turn between.
5. Wait for an entry or for something to append, whichever comes first.
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
"""Entries that the loop gets in one turn, each counted once for every seat: about 5 ms of folding, which is what a replay may
hold its other work up. With more seats than that each gets one, so that all go on."""

UNDELIVERED_ENTRIES_MAX: Final = 2 * READ_ENTRIES
"""Entries read and not yet taken by the loop, counted likewise: while it folds one batch the next is read. More would only fill
the memory. One bound for all seats, since they wait for the same loop: where one is behind, all are."""

BACK_OFF_MS_MIN: Final = 50
BACK_OFF_MS_MAX: Final = 500
"""The pause between two attempts to read during an outage, doubled each time: short against a lease, cheap for a log that
is struggling back to its feet."""

TOLD_AGAIN_MS: Final = 10_000
"""The least time between two outages that the process's log tells of."""

WAIT_MS_MAX: Final = 1_000
"""How long the thread waits for the log in one call. What happens ends the wait, but for the end of a loop that was closed while
somebody still followed: that is found out so much later."""

RESYNCS_MAX: Final = 3
"""How often a place is restored before it has read an entry again. A restored reader has ten minutes of the log before it, the least
that is ever kept, so that one more time is bad luck; a third would mean that restoring takes longer than that."""

COPY_MS_MAX: Final = 60_000
"""How long those who followed a log while it was empty wait for the snapshot of a copy, whose genesis comes first: 100,000 bundles
are written within 10 s. After that the copy has died, and they end as all do who find it so."""

Argument = TypeVar("Argument")

_logger: Final = logging.getLogger(__name__)


class _Taken(NamedTuple):
    """Entries for all places that were at one position, and how far behind them the log's end is."""

    places: Sequence[Place]
    entries: Sequence[Entry]
    behind: int


class LogThread:
    """Tails the log for those who join it with a `LogSeat`, and appends for them. It begins with the first, ends with the last.

    What is wrong with the log ends all seats. What is wrong with one follower ends that one alone: what its host raises,
    a position that the log does not have yet, and one that it no longer has and from which no restoring leads on.
    """

    def __init__(self, open_handle: Callable[[], Log], *, name: str, now_ns: Callable[[], int] = boot_ns) -> None:
        """`open_handle` makes the handle, within the thread; `name` is the log's URL, for messages and for the thread."""
        # The loop's side.
        self.name = name
        self.outage: Outage | None = None
        self._told_outage: Outage | None = None
        self._quiet_until_ns = 0
        self._now_ns = now_ns
        self._loop: asyncio.AbstractEventLoop | None = None
        # Between both: changed while `_changed` is held.
        self._changed = threading.Condition()
        self._places: tuple[Place, ...] = ()
        self._waiting: deque[AppendQueue] = deque()  # The queues in which there is something, in the order of their turns.
        self._closed = False
        # The thread's side. The loop only calls the handle's `wake`, which any thread may.
        self._open_handle = open_handle
        self._log: Log | None = None
        self._outage: Outage | None = None
        self._back_off_ms = BACK_OFF_MS_MIN

    # --- on the loop, for seats ---

    def admit(self, place: Place) -> bool:
        """Let one more follow, and begin with the first; False if the thread has ended or is about to."""
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
            # A daemon, so that a disk which never answers does not keep the process from ending.
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
        """Have the thread let go of one; `place.ended` tells when it has."""
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
        """What one turn of the thread brought. After a failure outcomes still count, and entries no longer do."""
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
            place.is_caught_up = False  # It has not folded what was read for it; the thread looks again.
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
        """One line for its beginning and one for its end; a log that comes and goes is told of once in a while."""
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
        """Call one host. What it raises ends its seat, and keeps nothing from the others; but for `BegunAbove`, which has it restored."""
        try:
            call(argument)
        except BegunAbove:  # What is on its way to it is left out: the reader that it resyncs to reads that too.
            place.awaits_resync = place.is_cut_off = True
            self._wake()
        except EquipoiseError as error:
            self._fail(place, error)
        except Exception as error:  # noqa: BLE001 - whatever it was, this host has missed something and must not go on
            self._fail(place, _bug(self.name, error))

    def _fail(self, place: Place, error: EquipoiseError) -> None:
        if place.failure is not None:
            return
        place.failure = error
        self.leave(place)
        try:
            place.failed(error)
        except Exception as raised:  # noqa: BLE001 - it has failed already, and there are others to be told
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
                    self._closed = True  # Before the handle is closed, so that nobody joins who would be turned out at once.
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
        """Let go of those who leave; who stays. If nobody does, the thread is closed in the same breath, and they are told later.

        A loop that was closed takes all along. It tells nobody, so that it is looked at here, between two waits.
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
        """One turn, as the head of this module tells it. Raises what the log raises in reading."""
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
        # Before anything is looked at that the loop changes, so that a change after that look finds something to wake.
        self._log = log
        return log

    def _read(self, log: Log, places: Sequence[Place], read: list[_Taken], cut_off: list[Place]) -> None:
        """Read for each position, the highest first; what those at the log's end leave over of the turn goes to those behind.

        Fills `read` as it goes, because what was read before an error counts; and `cut_off` with those that cannot be read for.
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
            except LogWentBack as error:  # About this position; there may be nothing wrong with the others.
                self._turn_out(at[position], error)
                continue
            except LogTruncated:
                cut_off += at[position]
                continue
            if entries:
                # The end is looked up only if the read came back full: otherwise it is most often right here.
                behind = log.end() - entries[-1].offset if len(entries) == limit else 0
                read.append(_Taken(places=at[position], entries=entries, behind=behind))
            left -= len(entries) * len(at[position])
            sharing -= len(at[position])

    def _restore(self, log: Log, place: Place) -> None:
        """Have a place that was cut off go on from what the channel's snapshot has. Raises `LogUnavailable`."""
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
            place.resyncs += 1  # Once more, in the midst of it.
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
        """Raise what ends a restoring that is under way, if its host has left meanwhile."""
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
        """Whether nobody has anything to do. Only after the last look at the log without a wait, which may have eaten a wake."""
        with self._changed:
            is_new = self._places is not places
            return not (is_new or self._waiting) and all(place.is_caught_up and not place.is_leaving for place in places)

    def _append_queued(self, log: Log) -> Sequence[Settled]:
        """Append the oldest of what is queued as one batch."""
        if not self._waiting:
            return ()
        with self._changed:
            drawn = next_batch(self._waiting)
        try:
            return appended(log, drawn, now_ns=self._now_ns())
        except Exception as error:
            # It ends the thread, but not before those who asked know that nobody can tell them more.
            problem = f"appending to it met {type(error).__name__}: {error}"
            self._hand_over(all_settled(drawn, InDoubt(error=LogUnavailable(log=self.name, problem=problem))), ())
            raise

    def _turn_out(self, places: Sequence[Place], error: EquipoiseError) -> None:
        with self._changed:
            for place in places:
                place.ending = error
                place.is_leaving = True

    def _dismiss(self, places: Sequence[Place], failure: EquipoiseError | None) -> None:
        """Let go of some, who are told `failure`, or what they were turned out for."""
        with self._changed:
            for place in places:
                place.is_gone = True
        for place in places:
            ending = place.ending or failure
            self._refuse([place], ending or self._stopped())
            self._post(self._take_end, place, ending)

    def _refuse(self, places: Sequence[Place], error: EquipoiseError) -> None:
        """Answer what is queued at some with an error."""
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
        """Whether there is something to do that needs no entry; `_changed` is held."""
        return bool(self._waiting) or any(place.is_leaving for place in self._places)

    def _pause(self, pause_ms: int) -> None:
        """Let some time pass, but not if there is something to append: the log may take it even if it cannot be read."""
        with self._changed:
            self._changed.wait_for(self._is_wanted, pause_ms / 1_000)

    def _await_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_wanted() or self._has_room(), WAIT_MS_MAX / 1_000)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the loop. One that was closed hears nothing any more, and nothing is owed to it."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)


class _NobodyWantsItError(Exception):
    """Who was to be restored has left."""


def _is_there(log: Log, position: int, *, timeout_ms: int) -> bool:
    """Wait for something to read. A position that cannot be read counts: the read that follows tells it to those it is about."""
    try:
        return log.wait(position, timeout_ms=timeout_ms)
    except (LogTruncated, LogWentBack):
        return True


def _bug(log: str, error: Exception) -> Bug:
    """Our error for one that nobody foresaw, with that one as its cause."""
    bug = Bug(f"following the log {log} met {type(error).__name__}: {error}; please report it")
    bug.__cause__ = error
    return bug
