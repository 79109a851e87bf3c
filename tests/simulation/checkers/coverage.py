"""Check invariants 2 and 4: bundles cover the hash space exactly once, and tokens only rise over
any point.
"""

from __future__ import annotations

from itertools import pairwise

from equipoise.channel.core.entries import BundleChanged, BundleEntry, NamespaceChanged
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from tests.simulation.checkers.violation import InvariantViolated


class Coverage:
    """Keeps its own table of ranges, built only from the changes of accepted records."""

    def __init__(self) -> None:
        self._ranges: dict[str, dict[int, int]] = {}

    def folded(self, folded: Folded, view: View) -> None:
        """Check each namespace whose bundles were made, split, merged or removed."""
        touched: dict[str, None] = {}
        for change in folded.verdict.changes:
            if isinstance(change, NamespaceChanged):
                touched[change.name] = None
            elif isinstance(change, BundleChanged) and (
                change.before is None or change.after is None
            ):
                touched[self._note(change)] = None
        for namespace in touched:
            self._check(namespace, view, folded.offset)

    def _note(self, change: BundleChanged) -> str:
        bundle = change.after or change.before
        assert bundle is not None
        ranges = self._ranges.setdefault(bundle.namespace, {})
        if change.after is not None:
            ranges[bundle.low] = bundle.high
        elif ranges.get(bundle.low) == bundle.high:
            del ranges[bundle.low]
        return bundle.namespace

    def _check(self, namespace: str, view: View, offset: int) -> None:
        ranges = sorted(self._ranges.get(namespace, {}).items())
        in_view = [(bundle.low, bundle.high) for bundle in view.bundles_of(namespace)]
        if ranges != in_view:
            raise _hole(
                f"at offset {offset} the view's bundles of {namespace} are not those that its"
                " records made"
            )
        if namespace not in view.namespaces:
            if ranges:
                raise _hole(f"at offset {offset} {namespace} is deleted and has bundles")
            return
        if not ranges or ranges[0][0] != 0 or ranges[-1][1] != HASH_MAX:
            raise _hole(
                f"at offset {offset} the bundles of {namespace} do not reach over the hash space"
            )
        for (_, high), (low, _) in pairwise(ranges):
            if high != low:
                raise _hole(
                    f"at offset {offset} the bundles of {namespace} do not meet: 0x{high:08x} is"
                    f" followed by 0x{low:08x}"
                )


class Tokens:
    """Keeps the greatest token of each bundle so far, and the token under which each incarnation
    serves it.
    """

    def __init__(self) -> None:
        # The greatest token of a deleted namespace stays here: the namespace must begin above it if
        # it is created again.
        self._lowest: dict[str, int] = {}
        self._server: dict[str, tuple[int, int]] = {}

    def folded(self, folded: Folded) -> None:
        """Check each bundle that was changed."""
        changes = [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]
        gone = [
            change.before
            for change in changes
            if change.before is not None and change.after is None
        ]
        for change in changes:
            if change.after is not None:
                before = (
                    [change.before]
                    if change.before is not None
                    else [bundle for bundle in gone if _overlap(bundle, change.after)]
                )
                self._check(change.after, before, folded.offset)
        for bundle in gone:
            self._server.pop(bundle.name, None)
            self._lowest[bundle.namespace] = max(
                self._lowest.get(bundle.namespace, 0), bundle.token
            )

    def _check(self, after: BundleEntry, before: list[BundleEntry], offset: int) -> None:
        lowest = max(
            (bundle.token for bundle in before), default=self._lowest.get(after.namespace, 0)
        )
        if after.token < lowest:
            raise _fall(
                f"at offset {offset} the token of {after.name} falls from {lowest} to {after.token}"
            )
        is_reshaped = bool(before) and all(bundle.name != after.name for bundle in before)
        if is_reshaped and after.token != lowest:
            raise InvariantViolated(
                invariant=(
                    "section 3: the children of a split keep its token, and a merge takes the"
                    " greater one"
                ),
                what=(
                    f"at offset {offset} {after.name} begins under token {after.token}, and what it"
                    f" is made of had {lowest}"
                ),
            )
        if after.phase not in ("owned", "splitting") or after.owner is None:
            return
        for bundle in before:
            served = self._server.get(bundle.name)
            if served is not None and served[0] != after.owner and after.token <= served[1]:
                raise _fall(
                    f"at offset {offset} {after.name} passes from #{served[0]} to #{after.owner}"
                    f" under the same token {after.token}"
                )
        self._server[after.name] = (after.owner, after.token)


def _overlap(one: BundleEntry, other: BundleEntry) -> bool:
    return one.namespace == other.namespace and one.low < other.high and other.low < one.high


def _hole(what: str) -> InvariantViolated:
    return InvariantViolated(invariant="2 coverage", what=what)


def _fall(what: str) -> InvariantViolated:
    return InvariantViolated(invariant="4 tokens only rise", what=what)
