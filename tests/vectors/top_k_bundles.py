"""The vectors of `TopKBundles`, asked of `shedder.top_bundles`."""

from __future__ import annotations

from equipoise.shedder.loads import BundleTraffic
from equipoise.shedder.top_bundles import top_bundles
from tests.vectors.broker_load_data import traffic_of
from tests.vectors.cases import Case


def replay(case: Case) -> object:
    """The names, the lightest first."""
    asked = case["input"]
    bundles = [bundle_of(name, figures) for name, figures in asked["bundles"].items()]
    return {"topBundles": [bundle.bundle for bundle in top_bundles(bundles, at_most=asked["k"])]}


def bundle_of(name: str, figures: list[float]) -> BundleTraffic:
    """Throughput in and out, rate in and out, topics, consumers, producers, and the size of the cache."""
    topics, consumers, producers, cache_bytes = (int(count) for count in figures[4:])
    return BundleTraffic(
        bundle=name,
        traffic=traffic_of(figures[:4]),
        topics=topics,
        consumers=consumers,
        producers=producers,
        cache_bytes=cache_bytes,
    )
