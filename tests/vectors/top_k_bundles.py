"""The vectors of `TopKBundles`, asked of `brokers.load.sampling`."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.brokers.load.sampling import Carried, busiest_places
from equipoise.shedder.loads import BundleTraffic
from tests.vectors.broker_load_data import traffic_of
from tests.vectors.cases import Case


def replay(case: Case) -> object:
    """The names, the lightest first."""
    asked = case["input"]
    bundles = [bundle_of(name, figures) for name, figures in asked["bundles"].items()]
    return {"topBundles": [bundle.bundle for bundle in top_bundles(bundles, at_most=asked["k"])]}


def top_bundles(bundles: Sequence[BundleTraffic], *, at_most: int) -> list[BundleTraffic]:
    """Return the busiest bundles, lightest first."""
    traffics = [bundle.traffic for bundle in bundles]
    carried = Carried(
        names=tuple(bundle.bundle for bundle in bundles),
        bytes_in=[each.bytes_in_per_second for each in traffics],
        bytes_out=[each.bytes_out_per_second for each in traffics],
        messages_in=[each.messages_in_per_second for each in traffics],
        messages_out=[each.messages_out_per_second for each in traffics],
        topics=[bundle.topics for bundle in bundles],
        consumers=[bundle.consumers for bundle in bundles],
        producers=[bundle.producers for bundle in bundles],
        memory_bytes=[bundle.cache_bytes for bundle in bundles],
    )
    return [bundles[place] for place in busiest_places(carried, at_most=at_most)]


def bundle_of(name: str, figures: list[float]) -> BundleTraffic:
    """Throughput in and out, rate in and out, topics, consumers, producers, and the size of the
    cache.
    """
    topics, consumers, producers, cache_bytes = (int(count) for count in figures[4:])
    return BundleTraffic(
        bundle=name,
        traffic=traffic_of(figures[:4]),
        topics=topics,
        consumers=consumers,
        producers=producers,
        cache_bytes=cache_bytes,
    )
