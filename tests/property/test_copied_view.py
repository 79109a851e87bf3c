"""Copies of a view after any history: for a channel that goes on in another log, and for another
thread.
"""

from __future__ import annotations

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.log import FIRST_OFFSET, CompactedSnapshot, Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import Genesis, Reason
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.view import View, apply
from equipoise.channel.snapshots.snapshot_rows import encode_marker, marker_of, rows_of, view_of
from tests.channels.model import facts_of
from tests.channels.walk import Walk

FOUNDER = Author(publisher="admin:copy")
WALK_MAX = 160

walks = st.builds(Walk, st.integers(0, 2**32))


def folded(walk: Walk, length: int) -> View:
    """The view after the first entries of a walk."""
    view = View()
    for offset, data in islice((walk.step() for _ in range(length)), length):
        apply(view, offset, decode(data))
    return view


def copied(view: View, *, ahead: int = 0) -> View:
    """What a copy of the channel begins with: the same view above a new base, through rows and
    marker as a snapshot has them.
    """
    view = from_bytes(to_bytes(view))
    view.go_on_above(view.offset + ahead, level=view.level, level_last=view.level_last)
    marker = marker_of(view, log="the new log", copied=True)
    rows = {row.key: row.data for row in rows_of(view, -1) if row.data is not None}
    return view_of(CompactedSnapshot(marker=encode_marker(marker), rows=rows))


def genesis_of(view: View) -> Genesis:
    """The genesis of the log that goes on with a copied view."""
    assert view.cluster is not None
    return propose.genesis(FOUNDER, cluster=view.cluster, base=view.base, level=view.level)


def content(view: View) -> dict[str, object]:
    """All that a view holds, but for what tells which log it is of."""
    return {
        name: value for name, value in facts_of(view).items() if name not in {"base", "genesis"}
    }


@given(walks, st.integers(1, WALK_MAX), st.integers(0, WALK_MAX))
@settings(deadline=None, max_examples=40)
def test_the_rest_of_a_history_gets_the_same_verdicts_in_a_copy(
    walk: Walk, before: int, after: int
) -> None:
    """A copy begins with a genesis in a gap of the old log; each record after it is judged, and
    changes the view, as there.
    """
    there = folded(walk, before)
    if there.genesis is None:
        return
    here = Reader(log="memory:copy", view=copied(there))
    base = here.view.base
    assert FIRST_OFFSET == here.position
    assert here.feed(Entry(FIRST_OFFSET, encode(genesis_of(here.view)))).verdict.accepted
    # So that the walk goes on above the genesis of the copy.
    walk.entries[-1] = (walk.entries[-1][0] + 1, walk.entries[-1][1])
    for _ in range(after):
        offset, data = walk.step()
        expected = apply(there, offset, decode(data))
        got = here.feed(Entry(offset - base, data))
        assert (offset, expected.reason) == (got.offset, got.verdict.reason)
        assert content(there) == content(here.view)


@given(walks, st.integers(1, WALK_MAX), st.integers(0, 3))
@settings(deadline=None)
def test_a_copy_takes_one_genesis_and_no_other(walk: Walk, length: int, ahead: int) -> None:
    """Only the first genesis with the cluster, base and level of the snapshot is accepted; it
    changes nothing but where the log begins.
    """
    there = folded(walk, length)
    if there.genesis is None:
        return
    view = copied(there, ahead=ahead)
    right = genesis_of(view)
    before = content(view)
    wrong = [
        (propose.genesis(FOUNDER, cluster="another", base=right.base), Reason.FOREIGN_GENESIS),
        (propose.genesis(FOUNDER, cluster=right.cluster, base=right.base + 1), Reason.STALE),
        (propose.genesis(FOUNDER, cluster=right.cluster), Reason.STALE if right.base else None),
        (
            propose.genesis(FOUNDER, cluster=right.cluster, base=right.base, level=right.level + 1),
            Reason.STALE,
        ),
        (right, None),
        (right, Reason.STALE),
    ]
    for record, reason in wrong:
        assert reason == apply(view, view.offset + 1, decode(encode(record))).reason
    assert (right.base, right.base + len(wrong) - 1) == (view.base, view.genesis)
    assert before == content(view) | {"offset": before["offset"]}


@given(st.integers(0, 2**32), st.integers(1, WALK_MAX), st.integers(0, WALK_MAX))
@settings(deadline=None)
def test_a_copy_for_another_thread_stays_as_the_view_was(
    seed: int, before: int, after: int
) -> None:
    """This holds for all answers but the last offsets and sequences of brokers."""
    walk = Walk(seed)
    view, same = folded(walk, before), folded(Walk(seed), before)
    copy = view.copy()
    for _ in range(after):
        offset, data = walk.step()
        apply(view, offset, decode(data))
    assert _answers(same) == _answers(copy)


def _answers(view: View) -> list[object]:
    facts = facts_of(view)
    bundles = [
        (view.bundles_of(namespace), view.bundle_at(namespace, HASH_MAX // 3))
        for namespace in view.namespaces
    ]
    held = [
        (incarnation, broker.status, view.held_by(incarnation))
        for incarnation, broker in view.live.items()
    ]
    return [
        {name: value for name, value in facts.items() if name != "members"},
        list(view.brokers),
        bundles,
        held,
        view.unsettled(),
    ]
