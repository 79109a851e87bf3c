"""Placement: which broker takes a bundle that nobody owns, or that must move away.

May live here: pure choices over a view. The choice is policy, never safety: the fold accepts or rejects it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from channel.entries import BrokerEntry, BundleEntry
from channel.view import View

_NOBODY: Final[frozenset[int]] = frozenset()


class Placement(Protocol):
    """A plug that places bundles."""

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """An incarnation for each of the first `at_most` of `bundles` for which there is one, by name.

        A bundle for which there is none is left out, and takes nobody's place: any number of them may stand before one that
        can be placed. The batch is weighed whole: what is placed first counts when the next is placed. `avoid` names, per
        bundle, the incarnations that are not to have it. Ties break by broker id.
        """
        ...


class FewestBundles:
    """Gives each bundle to the broker that will have the fewest for its capacity, counting all that the view has given it.

    Capacity is the weight that a broker declared on joining: one of 200 gets two bundles for each that one of 100 gets. It
    is no ceiling, because a bundle that nobody has is worse off than one at a broker that has many.
    """

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]], at_most: int) -> dict[str, int]:
        """See `Placement.place`."""
        candidates = [broker for broker in view.live_brokers() if broker.status == "up"]
        counts = {broker.incarnation: view.held_count(broker.incarnation) for broker in candidates}
        everybody = frozenset(counts)
        placed: dict[str, int] = {}
        for bundle in bundles:
            if len(placed) == at_most:
                break
            unwanted = avoid.get(bundle.name, _NOBODY)
            if everybody <= unwanted:
                continue  # Seen at one glance, because there may be thousands that nobody takes.
            fit = [broker for broker in candidates if broker.incarnation not in unwanted]
            chosen = min(fit, key=lambda broker: _fullness(broker, counts[broker.incarnation]))
            counts[chosen.incarnation] += 1
            placed[bundle.name] = chosen.incarnation
        return placed


def _fullness(broker: BrokerEntry, count: int) -> tuple[float, str]:
    return ((count + 1) / broker.joined.capacity, broker.broker)
