"""Limit how many bundles a new namespace may have. The channel accepts more (see `channel.core.view`), but brokers could not keep up."""

from __future__ import annotations

from typing import Final

from equipoise.channel.core.errors import invalid_boundaries

NEW_BUNDLES_MAX: Final = 4_096
"""The most bundles of a new namespace. Each costs a record or two when placed and when its broker dies, and every broker reads them.

Measured with three brokers on two cores, for the first placement and after the death of a broker:

* 4,096 bundles: 2.4 s and 0.5 s, which is less than a lease.
* 16,384 bundles: 8 to 14 s, and 2 to 3 s.
* 65,536 bundles: a quarter had no owner after 100 s. The brokers mostly read late proposals of one another.
"""


def check_new_bundles(namespace: str, count: int) -> int:
    """Return `count` if `namespace` may have so many bundles. Raises `CallerError`."""
    if not 1 <= count <= NEW_BUNDLES_MAX:
        problem = f"a namespace is created with 1 to {NEW_BUNDLES_MAX} bundles, not {count}, and can be split further later"
        raise invalid_boundaries(subject=namespace, problem=problem)
    return count
