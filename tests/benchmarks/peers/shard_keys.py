"""A key in each of the 64 equal parts of the range of hashes."""

from collections.abc import Sequence
from itertools import count

from equipoise import key_hash
from tests.benchmarks.peers.program import SHARDS


def shard_keys() -> Sequence[str]:
    """Return the first key of each part, by its number."""
    found: dict[int, str] = {}
    for number in count():
        found.setdefault(key_hash(key := f"key-{number}") * SHARDS >> 32, key)
        if len(found) == SHARDS:
            return [found[shard] for shard in range(SHARDS)]
    raise AssertionError
