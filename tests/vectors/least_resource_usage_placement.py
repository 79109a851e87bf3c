"""The vectors of `LeastResourceUsageWithWeight`, asked of `brokers.balancing.placement`: those
among whom one is drawn.
"""

from __future__ import annotations

from equipoise.brokers.balancing.placement import choose_among
from tests.vectors.cases import Case


def replay(case: Case) -> object:
    """The set to draw from; there is none if there are no candidates."""
    asked = case["input"]
    among = choose_among(
        asked["candidates"], asked["weightedMaxEMA"], asked["differenceThresholdPercentage"]
    )
    return {"none": not among, "chooseAmong": sorted(among)}
