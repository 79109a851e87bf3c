"""The vectors of `OverloadShedder`, asked of `shedder.threshold` with `pulsar_exact`."""

from __future__ import annotations

from equipoise.shedder.threshold import OverloadShedder
from tests.vectors.broker_load_data import weights_of
from tests.vectors.cases import Case
from tests.vectors.classic import plans_of, unloads_of


def replay(case: Case) -> object:
    """What each call unloads."""
    config = case["input"]["config"]
    strategy = OverloadShedder(
        overloaded_percent=config["overloadedThresholdPercentage"],
        pulsar_exact=True,
    )
    return [
        {"unload": unloads_of(plan)}
        for _, plan, _ in plans_of(strategy, case, weights_of(config["weights"]))
    ]
