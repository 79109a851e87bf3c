"""How many bundles a namespace is made of: fewer than one record could hold, since brokers must also keep up with them.

May live here: that bound, and the check of what somebody asks for. What the channel accepts is said by `channel.core.view`, and is more.
"""

from __future__ import annotations

from typing import Final

from equipoise.channel.core.errors import InvalidBoundaries

NEW_BUNDLES_MAX: Final = 4_096
"""Bundles of a new namespace. Each is a record or two when it is placed, and when its broker dies, and all brokers read them.

Three brokers on two cores placed 4,096 bundles in 2.4 s and those of a dead broker in 0.5 s, which is less than a lease;
16,384 took 8 to 14 s and 2 to 3 s; of 65,536 a quarter had no owner after 100 s, for the brokers then mostly read proposals
of one another that came too late.
"""


def check_new_bundles(namespace: str, count: int) -> int:
    """`count`, if `namespace` may be made of so many bundles. Raises `InvalidBoundaries`."""
    if not 1 <= count <= NEW_BUNDLES_MAX:
        problem = f"a namespace is created with 1 to {NEW_BUNDLES_MAX} bundles, not {count}, and can be split further later"
        raise InvalidBoundaries(subject=namespace, problem=problem)
    return count
