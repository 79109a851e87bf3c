"""The vectors of Pulsar's bundle factory, asked of `channel.core.ranges`: points of topics, and the
bundles that hold points.
"""

from __future__ import annotations

from equipoise.channel.core.ranges import (
    HASH_MAX,
    bundle_contains,
    children,
    even_boundaries,
    topic_hash,
)
from tests.vectors.cases import Case


def replay(case: Case) -> object:
    """A topic's point and its bundle among so many; or the boundaries of so many bundles, and whose
    the points around them are.
    """
    asked, told = case["input"], case["output"]
    if "topic" in asked:
        point = topic_hash(asked["topic"])
        return {
            "hash": point,
            "bundleOf": {count: _range_of(int(count), point) for count in told["bundleOf"]},
        }
    boundaries = even_boundaries(asked["numBundles"])
    return {
        "boundaries": [f"0x{boundary:08x}" for boundary in boundaries],
        "bundleOfHash": {
            point: _like_pulsar(asked["numBundles"], int(point)) for point in told["bundleOfHash"]
        },
    }


def _range_of(count: int, point: int) -> str:
    low, *cuts, high = even_boundaries(count)
    return next(
        f"0x{start:08x}_0x{end:08x}"
        for start, end in children(low, high, cuts)
        if bundle_contains(start, end, point)
    )


def _like_pulsar(count: int, point: int) -> str:
    """Pulsar's search finds the end of the hash space among the boundaries, and behind it no
    bundle; ours is the last.
    """
    return "error:IndexOutOfBoundsException" if point == HASH_MAX else _range_of(count, point)
