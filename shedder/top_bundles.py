"""Rank bundles and choose the busiest for a broker's report (Pulsar's `TopKBundles` and
`NamespaceBundleStats`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from typing import Final

from equipoise.shedder.loads import FIGURE_MAX

# The namespace whose bundles Pulsar never sheds.
_SYSTEM_PREFIX: Final = "pulsar/system/"

# Smaller differences do not reorder bundles, so that noise has no effect: Pulsar's steps.
_BYTES_STEP: Final = 100_000
_MESSAGES_STEP: Final = 100
_OPEN_STEP: Final = 500
_CACHE_STEP: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleFigures:
    """The figures that rank bundles, in columns: place i of each is of the bundle `names[i]`. Rates
    are per second.

    `opened` are topics, consumers and producers together.
    """

    names: Sequence[str]
    bytes_in: Sequence[float]
    bytes_out: Sequence[float]
    messages: Sequence[float]
    opened: Sequence[int]
    cache_bytes: Sequence[int]


def busiest_places(figures: BundleFigures, *, at_most: int) -> Sequence[int]:
    """Return the places of the `at_most` busiest bundles, lightest first, because a shedder tries
    them in this order.

    Bundles without load, of Pulsar's system namespace, or with impossible figures (NaN, negative,
    absurd) are left out. Among equal bundles, the first by name is the heavier.
    """
    bytes_in = figures.bytes_in
    places: Sequence[int] = range(len(figures.names))
    least = nlargest(at_most, bytes_in)[-1] if 0 < at_most < len(places) else -math.inf
    undecided = _valid(
        figures, [place for place in places if bytes_in[place] >= least - _BYTES_STEP]
    )
    # Drop bundles more than a step below the last of the top, unless too few of the top are valid.
    if sum(bytes_in[place] >= least for place in undecided) < at_most:
        undecided = _valid(figures, places)
    # Rank by bytes in, then bytes out, messages, open objects, and cache. Each figure ranks only
    # the ties of the one before: ranking thousands of bundles by all of them takes milliseconds.
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
    return sorted(
        by_name, key=lambda place: [_steps(column[place], step, up) for column, step, up in ranking]
    )


def _valid(figures: BundleFigures, places: Sequence[int]) -> list[int]:
    """Return the places that a report may name. NaN fails each comparison, too."""
    names, bytes_in, bytes_out, messages = (
        figures.names,
        figures.bytes_in,
        figures.bytes_out,
        figures.messages,
    )
    return [
        place
        for place in places
        if 0 < bytes_in[place] + bytes_out[place] <= FIGURE_MAX
        and 0 <= messages[place] <= FIGURE_MAX
        and not names[place].startswith(_SYSTEM_PREFIX)
    ]


def _split_at_last(
    places: Sequence[int], column: Sequence[float], step: int, up: float, wanted: int
) -> tuple[list[int], list[int]]:
    """Return the places that are certainly among the `wanted` heaviest by one figure, and those
    that tie with the last of them.
    """
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
