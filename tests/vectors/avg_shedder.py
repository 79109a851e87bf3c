"""The vectors of `AvgShedder`, asked of `shedder.average` with `pulsar_exact`."""

from __future__ import annotations

from equipoise.shedder.average import AvgShedder
from tests.vectors.broker_load_data import weights_of
from tests.vectors.cases import Case
from tests.vectors.classic import plans_of, unloads_of


def replay(case: Case) -> object:
    """Return what each call unloads and to whom, the scores, and the hits after it. Pulsar names
    the destination when it places.
    """
    config = case["input"]["config"]
    strategy = AvgShedder(
        low_percent=config["lowThreshold"],
        high_percent=config["highThreshold"],
        low_hits=config["hitCountLowThreshold"],
        high_hits=config["hitCountHighThreshold"],
        unloaded_share=config["maxUnloadPercentage"],
        messages_min=config["minUnloadMessage"],
        bytes_min=config["minUnloadMessageThroughput"],
        pulsar_exact=True,
    )
    return [
        {
            "unload": unloads_of(plan),
            "scores": {
                name: snapshot.weights.weighted_max(load.resources) * 100
                for name, load in snapshot.loads.items()
            },
            "hitsHigh": memory.high,
            "hitsLow": memory.low,
            "destination": {move.bundle: move.destination for move in plan.moves},
        }
        for snapshot, plan, memory in plans_of(strategy, case, weights_of(config["weights"]))
    ]
