"""Properties of sequences over random walks: batches and restarts change no row."""

from __future__ import annotations

import random
from collections.abc import Sequence as Rows
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.codec import decode
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.core.view import View, apply
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.sequence.rows import LASTING, Arrival, Emitted, Table
from equipoise.spark_jobs.sequence.sequence import Sequence
from equipoise.spark_jobs.sequence.snapshots import unpacked
from tests.channels.walk import Walk

EVERYTHING = frozenset(Table) - {Table.FINDINGS}
NOTES = (b"{}", b'{"bundle":"t/one/0x00000000_0xffffffff","broker":"a:1"}', b"no JSON", b"[]", None)


def sequence_from(state: dict[str, bytes] | None = None) -> Sequence:
    """A sequence that goes on from this state; a snapshot is due so often that walks have some."""
    sequence = Sequence(EVERYTHING, snapshot_records=17)
    if state is not None:
        sequence.restore(state)
    return sequence


def keep(rows: dict[str, bytes], changed: Rows[StateRow]) -> None:
    """Put changed rows of state to those that are there."""
    for key, data in changed:
        if data is None:
            rows.pop(key, None)
        else:
            rows[key] = data


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


def told_in_batches(arrivals: list[Arrival], cuts: list[int], rng: random.Random) -> list[Emitted]:
    """The rows of these arrivals in batches, each by a sequence that is restored from the state
    that the one before it left.
    """
    state: dict[str, bytes] = {}
    sequence = sequence_from()
    told: list[Emitted] = []
    for low, high in pairwise((0, *sorted(cuts), len(arrivals))):
        told += sequence.feed(arrivals[low:high])
        keep(state, sequence.changed_rows())
        # In another order than they were written in: of that a storage promises nothing.
        shuffled = dict(rng.sample(sorted(state.items()), len(state)))
        sequence = sequence_from(shuffled)
    return told


def of_entries(rows: Rows[Emitted]) -> list[Emitted]:
    """Leave out the rows that say at the end of each batch what lasts."""
    return [row for row in rows if row.ordinal != LASTING]


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
    at_once = list(sequence_from().feed(arrivals))
    in_batches = told_in_batches(
        arrivals, [min(cut, len(arrivals)) for cut in cuts], random.Random(length)
    )
    assert of_entries(at_once) == of_entries(in_batches)


@settings(max_examples=30, deadline=None)
@given(walk=st.builds(Walk, st.integers(0, 2**32)), length=st.integers(1, 150))
def test_a_snapshot_is_the_view_after_its_offset(walk: Walk, length: int) -> None:
    arrivals = arrivals_of(walk, length=length)
    rows = of_entries(list(sequence_from().feed(arrivals)))
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
