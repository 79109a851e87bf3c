"""The difference of two views against what the records between them changed, one verdict after the
other.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.codec import decode
from equipoise.channel.core.difference import Resync, changes_between, resync_between
from equipoise.channel.core.entries import (
    BrokerChanged,
    BrokerEntry,
    BundleChanged,
    Change,
    LevelChanged,
    NamespaceChanged,
    PolicyChanged,
    Verdict,
)
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.view import View, apply
from tests.channels.folding import NAMESPACE, channel_with
from tests.channels.walk import Walk

ORDER = (LevelChanged, PolicyChanged, NamespaceChanged, BrokerChanged, BundleChanged)


def sum_of(before: View, verdicts: list[Verdict]) -> list[Change]:
    """The slow model: per key the first `before` and the last `after` of all verdicts, as far as
    they differ.
    """
    firsts: dict[tuple[type, str], Change] = {}
    lasts: dict[tuple[type, str], Change] = {}
    ended = {
        change.dead
        for verdict in verdicts
        for change in verdict.changes
        if isinstance(change, BrokerChanged)
    }
    for verdict in verdicts:
        for change in verdict.changes:
            key = type(change), getattr(change, "name", "")
            firsts.setdefault(key, change)
            lasts[key] = change
    joined = [_joined(before, first, lasts[key], ended) for key, first in firsts.items()]
    return sorted((change for change in joined if change is not None), key=_place)


def _joined(before: View, first: Change, last: Change, ended: set[int | None]) -> Change | None:
    if isinstance(last, BrokerChanged):
        was = before.brokers.get(last.name)
        if was is None:
            return (
                None
                if last.after is None
                else BrokerChanged(name=last.name, before=None, after=last.after)
            )
        dead = was.incarnation if was.live and was.incarnation in ended else None
        return BrokerChanged(name=last.name, before=was.status, after=last.after, dead=dead)
    if first.before == last.after:
        return None
    # Alike in all.
    return type(last)(
        **({"name": last.name} if not isinstance(last, LevelChanged) else {}),
        before=first.before,  # type: ignore[arg-type]
        after=last.after,  # type: ignore[arg-type]
    )


def _place(change: Change) -> tuple[int, bool, str]:
    is_gone = isinstance(change, BundleChanged) and change.after is None
    return (
        ORDER.index(type(change)),
        isinstance(change, BundleChanged) and not is_gone,
        getattr(change, "name", ""),
    )


def told(changes: list[Change]) -> list[str]:
    """Changes as text; of brokers what a change is about, for their entries are changed in place by
    renewals.
    """
    return [
        repr((change.name, change.before, _identity(change.after), change.dead))
        if isinstance(change, BrokerChanged)
        else repr(change)
        for change in changes
    ]


def _identity(broker: BrokerEntry | None) -> tuple[int, str] | None:
    return None if broker is None else (broker.incarnation, broker.status)


@settings(deadline=None)
@given(
    walk=st.builds(Walk, st.integers(0, 2**32), levels=st.booleans()),
    length=st.integers(1, 200),
    start=st.integers(0, 200),
)
def test_the_difference_is_what_the_records_between_come_to(
    walk: Walk, length: int, start: int
) -> None:
    """Between any two views of a walk the comparison tells what the verdicts of the gap come to, in
    the order it promises.
    """
    view, before, verdicts = View(), View(), list[Verdict]()
    for place in range(length):
        if place == start:
            before, verdicts = from_bytes(to_bytes(view)), []
        offset, data = walk.step()
        verdicts.append(apply(view, offset, decode(data)))
    if start >= length:
        before, verdicts = from_bytes(to_bytes(view)), []
    assert told(sum_of(before, verdicts)) == told(list(changes_between(before, view)))


def test_a_resync_tells_where_it_began_and_where_it_ended() -> None:
    """A resync bears both offsets, and its changes: here the namespace's creation before that of
    its bundle.
    """
    channel = channel_with("a")
    before = View()
    for offset, data in channel.entries[:1]:
        apply(before, offset, decode(data))
    resync = resync_between(before, channel.view)
    assert (1, channel.view.offset) == (resync.before, resync.offset)
    kinds = [type(change) for change in resync.changes]
    assert [NamespaceChanged, BrokerChanged, BundleChanged] == kinds
    assert NAMESPACE == getattr(resync.changes[0], "name", None)


def test_nothing_changed_is_a_resync_without_changes() -> None:
    """A view compared with an equal one, and across renewals alone, has not changed."""
    channel = channel_with("a")
    same = from_bytes(to_bytes(channel.view))
    assert Resync(before=same.offset, offset=same.offset, changes=()) == resync_between(
        same, channel.view
    )
