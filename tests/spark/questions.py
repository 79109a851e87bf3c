"""The questions that docs/how-to/ask-the-archive.md answers in SQL, a small archive, and what each
answer is there.

The archive is written by hand, so that each answer can be checked by eye. Times are seconds after
`BEGAN`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.tables.arrow import arrow_schema
from equipoise.spark_jobs.tables.schema import SCHEMAS

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/ask-the-archive.md"
BEGAN: Final = datetime(2025, 11, 22, 23, 59, tzinfo=UTC)
DAY, NEXT_DAY = date(2025, 11, 22), date(2025, 11, 23)
LEFT, RIGHT = "acme/orders/0x00000000_0x40000000", "acme/orders/0x40000000_0xffffffff"

_find_queries: Final = re.compile(r"\n((?:[^\n]+\n)+)\n```sql\n(.*?)```", re.DOTALL).findall

Row = Mapping[str, Any]


def at(seconds: float) -> datetime:
    """Return a time of the story."""
    return BEGAN + timedelta(seconds=seconds)


def _interval(
    bundle: str, broker: str, begin: int | None, end: int | None, how: str | None = None
) -> Row:
    """Return an ownership from one record to another. A record's time is its offset in seconds."""
    return {
        "bundle": bundle,
        "broker": broker,
        "token": begin,
        "from_offset": begin,
        "from_at": None if begin is None else at(begin),
        "to_offset": end,
        "to_at": None if end is None else at(end),
        "logged_at": None if end is None else at(end),
        "how": how,
    }


def _move(offset: int, bundle: str, way: str, result: str = "done", **more: object) -> Row:
    source, destination = way.split()
    return {
        "log_offset": offset,
        "logged_at": at(offset),
        "ended_offset": offset,
        "ended_at": at(offset),
        "namespace": "acme/orders",
        "bundle": bundle,
        "source": source,
        "destination": destination,
        "asked_by": "b1",
        "reason": f"reason {offset}",
        "result": result,
        **more,
    }


def _load(offset: int, broker: str, cost: float, bundle: str | None = None, **more: object) -> Row:
    return {
        "log_offset": offset,
        "logged_at": at(offset),
        "broker": broker,
        "bundle": bundle,
        "cost": cost,
        **more,
    }


def _event(offset: int, broker: str, event: str) -> Row:
    return {"log_offset": offset, "logged_at": at(offset), "broker": broker, "event": event}


def _record(offset: int, publisher: str | None, kind: str | None, verdict: str) -> Row:
    return {
        "log_offset": offset,
        "logged_at": at(offset),
        "publisher": publisher,
        "kind": kind,
        "verdict": verdict,
    }


def _round(offset: int, kind: str, result: str, cause: str, **more: object) -> Row:
    return {
        "log_offset": offset,
        "logged_at": at(offset),
        "kind": kind,
        "strategy": "BalancedShedder",
        "result": result,
        "cause": cause,
        **more,
    }


def _done(bundle: str, **more: object) -> Row:
    """Return a move of an outcome: b2 was to have the mean load, from half of it."""
    loads = {"destination_before": 0.5, "destination_after": 1.0}
    return {"bundle": bundle, "source": "b1", "destination": "b2", "reason": "hot", **loads, **more}


_STAYS: Final = [{"subject": "b1", "reason": "it is even"}]
_ROWS: Final[Mapping[Table, Sequence[Row]]] = {
    # LEFT: b1 dies at 20, b2 owns it 5.5 s later, and b3 from 70 on, after a gap of a second on the
    # next day. RIGHT: b1 has had it since before the archive.
    Table.INTERVALS: (
        _interval(LEFT, "b1", 10, 20, "died"),
        {**_interval(LEFT, "b2", 25, 69, "unloaded"), "from_at": at(25.5)},
        _interval(LEFT, "b3", 70, None),
        _interval(RIGHT, "b1", None, 20, "died"),
    ),
    Table.BROKER_EVENTS: (
        _event(1, "b1", "joined"),
        _event(2, "b2", "joined"),
        _event(20, "b1", "down"),
        _event(30, "b1", "joined"),
        _event(61, "b1", "joined"),
    ),
    Table.SERVING: (
        {"broker": "b1", "bundle": LEFT, "noted_at": at(19), "ended": "lease_over"},
        {"broker": "b1", "bundle": RIGHT, "noted_at": at(21), "ended": "lease_over"},
        {"broker": "b2", "bundle": LEFT, "noted_at": at(69), "ended": "closed"},
        {"broker": "b3", "bundle": LEFT, "noted_at": at(70), "ended": None},
    ),
    Table.MOVES: (
        _move(11, LEFT, "b1 b2", prepare_ms=500, pause_ms=10, duration_ms=510),
        _move(12, LEFT, "b2 b1", prepare_ms=20, pause_ms=30, duration_ms=50),
        _move(13, RIGHT, "b1 b2", "destination_died", duration_ms=9_000, asked_by="admin:ops"),
        _move(65, LEFT, "b1 b3", prepare_ms=1, pause_ms=2, duration_ms=3),
    ),
    Table.TRANSITIONS: (
        {"log_offset": 40, "bundle": "whole", "kind": "split", "reason": "hot", "publisher": "b2"}
        | {"phase_before": "splitting", "phase_after": None},
        *(
            {"log_offset": 40, "bundle": bundle, "kind": "split", "reason": "hot"}
            | {"publisher": "b2", "phase_before": None, "phase_after": "owned"}
            for bundle in (LEFT, RIGHT)
        ),
        {"log_offset": 41, "bundle": LEFT, "kind": "bundle", "phase_after": "owned"},
    ),
    Table.LOADS: (
        _load(1, "b1", 4.0, cpu=0.9),
        _load(1, "b1", 3.0, LEFT),
        _load(1, "b1", 1.0, RIGHT),
        _load(2, "b1", 2.0, cpu=0.5),
        _load(2, "b1", 1.0, LEFT),
        _load(3, "b2", 1.0, cpu=0.25),
        _load(3, "b2", 0.0, RIGHT),
    ),
    Table.DECISIONS: (
        _round(1, "shed", "Skip", "HitCount", deviation=0.5, reason="even", stays=_STAYS),
        _round(2, "shed", "Success", "Overloaded", deviation=0.25, stays=_STAYS),
        _round(
            14,
            "outcome",
            "Success",
            "Unknown",
            stays=[{"subject": LEFT, "reason": "it was gone"}],
            moves=[
                _done(LEFT, predicted_ms=10.0, took_ms=30),
                _done(RIGHT, predicted_ms=20.0, took_ms=10),
            ],
            brokers=[
                {"broker": "b1", "before": 1.5, "predicted": 1.0, "measured": 1.25},
                {"broker": "b2", "before": 0.5, "predicted": 1.0, "measured": 1.0},
                {"broker": "b3", "before": 9.0, "predicted": 9.0, "measured": None},
            ],
        ),
        _round(4, "outcome", "Failure", "Unknown", strategy="AvgShedder"),
        _round(70, "shed", "Skip", "HitCount", deviation=1.0, reason="calm"),
    ),
    Table.RECORDS: (
        _record(1, "b1", "joined", "accepted"),
        _record(2, "b2", "bundle", "stale"),
        _record(3, "b2", "bundle", "stale"),
        _record(4, None, None, "malformed"),
    ),
    Table.FINDINGS: (
        {"log_offset": 3, "rule": "token_fell", "text": "b", "logged_at": at(3)},
        {"log_offset": 9, "rule": "token_fell", "text": "a", "logged_at": at(9)},
        {"log_offset": 5, "rule": "lease", "text": "c", "logged_at": at(5)},
    ),
    Table.GAPS: ({"log_offset": 9, "first_offset": 6, "last_offset": 8, "logged_at": at(9)},),
}

VIEW: Final = "Each move of the balancer"
"""What the page gives the name `move_outcomes`."""

ANSWERS: Final[Mapping[str, Sequence[tuple[object, ...]]]] = {
    "How long had each bundle no owner": [
        (DAY, LEFT, 1, 5_500),
        (NEXT_DAY, LEFT, 1, 1_000),
    ],
    "Who owned a bundle when record 4711": [(LEFT, "b3", 70, at(70), None, None)],
    "Which brokers died, and how long": [(20, "b1", at(20), 2, 1, 5_500)],
    "Which brokers flap?": [(DAY, "b1", 2, 1)],
    "Which brokers lost their lease": [("b1", 2, at(19), at(21))],
    "How many bundles moved in each hour?": [(DAY, 23, 3, 2, 40), (NEXT_DAY, 0, 1, 1, 2)],
    "Which ten transfers were the slowest": [
        (RIGHT, "b1", "b2", "destination_died", None, None, 9_000, "reason 13"),
        (LEFT, "b1", "b2", "done", 500, 10, 510, "reason 11"),
        (LEFT, "b2", "b1", "done", 20, 30, 50, "reason 12"),
        (LEFT, "b1", "b3", "done", 1, 2, 3, "reason 65"),
    ],
    "Which pauses do clients notice?": [("acme/orders", 3, 10, 30)],
    VIEW: [
        (14, "BalancedShedder", LEFT, "b1", "b2", "hot", 10, 10, 30, 0.5, 1, 1),
        (14, "BalancedShedder", RIGHT, "b1", "b2", "hot", None, 20, 10, 0.5, 1, 1),
    ],
    "Which policy moved most": [("BalancedShedder", 2, 10, 15, 20, 0.5, 0, 0)],
    "Who asked for moves, and why did they fail?": [
        ("admin:ops", "destination_died", 1, "reason 13")
    ],
    "Which bundles moved back": [(LEFT, 1)],
    "Which bundles were split or merged": [(40, "split", "b2", "hot", "whole", 1, 2)],
    "Which bundles are hot?": [(LEFT, 2, 2, 0.75), (RIGHT, 2, 0.5, 0.25)],
    "Which brokers were busy": [("b1", 2, 0.7, 0.9, 0.5), ("b2", 1, 0.25, 0.25, 0)],
    "How even was the load?": [(DAY, 23, 2, 0.375, 0.5), (NEXT_DAY, 0, 1, 1, 1)],
    "Why did the balancer move nothing?": [("BalancedShedder", "Skip", "HitCount", 2, "calm")],
    "What stays where it is": [("b1", "it is even", 2)],
    "Whose records were rejected?": [
        ("b2", "bundle", "stale", 2, 3),
        (None, None, "malformed", 1, 4),
    ],
    "What did the audit find?": [("token_fell", 2, 3, 9, "a"), ("lease", 1, 5, 5, "c")],
    "What is missing in the archive?": [(6, 8, 3, at(9))],
}
"""The answer to each question, by how it begins."""


def questions() -> Mapping[str, str]:
    """Return the queries of the page by the questions before them."""
    return dict(_find_queries(PAGE.read_text(encoding="utf-8")))


def query_of(beginning: str) -> str:
    """Return the query of the question that begins so."""
    (found,) = [query for text, query in questions().items() if text.startswith(beginning)]
    return found


def tables() -> Mapping[str, pa.Table]:
    """Return all tables of the small archive by name, with all columns."""
    found = {}
    for table, schema in SCHEMAS.items():
        rows = [
            {"day": row["logged_at"].date() if row.get("logged_at") else None, **row}
            for row in _ROWS.get(table, ())
        ]
        found[str(table)] = pa.Table.from_pylist(rows, schema=arrow_schema(schema))
    return found


def rounded(rows: Sequence[Sequence[Any]]) -> list[tuple[object, ...]]:
    """Return rows with equal values for equal numbers, and times in UTC."""
    return [tuple(map(_rounded, row)) for row in rows]


def _rounded(cell: Any) -> object:  # noqa: ANN401 - whatever an engine returns
    if isinstance(cell, datetime):
        return cell.astimezone(UTC)  # Spark's are without a zone, in that of the machine.
    return round(float(cell), 9) if hasattr(cell, "__float__") else cell
