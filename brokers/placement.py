"""Placement: which broker takes a bundle that nobody owns, or that must move away.

May live here: pure choices over a view. The choice is policy, never safety: the fold accepts or rejects it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from channel.entries import BrokerEntry, BundleEntry
from channel.view import View


class Placement(Protocol):
    """A plug that places bundles."""

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]]) -> dict[str, int]:
        """An incarnation for each of `bundles`, by name; a bundle for which there is none is left out.

        The batch is weighed whole: what is placed first counts when the next is placed. `avoid` names, per bundle, the
        incarnations that are not to have it. Ties break by broker id.
        """
        ...


class FewestBundles:
    """Gives each bundle to the broker that will have the fewest for its capacity, counting all that the view has given it.

    Capacity is the weight that a broker declared on joining: one of 200 gets two bundles for each that one of 100 gets. It
    is no ceiling, because a bundle that nobody has is worse off than one at a broker that has many.
    """

    def place(self, view: View, bundles: Sequence[BundleEntry], *, avoid: Mapping[str, frozenset[int]]) -> dict[str, int]:
        """See `Placement.place`."""
        candidates = [broker for broker in view.live_brokers() if broker.status == "up"]
        counts = {broker.incarnation: view.held_count(broker.incarnation) for broker in candidates}
        placed: dict[str, int] = {}
        for bundle in bundles:
            unwanted = avoid.get(bundle.name, frozenset())
            fit = [broker for broker in candidates if broker.incarnation not in unwanted]
            if not fit:
                continue
            chosen = min(fit, key=lambda broker: _fullness(broker, counts[broker.incarnation]))
            counts[chosen.incarnation] += 1
            placed[bundle.name] = chosen.incarnation
        return placed


def _fullness(broker: BrokerEntry, count: int) -> tuple[float, str]:
    return ((count + 1) / broker.joined.capacity, broker.broker)
