"""Rank bundles and choose the busiest for a broker's report (Pulsar's `TopKBundles` and `NamespaceBundleStats`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from typing import Final

from equipoise.shedder.loads import FIGURE_MAX, BundleTraffic

TOP_BUNDLES_MAX: Final = 10
"""How many bundles a report names, as in Pulsar (`loadBalancerMaxNumberOfBundlesInBundleLoadReport`)."""

SYSTEM_NAMESPACES: Final = frozenset({"pulsar/system"})
"""Namespaces whose bundles Pulsar never sheds."""

# Smaller differences do not reorder bundles, so that noise has no effect: Pulsar's steps.
_BYTES_STEP: Final = 100_000
_MESSAGES_STEP: Final = 100
_OPEN_STEP: Final = 500
_CACHE_STEP: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleFigures:
    """The figures that rank bundles, in columns: place i of each is of the bundle `names[i]`. Rates are per second.

    `opened` are topics, consumers and producers together.
    """

    names: Sequence[str]
    bytes_in: Sequence[float]
    bytes_out: Sequence[float]
    messages: Sequence[float]
    opened: Sequence[int]
    cache_bytes: Sequence[int]


def top_bundles(
    bundles: Iterable[BundleTraffic], *, at_most: int = TOP_BUNDLES_MAX, excluded: Collection[str] = SYSTEM_NAMESPACES
) -> tuple[BundleTraffic, ...]:
    """Return the `at_most` busiest bundles, as `busiest_places` finds them."""
    all_bundles = list(bundles)
    figures = BundleFigures(
        names=[bundle.bundle for bundle in all_bundles],
        bytes_in=[bundle.traffic.bytes_in_per_second for bundle in all_bundles],
        bytes_out=[bundle.traffic.bytes_out_per_second for bundle in all_bundles],
        messages=[bundle.traffic.messages_per_second for bundle in all_bundles],
        opened=[bundle.topics + bundle.consumers + bundle.producers for bundle in all_bundles],
        cache_bytes=[bundle.cache_bytes for bundle in all_bundles],
    )
    return tuple(all_bundles[place] for place in busiest_places(figures, at_most=at_most, excluded=excluded))


def busiest_places(
    figures: BundleFigures, *, at_most: int = TOP_BUNDLES_MAX, excluded: Collection[str] = SYSTEM_NAMESPACES
) -> Sequence[int]:
    """Return the places of the `at_most` busiest bundles, lightest first, because a shedder tries them in this order.

    Bundles without load, of the namespaces `excluded`, or with impossible figures (NaN, negative, absurd) are left out. Among equal
    bundles, the first by name is the heavier.
    """
    excluded_prefixes = tuple(f"{namespace}/" for namespace in sorted(excluded))
    bytes_in = figures.bytes_in
    places: Sequence[int] = range(len(figures.names))
    least = nlargest(at_most, bytes_in)[-1] if 0 < at_most < len(places) else -math.inf
    undecided = _valid(figures, excluded_prefixes, [place for place in places if bytes_in[place] >= least - _BYTES_STEP])
    # Drop bundles more than a step below the last of the top, unless too few of the top are valid.
    if sum(bytes_in[place] >= least for place in undecided) < at_most:
        undecided = _valid(figures, excluded_prefixes, places)
    # Rank by bytes in, then bytes out, messages, open objects, and cache. Each figure ranks only the ties of the one before: ranking
    # thousands of bundles by all of them takes milliseconds.
    ranking = (
        (bytes_in, _BYTES_STEP, 0.5),
        (figures.bytes_out, _BYTES_STEP, 0.5),
        (figures.messages, _MESSAGES_STEP, 0.5),
        (figures.opened, _OPEN_STEP, 0.0),
        (figures.cache_bytes, _CACHE_STEP, 0.0),
    )
    chosen: list[int] = []
    for column, step, up in ranking:
        wanted = at_most - len(chosen)
        if not 0 < wanted < len(undecided):
            break
        heavier, undecided = _split_at_last(undecided, column, step, up, wanted)
        chosen += heavier
    chosen += nsmallest(at_most - len(chosen), undecided, key=figures.names.__getitem__)
    by_name = sorted(chosen, key=figures.names.__getitem__, reverse=True)
    return sorted(by_name, key=lambda place: [_steps(column[place], step, up) for column, step, up in ranking])


def _valid(figures: BundleFigures, excluded_prefixes: tuple[str, ...], places: Sequence[int]) -> list[int]:
    """Return the places that a report may name. NaN fails each comparison, too."""
    names, bytes_in, bytes_out, messages = figures.names, figures.bytes_in, figures.bytes_out, figures.messages
    return [
        place
        for place in places
        if 0 < bytes_in[place] + bytes_out[place] <= FIGURE_MAX
        and 0 <= messages[place] <= FIGURE_MAX
        and not names[place].startswith(excluded_prefixes)
    ]


def _split_at_last(places: Sequence[int], column: Sequence[float], step: int, up: float, wanted: int) -> tuple[list[int], list[int]]:
    """Return the places that are certainly among the `wanted` heaviest by one figure, and those that tie with the last of them."""
    values = column if len(places) == len(column) else [column[place] for place in places]
    if _steps(max(values), step, up) == _steps(min(values), step, up):
        return [], list(places)
    last = _steps(nlargest(wanted, values)[-1], step, up)
    ranks = [math.floor(value / step + up) for value in values]  # The same as `_steps`, inlined.
    heavier = [place for place, rank in zip(places, ranks, strict=True) if rank > last]
    return heavier, [place for place, rank in zip(places, ranks, strict=True) if rank == last]


def _steps(value: float, step: int, up: float) -> int:
    """Return the number of whole steps in a value. With `up` of 0.5 it rounds as Java does."""
    return math.floor(value / step + up)
