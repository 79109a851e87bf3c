"""The vectors of `TopKBundles`, asked of `brokers.top_bundles`."""

from __future__ import annotations

from brokers.top_bundles import top_bundles
from shedder.loads import BundleTraffic, Traffic
from tests.vectors.cases import Case


def replay(case: Case) -> object:
    """The names, the lightest first."""
    asked = case["input"]
    bundles = [traffic_of(name, figures) for name, figures in asked["bundles"].items()]
    return {"topBundles": [bundle.bundle for bundle in top_bundles(bundles, at_most=asked["k"])]}


def traffic_of(name: str, figures: list[float]) -> BundleTraffic:
    """Throughput in and out, rate in and out, topics, consumers, producers, and the size of the cache."""
    bytes_in, bytes_out, messages_in, messages_out, *counts = figures
    topics, consumers, producers, cache_bytes = (int(count) for count in counts)
    return BundleTraffic(
        bundle=name,
        traffic=Traffic(
            bytes_in_per_second=bytes_in,
            bytes_out_per_second=bytes_out,
            messages_in_per_second=messages_in,
            messages_out_per_second=messages_out,
        ),
        topics=topics,
        consumers=consumers,
        producers=producers,
        cache_bytes=cache_bytes,
    )
