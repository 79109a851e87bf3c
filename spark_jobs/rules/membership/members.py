"""Who is a member, and what else there is one of: the state of the second membership, as values.

May live here: the values, and what `Membership` begins from. They are judged by in `spark_jobs.rules.membership.opinions`, and changed by
`spark_jobs.rules.membership.view` alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from equipoise.spark_jobs.rules.facts import Raw

FIRST_LEVEL: Final = 1
"""The level of rules of a record that names none."""

INCARNATIONS_MAX: Final = 1_024
"""Incarnations that are remembered, the dead ones too: of one that is older it cannot be said that it never was."""

APPEND_TIME_ERROR_MS: Final = 50
"""How wrong the log's times of two records may be to one another: rounding, and two Kafka brokers' clocks."""

SOON_IN_A_ROW_MAX: Final = 2
"""So many renewals come too soon where the log's clock is set back once: two if its time stands meanwhile, and none renews twice in that.
Where more do it is the broker's clock that is fast, which proves nothing of the log's: its broker accuses others too early."""

LIVE: Final = ("up", "draining")
"""The statuses of a broker that the log counts as alive."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A broker id and its newest incarnation; `last_at_ms` is the log's time at `last`, None if that was not read.

    `back_at_ms` is the log's time at which its own lease last became good: when it joined, or came back after a gap that was longer than
    its lease; None if that was not read. `renewed_at_ms` is that of its last renewal, `soon_ms` by how much those up to `soon_at_ms` came
    sooner than it promised, so that time passed which the log's does not show, and `soon_in_a_row` how many of the last ones did.
    `heard_ms` is the awake time (`spark_jobs.rules.membership.view`) of its own last accepted membership record, and `is_silence_told` says
    that its silence since then has been told.
    """

    status: str
    incarnation: int
    last: int
    sequence: int
    nonce: str
    lease_ms: int
    margin_ms: int
    renew_ms: int
    supported_level: int
    last_at_ms: int | None = None
    back_at_ms: int | None = None
    renewed_at_ms: int | None = None
    soon_ms: int = 0
    soon_at_ms: int = 0
    soon_in_a_row: int = 0
    heard_ms: int = 0
    is_silence_told: bool = False

    def renewed(self, at_ms: int) -> None:
        """It renewed at this time of the log: whoever comes sooner than it promised shows that the log's clock was set back."""
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
    """The broker that the accepted record `joined` at this offset makes, with the log's time."""
    return Member(
        status="up",
        incarnation=offset,
        last=offset,
        sequence=0,
        nonce=raw["nonce"],
        lease_ms=raw["lease_ms"],
        margin_ms=raw["margin_ms"],
        renew_ms=raw["renew_ms"],
        supported_level=raw.get("supported_level") or FIRST_LEVEL,
        last_at_ms=at_ms,
        back_at_ms=at_ms,
        renewed_at_ms=at_ms,
    )


@dataclass(slots=True, kw_only=True)
class Standing:
    """What a membership begins from if the head of the log is gone: taken from a view that somebody else folded.

    `namespaces` maps each name to (status, last), `policies` to last, `bundles` to (owner, source, state as records spell it).
    """

    offset: int
    genesis: int | None
    cluster: str | None
    base: int
    level: int
    level_last: int
    removed_at: int
    brokers: Mapping[str, Member]
    namespaces: Mapping[str, tuple[str, int]]
    policies: Mapping[str, int]
    bundles: Mapping[str, tuple[int | None, int | None, str]]


@dataclass(slots=True, kw_only=True)
class Whole:
    """What there is one of. `awake_ms` is the awake time, `at_ms` the log's time, of the last record.

    `stood_ms` is the log's time at which it last stood still, though time passed: an entry was older, or one broker renewed twice.
    `up_since_ms` is the awake time since when there is a broker that is up, None if there is none.
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
    up_since_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class Incarnations:
    """The offsets of the newest accepted `joined` records, rising; `known_from` is the offset above which all are here."""

    known_from: int = 0
    offsets: list[int] = field(default_factory=list)

    def add(self, offset: int) -> None:
        """One more, above all others."""
        self.offsets.append(offset)
        if len(self.offsets) > INCARNATIONS_MAX:
            self.known_from = self.offsets.pop(0)

    def never_was(self, incarnation: int) -> bool:
        """Whether it is certain that no broker ever had this incarnation."""
        if incarnation <= self.known_from:
            return False
        place = bisect_left(self.offsets, incarnation)
        return place == len(self.offsets) or self.offsets[place] != incarnation


@dataclass(slots=True, kw_only=True)
class Known:
    """All of it. `live` maps live incarnations to ids, `namespaces` names to (status, last), `policies` names to last."""

    whole: Whole = field(default_factory=Whole)
    brokers: dict[str, Member] = field(default_factory=dict)
    live: dict[int, str] = field(default_factory=dict)
    namespaces: dict[str, tuple[str, int]] = field(default_factory=dict)
    policies: dict[str, int] = field(default_factory=dict)
    incarnations: Incarnations = field(default_factory=Incarnations)

    def unseen_ms(self, member: Member) -> int:
        """By how much live brokers renewed too soon since that member was heard of."""
        since_ms = member.last_at_ms or 0
        others = (self.brokers[name] for name in self.live.values())
        return max((other.soon_ms for other in others if other.soon_at_ms > since_ms), default=0)

    def find_live(self) -> None:
        """Set `live` by the statuses of the brokers."""
        self.live = {member.incarnation: name for name, member in sorted(self.brokers.items()) if member.status in LIVE}
