"""A follower's seat at the thread of a log: where its host asks, and what the thread knows of it.

May live here: `LogSeat`, the `Place` that it shares with its thread, and what it needs that thread to do. The turns of the
thread are in `log_thread`; which followers share one is told in `log_sharing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from equipoise.channel.core.errors import EquipoiseError, LogUnavailable
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.log.append_queue import AppendQueue, Done
from equipoise.channel.system.deadline import Deadline

FROM_NOTHING: Final = FIRST_OFFSET - 1
"""The position of who has read nothing, and has nothing to go on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The log cannot be read: since when (of the clock that runs on while the machine sleeps), and what it last said."""

    since_ns: int
    error: LogUnavailable


@dataclass(slots=True, kw_only=True, eq=False)
class Place:
    """What a seat and its thread know of each other."""

    # The host's side: touched on the loop only.
    deliver: Callable[[Sequence[Entry]], None]
    caught_up: Callable[[int], None]
    resynced: Callable[[Reader], None]
    failed: Callable[[EquipoiseError], None]
    failure: EquipoiseError | None = None
    awaits_resync: bool = False
    ended: asyncio.Future[None] | None = None
    # Between both: changed while the thread's lock is held.
    queue: AppendQueue
    undelivered: int = 0
    behind: int = 0
    is_leaving: bool = False
    is_gone: bool = False
    # Between both too, and no more than a flag each: the loop asks for a resync, the thread has made it; the thread says that all
    # is read, the loop that it was not folded.
    is_cut_off: bool = False
    is_caught_up: bool = False
    # The thread's side.
    cluster: str | None
    position: int
    resyncs: int = 0
    end_at_start: int | None = None
    ending: EquipoiseError | None = None


class SeatedAt(Protocol):
    """What a seat needs of its thread; all is called on the loop."""

    @property
    def outage(self) -> Outage | None:
        """Set while the log cannot be read."""
        ...

    def admit(self, place: Place) -> bool:
        """Let one more follow; False if the thread has ended or is about to."""
        ...

    def queue(self, place: Place, data: bytes, done: Done | None) -> None:
        """Queue one record; see `LogSeat.append`."""
        ...

    def leave(self, place: Place) -> None:
        """Have the thread let go of one; `place.ended` tells when it has."""
        ...


class LogSeat:
    """One follower of a log, at a thread that others may have a seat at too.

    Its methods, and the functions that it was given, run on the loop in which it joins. Nothing of one seat touches another.

    `deliver` gets entries in order, each once. An `EquipoiseError` that it raises ends the seat, as it ends a reader.
    `caught_up` is called once, when all has been delivered that was there at the start, with the physical end at that time;
    nothing may stand at that very offset. `failed` is called at most once, with what ended the seat: an `OperatorError`
    (the log is damaged, replaced, went back), what `deliver` raised, or a `Bug`.

    `LogUnavailable` is no end: `outage` says that it is so, reading is tried again for ever, and goes on where it was. Nor is
    a position that truncation has cut off, or `BegunAbove`, which `deliver` raises when a channel is copied to a log that was
    empty: `resynced` gets a reader that `channel.snapshots.restore` made, which has folded what the log does not have, and `deliver` goes
    on from its position. Where none can be made the seat ends with what `restored` raises.
    """

    def __init__(
        self,
        *,
        name: str,
        position: int,
        deliver: Callable[[Sequence[Entry]], None],
        caught_up: Callable[[int], None],
        resynced: Callable[[Reader], None],
        failed: Callable[[EquipoiseError], None],
        cluster: str | None = None,
    ) -> None:
        """`name` is the log's URL, for messages; `position` is the first offset that is wanted, `cluster` whose log it is to be.

        `FROM_NOTHING` as position is one that every log has cut off: so `resynced` is called first, with where a reader best begins.
        """
        self.name = name
        self._place = Place(
            position=position,
            cluster=cluster,
            deliver=deliver,
            caught_up=caught_up,
            resynced=resynced,
            failed=failed,
            queue=AppendQueue(name),
        )
        self._thread: SeatedAt | None = None

    def join(self, thread: SeatedAt) -> bool:
        """Begin to follow, within the loop of `thread`; False, and nothing happens, if it has ended or is about to."""
        assert self._thread is None, "a seat is taken once"
        if not thread.admit(self._place):
            return False
        self._thread = thread
        return True

    @property
    def failure(self) -> EquipoiseError | None:
        """What ended the seat, if anything did but `stop`."""
        return self._place.failure

    @property
    def outage(self) -> Outage | None:
        """Set while the log cannot be read."""
        return None if self._thread is None else self._thread.outage

    @property
    def lag_entries(self) -> int:
        """About how many entries of the log the host has not taken yet, as of the last read; gaps count as entries."""
        return self._place.undelivered + self._place.behind

    def append(self, data: bytes, done: Done | None = None) -> None:
        """Queue one record; never blocks. `done` is called on the loop with its outcome, never before this returns.

        What is not taken (`AppendTooLarge`, `Overloaded`, a seat that has ended) is an outcome like any other.
        """
        assert self._thread is not None, "a seat is taken before it is used"
        self._thread.queue(self._place, data, done)

    async def stop(self, deadline: Deadline) -> None:
        """Leave; the last who does ends the thread, and with it the handle. What is queued is answered `NotAppended`.

        Raises `DeadlineExceeded` if the log keeps the thread for longer; the seat ends when the log lets it go.
        """
        if self._thread is None or self._place.ended is None:
            return
        self._thread.leave(self._place)
        await deadline.wait(asyncio.shield(self._place.ended), what=f"the end of the thread of {self.name}")
