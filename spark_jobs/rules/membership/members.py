"""Define the state of the audit's membership. `verdicts` reads it; only `view` changes it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import orjson

from equipoise.spark_jobs.rules.facts import Raw
from equipoise.spark_jobs.rules.memory import StateTable

FIRST_LEVEL: Final = 1
"""Format version of a record that names none."""

INCARNATIONS_MAX: Final = 1_024
"""Incarnations to remember, dead ones included. For an older one it is unknown whether it
existed."""

APPEND_TIME_ERROR_MS: Final = 50
"""Largest error between the log times of two records: rounding, and the clocks of two Kafka
brokers."""

SOON_IN_A_ROW_MAX: Final = 2
"""Early renewals in a row that one set-back of the log's clock explains: two if the log's time
stands still in between.

More mean that the broker's own clock is fast. They prove nothing about the log's clock, and the
broker may accuse others too early.
"""

LIVE: Final = ("up", "draining")
"""Statuses of a broker that count as alive."""

PREFIX: Final = "member:"
"""Prefix of the keys of all state rows of the membership."""

Since = tuple[int, int]
"""When a clock started: the offset and the awake time (`spark_jobs.rules.membership.view`)."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A broker id and its newest incarnation. Times are log times, None if not read, unless noted.

    * `last_at_ms`: the time at `last`.
    * `back_at_ms`: when its own lease last became valid: it joined, or came back after a gap longer
      than its lease.
    * `renewed_at_ms`: its last renewal.
    * `soon_ms`: how much earlier than promised its renewals up to `soon_at_ms` came. That much time
      passed without showing in log time.
    * `soon_in_a_row`: how many of its last renewals were early.
    * `namespaces`: patterns of the namespaces that its program serves; None: all.
    * `heard_ms`: awake time (`spark_jobs.rules.membership.view`) of its own last accepted
      membership record.
    * `is_silence_reported`: its silence since then has been reported.
    """

    status: str
    incarnation: int
    last: int
    sequence: int
    instance_id: str
    lease_ms: int
    grace_ms: int
    renew_ms: int
    supported_level: int
    extend_ms: int = 0
    namespaces: list[str] | None = None
    last_at_ms: int | None = None
    back_at_ms: int | None = None
    renewed_at_ms: int | None = None
    soon_ms: int = 0
    soon_at_ms: int = 0
    soon_in_a_row: int = 0
    heard_ms: int = 0
    is_silence_reported: bool = False

    def takes(self, namespace: str) -> bool:
        """Return whether it may be given bundles of a namespace."""
        return self.status == "up" and self.serves(namespace)

    def serves(self, namespace: str) -> bool:
        """Return whether its program serves a namespace. Of the wildcards of `fnmatch`, only `*` is
        one in a pattern.
        """
        return self.namespaces is None or any(
            fnmatchcase(namespace, pattern.replace("[", "[[]").replace("?", "[?]"))
            for pattern in self.namespaces
        )

    def renewed(self, at_ms: int) -> None:
        """Record a renewal. An early one shows that the log's clock was set back."""
        soon_ms = 0 if self.renewed_at_ms is None else self.renewed_at_ms + self.renew_ms - at_ms
        self.renewed_at_ms = at_ms
        if soon_ms <= APPEND_TIME_ERROR_MS:
            self.soon_in_a_row = 0
            return
        self.soon_in_a_row += 1
        before_ms = self.soon_ms if at_ms - self.soon_at_ms <= self.lease_ms else 0
        self.soon_ms = before_ms + soon_ms if self.soon_in_a_row <= SOON_IN_A_ROW_MAX else 0
        self.soon_at_ms = at_ms


def joined_member(offset: int, at_ms: int, raw: Raw) -> Member:
    """Return the broker that an accepted `joined` record creates at this offset and log time."""
    return Member(
        status="up",
        incarnation=offset,
        last=offset,
        sequence=0,
        instance_id=raw["instance_id"],
        lease_ms=raw["lease_ms"],
        grace_ms=raw["grace_ms"],
        renew_ms=raw["renew_ms"],
        supported_level=raw.get("supported_level") or FIRST_LEVEL,
        extend_ms=raw.get("extend_ms") or 0,
        namespaces=raw.get("namespaces"),
        last_at_ms=at_ms,
        back_at_ms=at_ms,
        renewed_at_ms=at_ms,
    )


@dataclass(slots=True, kw_only=True)
class Whole:
    """State that exists once per log. `at_ms` is the log's time and `awake_ms` the awake time of
    the last record.

    * `begun`: the offset from which records were read without a gap.
    * `stood_ms`: the log's time when it last stood still while time passed: an entry was older, or
      one broker renewed twice.
    """

    begun: int = 0
    genesis: int | None = None
    cluster: str | None = None
    base: int = 0
    level: int = 0
    level_last: int = 0
    removed_at: int = 0
    awake_ms: int = 0
    at_ms: int = 0
    stood_ms: int = 0


@dataclass(slots=True, kw_only=True)
class Incarnations:
    """The sorted offsets of the newest accepted `joined` records. All above `known_from` are
    included.
    """

    known_from: int = 0
    offsets: list[int] = field(default_factory=list)

    def add(self, offset: int) -> None:
        """Add an offset above all others."""
        self.offsets.append(offset)
        if len(self.offsets) > INCARNATIONS_MAX:
            self.known_from = self.offsets.pop(0)

    def never_was(self, incarnation: int) -> bool:
        """Return whether it is certain that no broker ever had this incarnation."""
        if incarnation <= self.known_from:
            return False
        place = bisect_left(self.offsets, incarnation)
        return place == len(self.offsets) or self.offsets[place] != incarnation


class Namespace(NamedTuple):
    """A namespace.

    * `deleting_since`: when its deletion began; None if it is not being deleted, or that was
      reported as too long.
    * `served_since_ms`: the awake time since when a broker that serves it is up; None if none is.
    """

    status: str
    last: int
    deleting_since: Since | None = None
    served_since_ms: int | None = None

    @classmethod
    def parse(cls, data: bytes) -> Namespace:
        """Return the namespace from its row."""
        status, last, since, served_ms = orjson.loads(data)
        return cls(status, last, None if since is None else (since[0], since[1]), served_ms)


class Known:
    """All of the membership's state, except who holds which bundle.

    * `policies`: the last offset of each.
    * `live`: the ids of live incarnations. It follows from `brokers`.
    """

    def __init__(
        self, whole: Whole | None = None, incarnations: Incarnations | None = None
    ) -> None:
        """Begin without brokers, namespaces and policies."""
        self.whole = whole or Whole()
        self.incarnations = incarnations or Incarnations()
        self.brokers = StateTable[str, Member](
            f"{PREFIX}broker:", str, orjson.dumps, lambda data: Member(**orjson.loads(data))
        )
        self.namespaces = StateTable[str, Namespace](
            f"{PREFIX}namespace:", str, lambda each: orjson.dumps(tuple(each)), Namespace.parse
        )
        self.policies = StateTable[str, int](f"{PREFIX}policy:", str, orjson.dumps, orjson.loads)
        self.live: dict[int, str] = {}

    def unseen_ms(self, member: Member) -> int:
        """Return by how much live brokers' renewals were early since the member's last record."""
        since_ms = member.last_at_ms or 0
        others = (self.brokers[name] for name in self.live.values())
        return max((other.soon_ms for other in others if other.soon_at_ms > since_ms), default=0)

    def find_live(self) -> None:
        """Compute `live` from the statuses of the brokers."""
        self.live = {
            member.incarnation: name
            for name, member in sorted(self.brokers.items())
            if member.status in LIVE
        }
