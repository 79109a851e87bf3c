"""Properties of sequences over random walks: batches and restarts change no row."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.codec import decode
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.core.view import View, apply
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.memory import put_rows
from equipoise.spark_jobs.sequence.rows import LASTING, Arrival, Emitted, Table
from equipoise.spark_jobs.sequence.sequence import FactSequence, RowSequence
from equipoise.spark_jobs.sequence.snapshots import unpacked
from tests.channels.walk import Walk

NOTES = (b"{}", b'{"bundle":"t/one/0x00000000_0xffffffff","broker":"a:1"}', b"no JSON", b"[]", None)


row_sequence = partial(RowSequence, snapshot_records=17)
"""A sequence of rows. A snapshot is due so often that walks have some."""


def arrivals_of(walk: Walk, *, length: int) -> list[Arrival]:
    """A walk as arrivals, with notes among its records, times that fall now and then, and entries
    without a value.
    """
    for _ in range(length):
        walk.step()
    rng = random.Random(length)
    arrivals = []
    for place, (offset, data) in enumerate(walk.entries):
        at_ms = 1_000 * place - rng.choice((0, 0, 0, 0, 1_500))
        arrivals.append(
            Arrival("channel", offset, max(at_ms, 0), None if rng.random() < 1 / 40 else data)
        )
        if rng.random() < 1 / 10:
            arrivals.append(
                Arrival(
                    rng.choice(("serving", "decisions", "loads")), place, at_ms, rng.choice(NOTES)
                )
            )
    return arrivals


def told_in_batches(
    make: Callable[[], RowSequence | FactSequence],
    arrivals: list[Arrival],
    cuts: list[int],
    rng: random.Random,
) -> list[Emitted | Fact]:
    """The rows or facts of these arrivals in batches, each by a sequence that is restored from the
    state that the one before it left.
    """
    state: dict[str, bytes] = {}
    sequence = make()
    told: list[Emitted | Fact] = []
    for low, high in pairwise((0, *sorted(cuts), len(arrivals))):
        told += sequence.feed(arrivals[low:high])
        put_rows(state, sequence.changed_rows())
        sequence = make()
        # In another order than they were written in: of that a storage promises nothing.
        sequence.restore(dict(rng.sample(sorted(state.items()), len(state))))
    return told


def of_entries(rows: Iterable[Emitted | Fact]) -> list[Emitted | Fact]:
    """Leave out the rows that say at the end of each batch what lasts."""
    return [row for row in rows if isinstance(row, Fact) or row.ordinal != LASTING]


@settings(max_examples=60, deadline=None)
@given(
    walk=st.builds(Walk, st.integers(0, 2**32), levels=st.booleans()),
    length=st.integers(1, 120),
    cuts=st.lists(st.integers(0, 150), max_size=6),
)
def test_rows_do_not_depend_on_batches_and_restarts(
    walk: Walk, length: int, cuts: list[int]
) -> None:
    arrivals = arrivals_of(walk, length=length)
    cuts = [min(cut, len(arrivals)) for cut in cuts]
    for make in (row_sequence, FactSequence):
        in_batches = told_in_batches(make, arrivals, cuts, random.Random(length))
        assert of_entries(make().feed(arrivals)) == of_entries(in_batches)


@settings(max_examples=30, deadline=None)
@given(walk=st.builds(Walk, st.integers(0, 2**32)), length=st.integers(1, 150))
def test_a_snapshot_is_the_view_after_its_offset(walk: Walk, length: int) -> None:
    arrivals = arrivals_of(walk, length=length)
    rows = [row for row in row_sequence().feed(arrivals) if row.ordinal != LASTING]
    places = [(row.table, row.offset, row.ordinal) for row in rows]
    assert len(places) == len(set(places))
    snapshots = {
        row.offset: unpacked(row.body or b"") for row in rows if row.table == Table.SNAPSHOTS
    }
    view = View()
    for arrival in arrivals:
        if arrival.source == "channel":
            apply(view, arrival.offset, decode(arrival.value or b""))
            if arrival.offset in snapshots:
                assert len(to_bytes(view)) == len(to_bytes(snapshots[arrival.offset]))
                assert view.digest() == snapshots.pop(arrival.offset).digest()
    assert not snapshots
