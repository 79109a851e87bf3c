"""Make the sections of the overview: rows by key, which the page shows and streams carry.

Costs are shares of a core, uses are fractions, times are Unix time in milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from equipoise.brokers.balancing.controls import maintenances_in
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.moves import Moves, ObservedMove
from equipoise.brokers.balancing.named import patterns_of
from equipoise.brokers.balancing.policies import domain_of, domains_in
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.errors import counted
from equipoise.brokers.runtime.bundle_lines import broker_of
from equipoise.brokers.runtime.service import http_address
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Unreadable
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import Names, describe
from equipoise.shedder.loads import Load

Rows = Mapping[str, object]
Sections = Mapping[str, Rows]

MOVING_MAX: Final = 100
"""How many moves under way are shown. The others are only counted."""

MOVED_MAX: Final = 40
ASKED_MAX: Final = 30

_LINES_MAX: Final = 12
_LINE_CHARACTERS_MAX: Final = 300


def changes(before: Sections, after: Sections) -> Sections:
    """Return the rows that differ in `after`, by section. None: the row is gone."""
    found = {}
    for section, rows in after.items():
        old = before.get(section, {})
        if rows is not old:
            new = {key: row for key, row in rows.items() if old.get(key) != row}
            gone = dict.fromkeys(key for key in old if key not in rows)
            if new or gone:
                found[section] = new | gone
    return found


def rounded(figure: float) -> float:
    """Return a figure with three digits, so that noise is no change."""
    return float(f"{figure:.3g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one broker sees of the cluster.

    * `numbers`: of brokers in strips, by id. `fresh`: the loads that count, by broker.
    * `suspects`: brokers whose renewal is late. `since_ms`: since when a bundle is not settled.
    * `free`: how many bundles of a namespace have no owner, and since when some have none.
    * `last_round`: of the shedder, if it is known.
    * `at_broker`: what is wrong with the broker that answers: a sentence and a remedy each.
    * `knows_loads`: loads are kept for a while only.
    """

    view: View
    now_ms: int
    settings: BalancingSettings
    numbers: Mapping[str, int] = field(default_factory=dict)
    fresh: Mapping[str, Load] = field(default_factory=dict)
    suspects: frozenset[str] = frozenset()
    since_ms: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    last_round: Decision | None = None
    at_broker: Sequence[tuple[str, str]] = ()
    knows_loads: bool = True


def broker_rows(seen: Seen) -> dict[str, object]:
    """Return a row for each broker, by id."""
    view, domains, maintained = seen.view, domains_in(seen.view), maintenances_in(seen.view)
    leader = view.leader()
    rows: dict[str, object] = {}
    for name in sorted(view.brokers):
        broker, load = view.brokers[name], seen.fresh.get(name)
        maintenance = maintained.get(name)
        rows[name] = {
            "number": seen.numbers.get(name, 0),
            "status": broker.status,
            "leader": broker is leader,
            "suspect": name in seen.suspects,
            "maintenance": None if maintenance is None else maintenance.reason,
            "http": http_address(broker.joined.addresses),
            "version": broker.joined.version,
            "domain": domain_of(broker, domains).name,
            "serves": patterns_of(broker),
            "cores": broker.joined.capacity / 100,
            "bundles": view.held_count(broker.incarnation) if broker.live else 0,
            "cost": None if load is None else rounded(load.cost),
            "use": None if load is None else rounded(load.resources.max_use),
            "memory": None if load is None else rounded(load.resources.memory.percent / 100),
        }
    return rows


def moving_rows(seen: Seen, unsettled: Iterable[BundleEntry], moves: Moves) -> Rows:
    """Return a row for each bundle on its way, by name. `moves`: as far as they are known."""
    moving = islice((each for each in unsettled if each.phase != "free"), MOVING_MAX)
    return {
        bundle.name: {
            "phase": bundle.phase,
            "from": broker_of(seen.view, bundle.source),
            "to": broker_of(seen.view, bundle.owner),
            "since_ms": seen.since_ms.get(bundle.name, seen.now_ms),
            "reason": moves.reason(bundle.name),
        }
        for bundle in moving
    }


def moved_row(move: ObservedMove, view: View, *, at_ms: int) -> Rows:
    """Return the row of a move that has ended."""
    return {
        "bundle": move.bundle,
        "kind": move.kind,
        "result": move.result,
        "from": broker_of(view, move.source),
        "to": broker_of(view, move.destination),
        "token": move.token,
        "took_ms": move.duration_ns // 1_000_000,
        "pause_ms": move.pause_ns // 1_000_000,
        "at_ms": at_ms,
        "reason": move.reason,
    }


def asked_row(folded: Folded, view: View) -> Rows | None:
    """Return the row of a record that a person asked for; None for others."""
    record = folded.record
    if isinstance(record, Unreadable) or not record.requester.startswith(ADMIN_PREFIX):
        return None
    return record_row(folded, describe(folded, view, Names(view)))


def record_row(folded: Folded, lines: Sequence[str]) -> Rows:
    """Return the row of a record, with what `story` says about it."""
    record = folded.record
    return {
        "at_ms": 0 if isinstance(record, Unreadable) else record.timestamp_ms,
        "refused": not folded.verdict.accepted,
        "lines": [line[:_LINE_CHARACTERS_MAX] for line in lines[:_LINES_MAX]],
    }


class Activity:
    """The moves under way, those that have ended, and what people asked for, in the records that
    were folded so far.
    """

    def __init__(self) -> None:
        self.moves = Moves()
        self._moved: deque[tuple[str, Rows]] = deque(maxlen=MOVED_MAX)
        self._asked: deque[tuple[str, Rows]] = deque(maxlen=ASKED_MAX)

    def folded(self, folded: Folded, view: View, *, now_ns: int, at_ms: int) -> None:
        """Note a record that was read at `now_ns` (see `Moves.folded`), Unix time `at_ms`."""
        row = asked_row(folded, view)
        if row is not None:
            self._asked.append((f"{folded.offset:012}", row))
        for move in self.moves.folded(folded, now_ns):
            row = moved_row(move, view, at_ms=at_ms)
            self._moved.append((f"{move.offset} {move.bundle}", row))

    def sections(self) -> Sections:
        """Return the sections of what has ended."""
        return {"moved": dict(self._moved), "asked": dict(self._asked)}


def decision_row(decision: Decision) -> Rows:
    """Return the row of a decision, in words."""
    lines = [line[:_LINE_CHARACTERS_MAX] for line in decision.lines]
    more = len(lines) - _LINES_MAX
    return {
        "at_ms": decision.at_ms,
        "title": decision.title,
        "lines": lines[:_LINES_MAX] + ([f"and {counted(more, 'line')} more"] if more > 0 else []),
        "moves": len(decision.plan.moves),
    }
