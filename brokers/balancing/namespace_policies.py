"""Check what a namespace may be: the policies that brokers act on, and its number of bundles.

`brokers.balancing.topic_policies` has those for topics. A document may hold more:
`brokers.pulsar.topics.names` keeps its own policies there. Unknown policies are ignored.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from equipoise.brokers.balancing import topic_policies
from equipoise.brokers.balancing.grants import misfit_of_permission
from equipoise.channel.core.errors import invalid_boundaries
from equipoise.channel.core.records import Document, Scalar
from equipoise.channel.core.view import View

ON_CHANNEL_LOSS: Final = "on_channel_loss"
"""The policy for the bundles of a namespace while their owner has lost the channel."""


ANTI_AFFINITY_GROUP: Final = "anti_affinity_group"
"""The policy that names namespaces which should not share a failure domain or a broker."""

_GROUP_CHARACTERS_MAX: Final = 255


class OnChannelLoss(StrEnum):
    """What the owner of a bundle does after its lease has ended, until it reads that its ownership
    is over.
    """

    FENCE = "fence"
    """Start and answer nothing. The lease alone keeps two brokers from working at the same time."""

    SERVE = "serve"
    """Keep serving. The fencing token, and a store that checks it, keep other work from
    counting."""


def on_channel_loss(policies: Document) -> OnChannelLoss:
    """Return the value in `policies`. An unknown value, which only an unchecked writer can set,
    counts as the safe one.
    """
    return (
        OnChannelLoss.SERVE
        if policies.get(ON_CHANNEL_LOSS) == OnChannelLoss.SERVE
        else OnChannelLoss.FENCE
    )


def serves_on(view: View, namespace: str) -> bool:
    """Return whether the owners of a namespace's bundles keep serving after they have lost the
    channel.
    """
    entry = view.namespaces.get(namespace)
    return entry is not None and on_channel_loss(entry.policies) is OnChannelLoss.SERVE


def anti_affinity_group(policies: Document) -> str | None:
    """Return the anti-affinity group in `policies`, in lower case as Pulsar compares it; None if
    there is none.
    """
    value = policies.get(ANTI_AFFINITY_GROUP)
    return value.lower() if isinstance(value, str) and _misfit_of_group(value) is None else None


def misfit(policies: Document) -> str | None:
    """Return why a namespace must not have these policies; None if it may."""
    checks = {ON_CHANNEL_LOSS: _misfit_of_loss, ANTI_AFFINITY_GROUP: _misfit_of_group}
    problems = [check(policies[name]) for name, check in checks.items() if name in policies]
    problems += (
        topic_policies.misfit(name, value) or misfit_of_permission(name, value)
        for name, value in policies.items()
    )
    return next((problem for problem in problems if problem is not None), None)


def _misfit_of_loss(value: Scalar) -> str | None:
    if isinstance(value, str) and value in tuple(OnChannelLoss):
        return None
    return f"{ON_CHANNEL_LOSS} is {value!r:.80}, and can only be {' or '.join(OnChannelLoss)}"


def _misfit_of_group(value: Scalar) -> str | None:
    is_name = (
        isinstance(value, str)
        and value == value.strip()
        and value.isprintable()
        and 1 <= len(value) <= _GROUP_CHARACTERS_MAX
    )
    if is_name:
        return None
    expected = (
        f"a name of 1 to {_GROUP_CHARACTERS_MAX} printable characters without white space around it"
    )
    return f"{ANTI_AFFINITY_GROUP} is {value!r:.80}, and must be {expected}"


NEW_BUNDLES_MAX: Final = 4_096
"""The most bundles of a new namespace. Each costs a record or two when placed and when its broker
dies, and every broker reads them.

Measured with three brokers on two cores, for the first placement and after the death of a broker:

* 4,096 bundles: 2.4 s and 0.5 s, which is less than a lease.
* 16,384 bundles: 8 to 14 s, and 2 to 3 s.
* 65,536 bundles: a quarter had no owner after 100 s. The brokers mostly read late proposals of one
  another.
"""


def check_new_bundles(namespace: str, count: int) -> int:
    """Return `count` if `namespace` may have so many bundles. Raises `CallerError`."""
    if not 1 <= count <= NEW_BUNDLES_MAX:
        problem = (
            f"a namespace is created with 1 to {NEW_BUNDLES_MAX} bundles, not {count}, and can be"
            " split further later"
        )
        raise invalid_boundaries(subject=namespace, problem=problem)
    return count
