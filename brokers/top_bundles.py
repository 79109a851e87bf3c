"""Which bundles a broker reports one by one: its busiest, since a report must stay small however many it has.

May live here: the ranking, and the choice by it (Pulsar's `TopKBundles` and `NamespaceBundleStats`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from heapq import nlargest, nsmallest
from typing import Final

from channel.ranges import namespace_in
from shedder.loads import FIGURE_MAX, BundleTraffic

TOP_BUNDLES_MAX: Final = 10
"""How many a report names, as in Pulsar (`loadBalancerMaxNumberOfBundlesInBundleLoadReport`)."""

SYSTEM_NAMESPACES: Final = frozenset({"pulsar/system"})
"""Namespaces whose bundles Pulsar never sheds."""

# What counts as no difference between two bundles, so that noise does not reorder them: Pulsar's steps.
_BYTES_STEP: Final = 100_000
_MESSAGES_STEP: Final = 100
_OPEN_STEP: Final = 500
_CACHE_STEP: Final = 100_000

_Rank = tuple[int, int, int, int, int, str]


def top_bundles(
    bundles: Iterable[BundleTraffic], *, at_most: int = TOP_BUNDLES_MAX, passed_over: Collection[str] = SYSTEM_NAMESPACES
) -> tuple[BundleTraffic, ...]:
    """The `at_most` busiest bundles, the lightest of them first, because a shedder tries them in this order.

    Left out are those that carry nothing, those of the namespaces `passed_over`, and those with figures that cannot be
    compared: not a number, negative, or absurd. Of equals the first by name is the heavier.
    """
    fit = [
        bundle
        for bundle in bundles
        # What is not a number fails these, too.
        if 0 < bundle.traffic.bytes_per_second <= FIGURE_MAX
        and 0 <= bundle.traffic.messages_per_second <= FIGURE_MAX
        and namespace_in(bundle.bundle) not in passed_over
    ]
    if len(fit) > at_most > 0:
        # To rank thousands takes milliseconds, and most of them are out of the question by what comes first in the ranking.
        last = nlargest(at_most, (bundle.traffic.bytes_in_per_second for bundle in fit))[-1]
        least = _steps(last, _BYTES_STEP)
        fit = [bundle for bundle in fit if bundle.traffic.bytes_in_per_second / _BYTES_STEP + 0.5 >= least]
    return tuple(reversed(nsmallest(at_most, fit, key=_rank)))


def _rank(bundle: BundleTraffic) -> _Rank:
    """The heavier the smaller: bytes in, then bytes out, then messages, then what is open, then what is kept in memory."""
    traffic = bundle.traffic
    return (
        -_steps(traffic.bytes_in_per_second, _BYTES_STEP),
        -_steps(traffic.bytes_out_per_second, _BYTES_STEP),
        -_steps(traffic.messages_per_second, _MESSAGES_STEP),
        -((bundle.topics + bundle.consumers + bundle.producers) // _OPEN_STEP),
        -(bundle.cache_bytes // _CACHE_STEP),
        bundle.bundle,
    )


def _steps(value: float, step: int) -> int:
    """The nearest number of whole steps; half a step counts as one, as in Java."""
    return math.floor(value / step + 0.5)
