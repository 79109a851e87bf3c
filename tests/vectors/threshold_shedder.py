"""The vectors of `ThresholdShedder`, asked of `shedder.threshold` with `pulsar_exact`."""

from __future__ import annotations

from equipoise.shedder.threshold import ThresholdShedder
from tests.vectors.broker_load_data import weights_of
from tests.vectors.cases import Case
from tests.vectors.classic import plans_of, unloads_of


def replay(case: Case) -> object:
    """What each call unloads, and the averages after it."""
    config = case["input"]["config"]
    strategy = ThresholdShedder(
        threshold_percent=config["thresholdPercentage"],
        bytes_min=config["minThroughputMB"] * 1_048_576,
        lower_boundary=config["lowerBoundarySheddingEnabled"],
        history=config["historyResourcePercentage"],
        pulsar_exact=True,
    )
    return [
        {"unload": unloads_of(plan), "averageUsage": memory}
        for _, plan, memory in plans_of(strategy, case, weights_of(config["weights"]))
    ]
