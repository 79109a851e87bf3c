"""What a balancer answers: which bundles move where, and why; and why the others stay.

May live here: the plan's values, and the port behind which every policy of balancing is a plug.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shedder.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Transfer `bundle` from the broker `source` to the broker `destination`; `reason` goes on record with it."""

    bundle: str
    source: str
    destination: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Nothing is taken from `subject`, a broker, or it is not moved, a bundle; and why."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One round's moves, in the order in which they are to be begun, and the stays, by subject."""

    moves: tuple[Move, ...]
    stays: tuple[Stay, ...]


class Shedder(Protocol):
    """A policy of balancing: a pure function of one snapshot.

    Whatever the policy: no bundle moves twice in a plan; nothing and nobody that is barred takes part; equal snapshots give
    equal plans. Every broker that gives nothing has a `Stay`.
    """

    def plan(self, snapshot: Snapshot) -> Plan:
        """The moves of this round. They may be rejected one by one: the fold decides, and the next round sees what came of it."""
        ...
