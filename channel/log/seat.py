"""Subscribe to a log: the host's side of a subscription (`LogSeat`) and the state that it shares with its thread (`Place`)."""

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
"""The position of a subscriber that has read nothing and has no snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The log cannot be read.

    * `since_ns`: when that began, on the clock that runs on while the machine sleeps.
    * `error`: the last error of the log.
    """

    since_ns: int
    error: LogUnavailable


@dataclass(slots=True, kw_only=True, eq=False)
class Place:
    """The state that a subscription shares with its thread."""

    # The host's side: used on the loop only.
    deliver: Callable[[Sequence[Entry]], None]
    caught_up: Callable[[int], None]
    resynced: Callable[[Reader], None]
    failed: Callable[[EquipoiseError], None]
    failure: EquipoiseError | None = None
    awaits_resync: bool = False
    ended: asyncio.Future[None] | None = None
    # Shared: changed while the thread's lock is held.
    queue: AppendQueue
    undelivered: int = 0
    behind: int = 0
    is_leaving: bool = False
    is_gone: bool = False
    # Shared flags. `is_cut_off`: the loop requests a resync, the thread clears it when done. `is_caught_up`: the thread sets it when all is
    # read, the loop clears it if the entries were not folded.
    is_cut_off: bool = False
    is_caught_up: bool = False
    # The thread's side.
    cluster: str | None
    position: int
    resyncs: int = 0
    end_at_start: int | None = None
    ending: EquipoiseError | None = None


class SeatedAt(Protocol):
    """What a subscription needs of its thread. All methods are called on the loop."""

    @property
    def outage(self) -> Outage | None:
        """Set while the log cannot be read."""
        ...

    def admit(self, place: Place) -> bool:
        """Add a subscriber. Return False if the thread has ended or is about to."""
        ...

    def queue(self, place: Place, data: bytes, done: Done | None) -> None:
        """Queue one record; see `LogSeat.append`."""
        ...

    def leave(self, place: Place) -> None:
        """Ask the thread to release a subscriber. `place.ended` is set when it has."""
        ...


class LogSeat:
    """One subscription to a log. Several subscriptions may share a thread, but do not affect each other.

    Its methods and callbacks run on the loop in which it joins.

    * `deliver` gets the entries in order, each once. An `EquipoiseError` that it raises ends the subscription.
    * `caught_up` is called once, when everything has been delivered that was on the log at the start. It gets the physical end at that
      time, which may be a gap.
    * `resynced` gets a reader that `channel.snapshots.restore` made, when entries are missing: truncation removed them, or `deliver` raised
      `BegunAbove` because a channel was copied to an empty log. `deliver` goes on from the reader's position. If no reader can be made, the
      subscription ends with what `restored` raises.
    * `failed` is called at most once, with what ended the subscription: an `OperatorError` (the log is damaged, was replaced or went back),
      what `deliver` raised, or a `Bug`.

    `LogUnavailable` does not end a subscription: it sets `outage`, and reading is retried for ever from the same position.
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
        """Create a subscription that does not follow yet.

        * `name`: the log's URL, for messages.
        * `position`: the first offset to deliver. With `FROM_NOTHING`, `resynced` is called first, with the best reader to begin with.
        * `cluster`: the cluster that the log must belong to.
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
        """Start to follow, within the loop of `thread`. Return False if the thread has ended or is about to."""
        assert self._thread is None, "a seat is taken once"
        if not thread.admit(self._place):
            return False
        self._thread = thread
        return True

    @property
    def failure(self) -> EquipoiseError | None:
        """What ended the subscription, or None if it runs or `stop` ended it."""
        return self._place.failure

    @property
    def outage(self) -> Outage | None:
        """Set while the log cannot be read."""
        return None if self._thread is None else self._thread.outage

    @property
    def lag_entries(self) -> int:
        """About how many entries the host has not taken yet, as of the last read. Gaps count as entries."""
        return self._place.undelivered + self._place.behind

    def append(self, data: bytes, done: Done | None = None) -> None:
        """Queue one record. Never blocks. `done` is called on the loop with the outcome, never before this returns.

        A refusal (`AppendTooLarge`, `Overloaded`, an ended subscription) is an outcome, too.
        """
        assert self._thread is not None, "a seat is taken before it is used"
        self._thread.queue(self._place, data, done)

    async def stop(self, deadline: Deadline) -> None:
        """End the subscription. Its queued records get `NotAppended`. The last subscription also ends the thread and closes the handle.

        Raises `DeadlineExceeded` if the log blocks the thread for longer; the subscription then ends when the log returns.
        """
        if self._thread is None or self._place.ended is None:
            return
        self._thread.leave(self._place)
        await deadline.wait(asyncio.shield(self._place.ended), what=f"the end of the thread of {self.name}")
