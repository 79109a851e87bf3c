"""Hold what the parts of an agent share, and propose records for them. Policy belongs in the
parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from equipoise.brokers.agent.effects import Answered, Append, Effect, WriteMark
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Lease
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.errors import InvalidConfig, not_proposed
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import EquipoiseError, OutcomeUnknown, Overloaded
from equipoise.channel.core.log import RECORD_BYTES_MAX
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import (
    KEY_CHARACTERS_MAX,
    LEVEL_SUPPORTED,
    AnyRecord,
    Joined,
    Unreadable,
)
from equipoise.channel.core.table import Resync, resync_between
from equipoise.channel.core.view import View

# Unsettled attempts. A drain of the demo's 256 bundles has 64 in flight; an outage adds one renewal
# per interval. Above this bound only membership records are attempted.
ATTEMPTS_MAX: Final = 4_096

# How often the position in the log is noted at most: an fsync of 0.1 to 10 ms per second, in a
# thread.
_MARK_MS: Final = 1_000

NEVER_MS: Final = 2**62

_OVERTAKEN: Final = "its proposal was lost on the way to the log, or overtaken by a later one"

# The longest broker id: a profile that fits with it fits with every id.
_LONGEST_KEY: Final = "k" * KEY_CHARACTERS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a broker publishes on joining. `addresses` maps a protocol to the address for clients;
    `namespaces` are patterns of those that it serves (None: all). `lock` is as in `Joined`.

    The constructor raises `InvalidConfig` for a profile that no `joined` can carry.
    """

    addresses: dict[str, str] = field(default_factory=dict)
    capacity: int = 100
    failure_domain: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    namespaces: tuple[str, ...] | None = None
    version: str = ""
    lock: str | None = None

    def __post_init__(self) -> None:
        # Use the codec itself, so that this check and the codec never disagree.
        problem = _misfit(self)
        if problem is not None:
            raise InvalidConfig(problems=(problem,))

    def joined(
        self, *, key: str, expected_offset: int, instance_id: str, timestamp_ms: int, timing: Timing
    ) -> Joined:
        """Return the record by which the broker `key` joins if its id is free."""
        return Joined(
            key=key,
            expected_offset=expected_offset,
            publisher=key,
            timestamp_ms=timestamp_ms,
            instance_id=instance_id,
            lease_ms=timing.lease_ms,
            grace_ms=timing.grace_ms,
            renew_ms=timing.renew_ms,
            extend_ms=timing.extend_ms,
            addresses=self.addresses,
            capacity=self.capacity,
            failure_domain=self.failure_domain,
            labels=self.labels,
            namespaces=self.namespaces,
            version=self.version,
            supported_level=LEVEL_SUPPORTED,
            lock=self.lock,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to append one record. `number` is the record's sequence; `ticket` is the request that
    it serves, if any.
    """

    number: int
    key: str
    expected_offset: int
    decided: Instant
    ticket: int | None


def _misfit(profile: Profile) -> str | None:
    """Return why a `joined` with this profile could not be read; None if it can."""
    joined = profile.joined(
        key=_LONGEST_KEY, expected_offset=0, instance_id="any", timestamp_ms=0, timing=Timing()
    )
    try:
        data = encode(joined)
    except TypeError as error:
        # JSON cannot represent it: a lone surrogate, or a name that is not text.
        return f"the broker's profile is not valid JSON: {error}"
    if len(data) > RECORD_BYTES_MAX:
        return (
            f"the broker's profile takes {len(data)} bytes; a record may take at most"
            f" {RECORD_BYTES_MAX}"
        )
    read = decode(data)
    return read.problem if isinstance(read, Unreadable) else None


class Mark:
    """Keeps in the data directory how far the log was read, so that the next start refuses a log
    that has gone back.

    A mark is written at most `_MARK_MS` after what it covers, and before this broker opens a bundle
    under a token above the last mark. Such a token waits for one fsync, which all tokens of one
    read share. The mark cannot be written ahead of the log: a log that ends below it is refused,
    and a crash in between would leave a whole log that no broker accepts.
    """

    def __init__(self) -> None:
        self.wake_at_ms = NEVER_MS
        self._written = -1
        self._asked = -1
        self._asked_at_ms = -NEVER_MS
        self._wanted = -1

    def covers(self, token: int) -> bool:
        """Return whether the token may be used. Otherwise the mark is written soon, and
        `MarkWritten` follows.
        """
        self._wanted = max(self._wanted, token)
        return token <= self._written

    def written(self, offset: int) -> None:
        """Note that a mark is on disk."""
        self._written = max(self._written, offset)

    def due(self, view: View, now: Instant) -> WriteMark | None:
        """Return the mark to write now, if any. A write that fails is not answered: it is repeated
        after `_MARK_MS`.
        """
        again_at_ms = self._asked_at_ms + _MARK_MS
        is_wanted = self._wanted > self._asked and self._asked <= self._written
        is_due = view.offset > self._written and (is_wanted or now.boot_ms >= again_at_ms)
        if is_due:
            self._asked, self._asked_at_ms = view.offset, now.boot_ms
            again_at_ms = now.boot_ms + _MARK_MS
        self.wake_at_ms = NEVER_MS if view.offset <= self._written else again_at_ms
        return WriteMark(offset=view.offset, base=view.base) if is_due else None


class Core:
    """One agent's shared state. `now` and `effects` belong to the current step.

    `leaving` means that this incarnation has stopped serving for good.
    """

    def __init__(
        self, *, broker: str, cluster: str, reader: Reader, timing: Timing, profile: Profile
    ) -> None:
        self.broker = broker
        self.cluster = cluster
        self.reader = reader
        self.view = reader.view
        self.timing = timing
        self.profile = profile
        self.now = Instant(0, 0)
        self.effects: list[Effect] = []
        self.incarnation: int | None = None
        self.lease = Lease(incarnation=-1, skew_max_ms=0, lost=True)
        self.leaving = False
        self.stopped = False
        self.mark = Mark()
        self._attempt = 0
        self._in_flight: dict[int, Attempt] = {}
        self._newest_by_key: dict[str, Attempt] = {}

    @property
    def serving(self) -> int | None:
        """The incarnation that takes and keeps bundles; None before the broker joins and once it
        leaves.
        """
        return None if self.leaving else self.incarnation

    @property
    def attempts_made(self) -> int:
        """The number of the newest attempt."""
        return self._attempt

    def next_attempt(self) -> int:
        """Return the next attempt's number. Numbers rise over all incarnations of this process."""
        self._attempt += 1
        return self._attempt

    def author(self, attempt: int, requested_by: str | None = None) -> Author:
        """Return this broker's signature for an attempt. `requested_by` is as in `Requested`."""
        return Author(
            publisher=self.broker,
            incarnation=self.incarnation,
            sequence=attempt,
            timestamp_ms=self.now.wall_ms,
            requested_by=requested_by,
        )

    def propose(
        self,
        make: Callable[[Author], AnyRecord],
        *,
        ticket: int | None = None,
        requested_by: str | None = None,
    ) -> bool:
        """Append the record that `make` returns. Return False if the same proposal is in flight.

        The same means: same key, same expected offset, and it may still be read back. The log would
        reject the second as stale.
        """
        number = self.next_attempt()
        record = make(self.author(number, requested_by))
        if ticket is None and self._is_under_way(record.key, record.expected_offset):
            return False
        if self.is_crowded() and not self._made_room(record.key):
            if ticket is not None:
                crowd = Overloaded(
                    what=f"the list of broker {self.broker}'s unsettled proposals",
                    limit=ATTEMPTS_MAX,
                )
                self.effects.append(Answered(ticket=ticket, error=crowd))
            return False
        attempt = Attempt(
            number=number,
            key=record.key,
            expected_offset=record.expected_offset,
            decided=self.now,
            ticket=ticket,
        )
        self._in_flight[number] = attempt
        self._newest_by_key[record.key] = attempt
        self.effects.append(Append(attempt=number, data=encode(record)))
        return True

    def append(self, data: bytes) -> None:
        """Append a genesis or a `joined`. They have no sequence; an instance id settles a
        `joined`.
        """
        self.effects.append(Append(attempt=self.next_attempt(), data=data))

    def is_crowded(self) -> bool:
        """Return whether so many attempts are unsettled that only membership may add more."""
        return len(self._in_flight) >= ATTEMPTS_MAX

    def _made_room(self, key: str) -> bool:
        """Drop the oldest membership attempt, which is too old to renew a lease, so that renewals
        go on in any outage.
        """
        if key != self.broker:
            return False
        oldest = next(
            (number for number, attempt in self._in_flight.items() if attempt.key == key), None
        )
        if oldest is not None:
            self._lost(oldest)
        return True

    def is_proposed(self, bundle: BundleEntry) -> bool:
        """Return whether a proposal about the bundle as it is now may still be read back."""
        return self._is_under_way(bundle.name, bundle.last)

    def is_unsettled(self, key: str) -> bool:
        """Return whether any proposal about a key may still be accepted."""
        return any(attempt.key == key for attempt in self._in_flight.values())

    def _is_under_way(self, key: str, expected_offset: int) -> bool:
        attempt = self._newest_by_key.get(key)
        if attempt is None or attempt.expected_offset != expected_offset:
            return False
        return self.now.boot_ms - attempt.decided.boot_ms < self.timing.attempt_ms

    def append_failed(self, number: int, error: EquipoiseError, *, in_doubt: bool) -> None:
        """Allow the same proposal again, under a new number.

        With `in_doubt` the attempt stays unsettled, because it may be on the log. Otherwise `error`
        settles it.
        """
        attempt = self._in_flight.get(number)
        if attempt is None:
            return
        if in_doubt:
            self._forget_key(attempt)
        else:
            self._lost(number, error)

    def settle(self, folded: Folded, number: int) -> Attempt | None:
        """Settle an own record that was read back, and every earlier attempt as lost. Return the
        attempt.
        """
        for earlier in [other for other in self._in_flight if other < number]:
            self._lost(earlier)
        attempt = self._in_flight.pop(number, None)
        if attempt is not None:
            self._forget_key(attempt)
            if attempt.ticket is not None:
                self.effects.append(Answered(ticket=attempt.ticket, folded=folded))
        return attempt

    def resynced(self, reader: Reader) -> Resync:
        """Continue with `reader`, which has skipped records. Return what they changed.

        An attempt is settled if the new view has its sequence or a later one, or if its incarnation
        has ended. Its verdict may be in the gap. A later attempt may still be read back.
        """
        resync = resync_between(self.view, reader.view)
        self.reader, self.view = reader, reader.view
        myself = None if self.incarnation is None else self.view.live.get(self.incarnation)
        for number in [
            number for number in self._in_flight if myself is None or number <= myself.sequence
        ]:
            problem = (
                f"its verdict is between offsets {resync.before} and {resync.offset}, which were"
                " truncated before they were read"
            )
            self._lost(
                number,
                OutcomeUnknown(
                    log=reader.log, subject=self._in_flight[number].key, problem=problem
                ),
            )
        return resync

    def lose_all(self) -> None:
        """Settle all unread attempts of an incarnation that is over. The log accepts none of
        them.
        """
        for number in list(self._in_flight):
            self._lost(number)

    def _lost(self, number: int, error: EquipoiseError | None = None) -> None:
        attempt = self._in_flight.pop(number)
        self._forget_key(attempt)
        if attempt.ticket is not None:
            self.effects.append(
                Answered(
                    ticket=attempt.ticket,
                    error=error or not_proposed(broker=self.broker, problem=_OVERTAKEN),
                )
            )

    def _forget_key(self, attempt: Attempt) -> None:
        if self._newest_by_key.get(attempt.key) is attempt:
            del self._newest_by_key[attempt.key]
