"""Compare two views of one channel, for a reader that missed the records in between.

`channel.snapshots.restore` provides the newer view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from equipoise.channel.core.entries import (
    BrokerChanged,
    BundleChanged,
    Change,
    LevelChanged,
    NamespaceChanged,
    PolicyChanged,
)
from equipoise.channel.core.table import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Resync:
    """A reader skipped the records above logical offset `before` and up to `offset`: truncation
    removed them.

    `changes` summarises the accepted records. The rejected ones are unknown.
    """

    before: int
    offset: int
    changes: tuple[Change, ...]


def resync_between(before: View, after: View) -> Resync:
    """Return the resync of a reader that had `before` and goes on from `after`."""
    return Resync(
        before=before.offset, offset=after.offset, changes=tuple(changes_between(before, after))
    )


def changes_between(before: View, after: View) -> Sequence[Change]:
    """Return one change for each key that differs between two views of one channel.

    * The order is that of verdicts: a namespace before its bundles, a broker's death before the
      bundles that it frees, removed bundles before their replacements; then by name.
    * A key that was removed and made anew has changed. A renewal is no change, as in a verdict.
    * If several incarnations of one broker ended in between, only the one in `before` is reported
      as dead.
    """
    kinds = (_level, _policies, _namespaces, _brokers, _bundles)
    return [change for changes in kinds for change in changes(before, after)]


def _level(before: View, after: View) -> Iterator[LevelChanged]:
    if before.level != after.level:
        yield LevelChanged(before=before.level, after=after.level)


def _policies(before: View, after: View) -> Iterator[PolicyChanged]:
    for name in sorted(before.policies.keys() | after.policies.keys()):
        was, now = before.policies.get(name), after.policies.get(name)
        if was is None or now is None or was.last != now.last:
            yield PolicyChanged(name=name, before=was, after=now)


def _namespaces(before: View, after: View) -> Iterator[NamespaceChanged]:
    for name in sorted(before.namespaces.keys() | after.namespaces.keys()):
        was, now = before.namespaces.get(name), after.namespaces.get(name)
        if was is None or now is None or was.last != now.last:
            yield NamespaceChanged(name=name, before=was, after=now)


def _brokers(before: View, after: View) -> Iterator[BrokerChanged]:
    for name in sorted(before.brokers.keys() | after.brokers.keys()):
        was, now = before.brokers.get(name), after.brokers.get(name)
        # Not `last`, which every renewal raises.
        if (
            was is None
            or now is None
            or (was.incarnation, was.status) != (now.incarnation, now.status)
        ):
            dead = (
                was.incarnation
                if was is not None and was.live and was.incarnation not in after.live
                else None
            )
            yield BrokerChanged(
                name=name, before=None if was is None else was.status, after=now, dead=dead
            )


def _bundles(before: View, after: View) -> Iterator[BundleChanged]:
    # Compared first, then sorted: of 100,000 bundles a resync changes few, and it blocks its event
    # loop meanwhile.
    old, new = before.bundles, after.bundles
    for name in sorted([name for name in old if name not in new]):
        yield BundleChanged(name=name, before=old[name], after=None)
    for name in sorted(
        [
            name
            for name, now in new.items()
            if (was := old.get(name)) is None or was.last != now.last
        ]
    ):
        yield BundleChanged(name=name, before=old.get(name), after=new[name])
