"""The vectors of `BrokerLoadData`, replayed as samples of a broker: percent use, the busiest
resource, and the averages.
"""

from __future__ import annotations

from typing import Any

from equipoise.shedder.loads import STEP_MS, Load, Resources, Traffic, Use, Weights, averaged
from tests.vectors.cases import Case

# Pulsar's object before its first sample, and after `clear`. We have no load then.
_FRESH = {
    "maxResourceUsage": 1.0,
    "weightedMaxEMA": 1.0,
    "msgThroughputEMA": 0.0,
    "percent": [0.0] * 5,
}


def replay(case: Case) -> object:
    """Return the numbers after each step. Pulsar's averages take one step at each sample, so the
    samples are `STEP_MS` apart.
    """
    asked = case["input"]
    weights = weights_of(asked["weights"])
    load: Load | None = None
    found = list[object]()
    for place, step in enumerate(asked["steps"]):
        if step == "clear":
            load = None
            found.append(_FRESH)
            continue
        resources = resources_of(
            [
                step[name]
                for name in ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
            ]
        )
        traffic = traffic_of(
            [
                step[name]
                for name in ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")
            ]
        )
        sample = Load(
            broker="a",
            at_ms=place * STEP_MS,
            resources=resources,
            average_use=weights.weighted_max(resources),
            traffic=traffic,
            history=asked["historyResourcePercentage"],
        )
        load = averaged(load, sample)
        uses = (
            resources.cpu,
            resources.memory,
            resources.direct_memory,
            resources.bandwidth_in,
            resources.bandwidth_out,
        )
        found.append(
            {
                "maxResourceUsage": resources.max_use,
                "weightedMaxEMA": load.average_use,
                "msgThroughputEMA": load.average_bytes_per_second,
                "percent": [use.percent for use in uses],
            }
        )
    return found


def weights_of(weights: dict[str, float]) -> Weights:
    """Weights as vectors tell them; the classic strategies have none for memory."""
    return Weights(
        cpu=weights["cpu"],
        memory=weights.get("memory", 0.0),
        direct_memory=weights["directMemory"],
        bandwidth_in=weights["bandwidthIn"],
        bandwidth_out=weights["bandwidthOut"],
    )


def resources_of(resources: list[list[float]]) -> Resources:
    """Five pairs of used and limit, in the order of the vectors."""
    cpu, memory, direct_memory, bandwidth_in, bandwidth_out = (
        Use(used=used, limit=limit) for used, limit in resources
    )
    return Resources(
        cpu=cpu,
        memory=memory,
        direct_memory=direct_memory,
        bandwidth_in=bandwidth_in,
        bandwidth_out=bandwidth_out,
    )


def traffic_of(traffic: list[Any]) -> Traffic:
    """Throughput in and out, rate in and out."""
    bytes_in, bytes_out, messages_in, messages_out = traffic
    return Traffic(
        bytes_in_per_second=bytes_in,
        bytes_out_per_second=bytes_out,
        messages_in_per_second=messages_in,
        messages_out_per_second=messages_out,
    )
