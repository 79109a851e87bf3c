"""Who is a member, and what else there is one of: the state of the second membership, as values.

May live here: the values, and what `Membership` begins from. They are judged by in `spark_jobs.rules.opinions`, and changed by
`spark_jobs.rules.membership` alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

FIRST_LEVEL: Final = 1
"""The level of rules of a record that names none."""

INCARNATIONS_MAX: Final = 1_024
"""Incarnations that are remembered, the dead ones too: of one that is older it cannot be said that it never was."""

LIVE: Final = ("up", "draining")
"""The statuses of a broker that the log counts as alive."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A broker id and its newest incarnation; `last_at_ms` is the log's time at `last`, None if that was not read.

    `back_at_ms` is the log's time at which its own lease last became good: when it joined, or came back after a gap that was longer
    than its lease; None if that was not read. `heard_ms` is the awake time (`spark_jobs.rules.membership`) of its own last accepted
    membership record, and `is_silence_told` says that its silence since then has been told.
    """

    status: str
    incarnation: int
    last: int
    sequence: int
    nonce: str
    lease_ms: int
    margin_ms: int
    supported_level: int
    last_at_ms: int | None = None
    back_at_ms: int | None = None
    heard_ms: int = 0
    is_silence_told: bool = False


@dataclass(slots=True, kw_only=True)
class Standing:
    """What a membership begins from if the head of the log is gone: taken from a view that somebody else folded.

    `namespaces` maps each name to (status, last), `policies` to last; `bundles` maps each that names somebody to
    (owner, source, state as records spell it).
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

    `stood_ms` is the log's time at which it last stood still, though time passed: one broker renewed twice.
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

    def find_live(self) -> None:
        """Set `live` by the statuses of the brokers."""
        self.live = {member.incarnation: name for name, member in sorted(self.brokers.items()) if member.status in LIVE}
