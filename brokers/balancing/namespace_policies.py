"""The policies of a namespace that brokers act on, and which values they may have.

May live here: pure functions over a namespace's policies document. A document may hold more than that: `brokers.pulsar.topics.partitions`
keeps its own there, and what nobody knows is passed over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from equipoise.channel.core.records import Document, Scalar
from equipoise.channel.core.view import View

ON_CHANNEL_LOSS: Final = "on_channel_loss"
"""The name of the policy that says what becomes of a namespace's bundles while their owner has lost the channel."""


ANTI_AFFINITY_GROUP: Final = "anti_affinity_group"
"""The name of the policy that says with which other namespaces one is not to share a failure domain or a broker."""

_GROUP_CHARACTERS_MAX: Final = 255


class OnChannelLoss(StrEnum):
    """What the owner of a bundle does past the end of its lease, for as long as it has not read that it is over."""

    FENCE = "fence"
    """It starts and answers nothing: the lease alone sees to it that nobody else does at the same time."""

    SERVE = "serve"
    """It serves on: that nobody else's work counts is left to the fencing token, and to the store that checks it."""


def on_channel_loss(policies: Document) -> OnChannelLoss:
    """What `policies` say. What is no such word, whoever put it there past all checks, is taken for the safe one."""
    return OnChannelLoss.SERVE if policies.get(ON_CHANNEL_LOSS) == OnChannelLoss.SERVE else OnChannelLoss.FENCE


def serves_on(view: View, namespace: str) -> bool:
    """Whether the owners of a namespace's bundles serve on while they have lost the channel."""
    entry = view.namespaces.get(namespace)
    return entry is not None and on_channel_loss(entry.policies) is OnChannelLoss.SERVE


def anti_affinity_group(policies: Document) -> str | None:
    """The group that `policies` put a namespace into, in lower case, as Pulsar compares it; None if they name none."""
    value = policies.get(ANTI_AFFINITY_GROUP)
    return value.lower() if isinstance(value, str) and _misfit_of_group(value) is None else None


def misfit(policies: Document) -> str | None:
    """Why no namespace may be given these policies; None if it may."""
    checks = {ON_CHANNEL_LOSS: _misfit_of_loss, ANTI_AFFINITY_GROUP: _misfit_of_group}
    problems = (check(policies[name]) for name, check in checks.items() if name in policies)
    return next((problem for problem in problems if problem is not None), None)


def _misfit_of_loss(value: Scalar) -> str | None:
    if isinstance(value, str) and value in tuple(OnChannelLoss):
        return None
    return f"{ON_CHANNEL_LOSS} is {value!r}, and can only be {' or '.join(OnChannelLoss)}"


def _misfit_of_group(value: Scalar) -> str | None:
    is_name = isinstance(value, str) and value == value.strip() and value.isprintable() and 1 <= len(value) <= _GROUP_CHARACTERS_MAX
    if is_name:
        return None
    expected = f"a name of 1 to {_GROUP_CHARACTERS_MAX} printable characters without white space around it"
    return f"{ANTI_AFFINITY_GROUP} is {value!r}, and is to be {expected}"
