"""The vectors of `UniformLoadShedder`, asked of `shedder.uniform` with `pulsar_exact`."""

from __future__ import annotations

from equipoise.shedder.uniform import UniformLoadShedder
from tests.vectors.cases import Case
from tests.vectors.classic import plans_of, unloads_of


def replay(case: Case) -> object:
    """What each call unloads."""
    config = case["input"]["config"]
    bundles_max = config["maxUnloadBundleNumPerShedding"]
    strategy = UniformLoadShedder(
        rate_difference_percent=config["msgRateDifferencePercentage"],
        throughput_ratio=config["throughputMultiplier"],
        unloaded_share=config["maxUnloadPercentage"],
        messages_min=config["minUnloadMessage"],
        bytes_min=config["minUnloadMessageThroughput"],
        bundles_max=None if bundles_max == -1 else bundles_max,
        pulsar_exact=True,
    )
    return [{"unload": unloads_of(plan)} for _, plan, _ in plans_of(strategy, case)]
