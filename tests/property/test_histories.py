"""Compare the histories of random channels with a slow and obvious model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import BundleEntry, Verdict
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, BrokerRecord, Unreadable
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.view import View, apply
from equipoise.spark_jobs.sequence.histories import Histories
from equipoise.spark_jobs.sequence.rows import Emitted, Table
from tests.channels.walk import Walk

RECORDS_MAX = 250
ON_ITS_WAY = ("transferring", "handing_over", "unloading")

Row = Mapping[str, Any]


def time_of(offset: int) -> int:
    """The log's time at an offset."""
    return 1_000_000 + 7 * offset


def rows_of(emitted: list[Emitted], table: Table) -> list[Row]:
    """The rows of one table."""
    return [orjson.loads(row.body or b"") for row in emitted if row.table == table]


class Obvious:
    """The model: after each record it compares each bundle of the view with what it was before."""

    def __init__(self) -> None:
        self.bundles: dict[str, BundleEntry] = {}
        self.brokers: dict[int, str] = {}
        self.began: dict[str, int] = {}
        self.asked: dict[str, tuple[int, str | None]] = {}
        self.ready: dict[str, int] = {}
        self.transitions: Counter[tuple[object, ...]] = Counter()
        self.intervals: Counter[tuple[object, ...]] = Counter()
        self.transfers: Counter[tuple[object, ...]] = Counter()

    def see(self, view: View, offset: int, record: AnyRecord | Unreadable) -> None:
        """Look at all that is there after a record."""
        alive = {broker.incarnation: broker.broker for broker in view.live_brokers()}
        before, after = self.bundles, dict(view.bundles)
        dead = self.brokers.keys() - alive.keys()
        self.brokers |= alive
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old == new:
                continue
            self.transitions[offset, name, old and old.phase, new and new.phase] += 1
            if (old and old.server) != (new and new.server):
                if old and old.server is not None:
                    how = self._how(old, new, record, dead)
                    self.intervals[
                        name, self.brokers[old.server], old.token, self.began.pop(name), offset, how
                    ] += 1
                if new and new.server is not None:
                    self.began[name] = offset
            self._move(name, old, new, offset, record, dead)
        self.bundles = after
        self.brokers = alive

    def _how(
        self,
        old: BundleEntry,
        new: BundleEntry | None,
        record: AnyRecord | Unreadable,
        dead: object,
    ) -> str:
        if old.server in dead:  # type: ignore[operator]  # A view of keys.
            return (
                "left" if isinstance(record, BrokerRecord) and record.status == "left" else "died"
            )
        if new is None:
            return {"Split": "split", "Merge": "merged", "NamespaceRecord": "deleted"}[
                type(record).__name__
            ]
        return {"handing_over": "transferred", "unloading": "unloaded"}[old.phase]

    def _move(  # noqa: PLR0917 - what is seen of one bundle, in the order of its life
        self,
        name: str,
        old: BundleEntry | None,
        new: BundleEntry | None,
        offset: int,
        record: AnyRecord | Unreadable,
        dead: object,
    ) -> None:
        if new and new.phase in ON_ITS_WAY and not (old and old.phase in ON_ITS_WAY):
            self.asked[name] = offset, record.publisher
        if new and new.phase == "handing_over":
            self.ready[name] = offset
        if old and old.phase in ON_ITS_WAY and not (new and new.phase in ON_ITS_WAY):
            begun, asked_by = self.asked.pop(name)
            ready = self.ready.pop(name, None)
            result = {"transferring": "cancelled", "handing_over": "done", "unloading": "unloaded"}[
                old.phase
            ]
            if old.source in dead or old.owner in dead:  # type: ignore[operator]  # As above.
                # As above.
                side = "source" if old.source in dead else "destination"  # type: ignore[operator]
                result = (
                    f"{side}_left"
                    if isinstance(record, BrokerRecord) and record.status == "left"
                    else f"{side}_died"
                )
            self.transfers[name, begun, asked_by, ready, offset, result] += 1


def told(walk: Walk, length: int) -> tuple[list[Emitted], Obvious]:
    """What histories and their model make of a walk."""
    view, histories, model = View(), Histories(), Obvious()
    emitted: list[Emitted] = []
    for _ in range(length):
        offset, data = walk.step()
        record = decode(data)
        verdict: Verdict = apply(view, offset, record)
        if verdict.changes:
            emitted += histories.feed(
                Folded(offset=offset, record=record, verdict=verdict), time_of(offset)
            )
        model.see(view, offset, record)
    return emitted, model


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, RECORDS_MAX))
def test_histories_are_those_of_the_obvious_model(seed: int, length: int) -> None:
    emitted, model = told(Walk(seed), length)
    transitions, intervals, transfers = (
        rows_of(emitted, table) for table in (Table.TRANSITIONS, Table.INTERVALS, Table.MOVES)
    )
    offsets = [row.offset for row in emitted if row.table == Table.TRANSITIONS]
    found = Counter(
        (at, row["bundle"], row["phase_before"], row["phase_after"])
        for at, row in zip(offsets, transitions, strict=True)
    )
    assert model.transitions == found
    columns = ("bundle", "broker", "token", "from_offset", "to_offset", "how")
    assert model.intervals == Counter(tuple(row[column] for column in columns) for row in intervals)
    columns = ("bundle", "begun_offset", "asked_by", "ready_offset", "ended_offset", "result")
    assert model.transfers == Counter(tuple(row[column] for column in columns) for row in transfers)


BEGAN = {
    *("from_offset", "from_at", "duration_ms", "begun_offset", "begun_at", "asked_by", "reason"),
    *("ready_offset", "ready_at", "prepare_ms", "pause_ms"),
}
"""The columns that tell of the time before."""


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, RECORDS_MAX), st.integers(0, RECORDS_MAX))
def test_histories_that_begin_late_lack_only_what_was_before(
    seed: int, length: int, middle: int
) -> None:
    walk, view, whole = Walk(seed), View(), Histories()
    late: Histories | None = None
    for number in range(length):
        if number == middle:
            late = Histories()
            late.begin(from_bytes(to_bytes(view)))
        offset, data = walk.step()
        record = decode(data)
        verdict = apply(view, offset, record)
        if verdict.changes:
            folded = Folded(offset=offset, record=record, verdict=verdict)
            rows = list(whole.feed(folded, time_of(offset)))
            if late is not None:
                late_rows = list(late.feed(folded, time_of(offset)))
                assert [(row.table, row.offset, row.ordinal) for row in rows] == [
                    (row.table, row.offset, row.ordinal) for row in late_rows
                ]
                for row, late_row in zip(rows, late_rows, strict=True):
                    known, of_late = (orjson.loads(each.body or b"") for each in (row, late_row))
                    lacks = {name for name in known if known[name] != of_late[name]}
                    assert lacks <= BEGAN
                    assert {of_late[name] for name in lacks} <= {None}
