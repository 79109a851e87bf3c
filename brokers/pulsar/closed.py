"""Hand the topics of a bundle over to its next owner, and take them over from the former one.

`ClosedBundles` keeps the states of bundles that were closed here until their next owner, possibly
this broker, fetches them. It is bounded in bytes and time, and keeps states uncopied until they are
fetched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from equipoise.brokers.pulsar.served import Counts
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics import handover as handovers
from equipoise.brokers.pulsar.topics.topic import TopicState
from equipoise.brokers.runtime.service import Bundle, Ownership
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.system.clocks import Deadline

_logger: Final = logging.getLogger(__name__)

# The cost of a bundle on top of its states.
_ROW_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Left:
    """What a bundle that was owned here under `token` left when it closed: its handover, if any,
    and its topic states.

    `is_awaited`: the handover is incomplete, so the next owner must fetch the states.
    """

    bundle: Bundle
    token: int
    handover: bytes | None = None
    states: Mapping[str, TopicState] = field(default_factory=dict)
    is_awaited: bool = False

    @property
    def messages(self) -> int:
        """The number of undelivered messages in it."""
        return sum(entry.messages for state in self.states.values() for entry in state.entries)


@dataclass(slots=True)
class _Row:
    left: Left
    size_bytes: int
    is_fetched: bool = False

    @property
    def is_awaited(self) -> bool:
        return self.left.is_awaited and not self.is_fetched


class ClosedBundles:
    """What closed bundles left, by bundle name. When bytes run out, fetched states are dropped
    first, the oldest first.
    """

    def __init__(self, *, bytes_max: int, kept_ms: int, on_lost: Callable[[Left], None]) -> None:
        """Keep at most `bytes_max` in total, each state for at most `kept_ms`.

        `on_lost` is called for each awaited state that is dropped before it was fetched.
        """
        self._bytes_max = bytes_max
        self._kept_ms = kept_ms
        self._on_lost = on_lost
        self._bytes = 0
        self._rows: dict[str, _Row] = {}
        self._fetches = asyncio.Event()

    @property
    def awaited(self) -> int:
        """The number of bundles whose next owner still must fetch their states."""
        return sum(row.is_awaited for row in self._rows.values())

    def keep(self, left: Left) -> None:
        """Keep what a bundle left, in place of what an earlier ownership left."""
        self._pop(left.bundle.name)
        row = self._rows[left.bundle.name] = _Row(
            left, _ROW_BYTES + len(left.handover or b"") + handovers.size_of(left.states)
        )
        self._bytes += row.size_bytes
        while self._bytes > self._bytes_max:
            self._lose(
                next(
                    (name for name, each in self._rows.items() if not each.is_awaited),
                    next(iter(self._rows)),
                )
            )
        asyncio.get_running_loop().call_later(self._kept_ms / 1_000, self._expire, row)

    def get(self, bundle: str) -> Left | None:
        """Return what the next owner of a bundle must fetch, or None."""
        row = self._rows.get(bundle)
        return None if row is None or not row.left.is_awaited else row.left

    def fetched(self, left: Left) -> None:
        """Note that the next owner has fetched this. Keep it while there is room, because the owner
        may fail and fetch again.
        """
        row = self._rows.get(left.bundle.name)
        if row is not None and row.left is left:
            row.is_fetched = True
            self._fetches.set()

    async def next_fetch(self, *, timeout_ms: int) -> bool:
        """Wait for the next fetch. Return False on timeout."""
        self._fetches.clear()
        try:
            await asyncio.wait_for(self._fetches.wait(), timeout_ms / 1_000)
        except TimeoutError:
            return False
        return True

    def belonging_to(self, bundle: str, handover: bytes) -> Mapping[str, TopicState] | None:
        """Return the states of a bundle if they were left with exactly this handover, or None."""
        row = self._rows.get(bundle)
        return None if row is None or row.left.handover != handover else row.left.states

    def of_ownership(self, bundle: Bundle, token: int) -> Sequence[Left]:
        """Return what the bundles that now make up `bundle` left, or nothing if another broker may
        have owned it since.

        A merge continues with the greater of two tokens. If one of them is that of `bundle`, both
        were owned here until now.
        """
        left = self._over(bundle)
        return left if any(each.token == token for each in left) else ()

    def forget(self, bundle: Bundle) -> None:
        """Drop what was left of these points."""
        for left in self._over(bundle):
            self._pop(left.bundle.name)

    def _over(self, bundle: Bundle) -> Sequence[Left]:
        """Return what bundles left that overlap this one."""
        return [
            left
            for left in (row.left for row in self._rows.values())
            if left.bundle.namespace == bundle.namespace
            and left.bundle.low < bundle.high
            and bundle.low < left.bundle.high
        ]

    def _pop(self, bundle: str) -> _Row | None:
        row = self._rows.pop(bundle, None)
        self._bytes -= 0 if row is None else row.size_bytes
        return row

    def _lose(self, bundle: str) -> None:
        row = self._pop(bundle)
        if row is not None and row.is_awaited:
            self._on_lost(row.left)

    def _expire(self, row: _Row) -> None:
        if self._rows.get(row.left.bundle.name) is row:
            self._lose(row.left.bundle.name)


class Handovers:
    """What bundles hand over when they close here, and take over when they open."""

    def __init__(
        self, settings: Settings, counts: Counts, broker_id: Callable[[], str | None]
    ) -> None:
        """`counts` has what is lost. `broker_id` returns the id of this broker, for its log."""
        self._settings = settings
        self._counts = counts
        self._broker_id = broker_id
        self.closed = ClosedBundles(
            bytes_max=settings.closed_bytes_max, kept_ms=settings.closed_ms, on_lost=self._lost
        )

    def leave(
        self, ownership: Ownership, states: Mapping[str, TopicState], *, is_moving: bool
    ) -> bytes | None:
        """Return the handover of a bundle that closes here. Keep what must be fetched, or
        everything if the bundle has no destination.

        Without a destination this broker may reopen these points: a merge that finds one of its two
        bundles still opening closes both.
        """
        left = Left(bundle=ownership.bundle, token=ownership.token)
        if states:  # Also topics without subscriptions: the next owner must know that they exist.
            encoded = handovers.encode(states)
            self._counts.dropped += encoded.dropped
            self._counts.consumers_forgotten += encoded.forgotten
            is_awaited = is_moving and not encoded.is_complete
            left = replace(
                left, handover=encoded.handover, states=encoded.states, is_awaited=is_awaited
            )
        if left.is_awaited or not is_moving:
            self.closed.keep(left)
        return left.handover

    async def fetch(self, bundle: str) -> bytes | None:
        """Return what did not fit into the handover of a bundle, with all undelivered messages, or
        None if nothing is kept.
        """
        left = self.closed.get(bundle)
        if left is None:
            return None
        fetchable = await asyncio.to_thread(handovers.fetchable, left.states)
        self.closed.fetched(left)
        return fetchable

    async def all_fetched(self) -> None:
        """Wait until next owners have fetched what they need. Stop at a deadline, or when no fetch
        happens for `next_fetch_ms`.
        """
        deadline = Deadline.after(timeout_ms=self._settings.all_fetched_ms)
        is_fetching = True
        while is_fetching and self.closed.awaited and deadline.remaining_ms():
            is_fetching = await self.closed.next_fetch(
                timeout_ms=min(self._settings.next_fetch_ms, deadline.remaining_ms())
            )
        if self.closed.awaited:
            _logger.warning(
                "lost the states of %d closed bundles: their next owners did not fetch them before"
                " this broker ended",
                self.closed.awaited,
                extra={"broker": self._broker_id()},
            )

    async def states(
        self, ownership: Ownership, handover: bytes | None
    ) -> Mapping[str, TopicState]:
        """Return the topic states that the former owner handed over. Damaged or missing states cost
        messages, never the bundle.
        """
        if handover is None:
            return self._left_here(ownership)
        try:
            if ownership.fetch is None:  # The bundle may be back here because its destination died.
                states = self.closed.belonging_to(ownership.bundle.name, handover)
                if states is not None:
                    return states
            if handovers.is_complete(handover):
                return handovers.decode(handover, None)
            return await self._fetched(ownership, handover)
        except EquipoiseError as error:
            self._counts.handovers_damaged += 1
            _logger.warning(
                "topics start without the state of their former owner: %s",
                error,
                extra=self._about(ownership.bundle, ownership.token),
            )
        try:
            return handovers.decode(handover, None)
        except EquipoiseError:
            return {}

    async def _fetched(self, ownership: Ownership, handover: bytes) -> Mapping[str, TopicState]:
        """Fetch what the handover lacks. Try twice if the first try fails early: up to 32 MiB of
        receipted messages depend on it.

        Raises `PeerError`, and any error of the fetch.
        """
        again_by = Deadline.after(timeout_ms=self._settings.fetch_again_ms)
        try:
            return await _fetched_once(ownership, handover)
        except EquipoiseError as error:
            if not again_by.remaining_ms():
                raise
            _logger.info(
                "fetching the state of a bundle again: %s",
                error,
                extra=self._about(ownership.bundle, ownership.token),
            )
        return await _fetched_once(ownership, handover)

    def _left_here(self, ownership: Ownership) -> Mapping[str, TopicState]:
        """Return the states that this broker kept when it closed these topics, if no other broker
        has owned them since.
        """
        states: dict[str, TopicState] = {}
        for left in self.closed.of_ownership(ownership.bundle, ownership.token):
            states |= left.states
        return states

    def _lost(self, left: Left) -> None:
        """Count and log the messages of a state that expired before it was fetched."""
        self._counts.dropped += left.messages
        _logger.warning(
            "lost %d messages and the names of %d topics: the next owner did not fetch them",
            left.messages,
            len(left.states),
            extra=self._about(left.bundle, left.token),
        )

    def _about(self, bundle: Bundle, token: int) -> dict[str, object]:
        return {"broker": self._broker_id(), "bundle": bundle.name, "token": token}


async def _fetched_once(ownership: Ownership, handover: bytes) -> Mapping[str, TopicState]:
    fetched = None if ownership.fetch is None else await ownership.fetch()
    if fetched is None:
        raise handovers.damaged("fetched state", "its former owner is gone or no longer has it")
    return await asyncio.to_thread(handovers.decode, handover, fetched)
