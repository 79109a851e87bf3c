"""The policies of a namespace that brokers act on, and which values they may have.

May live here: pure functions over a namespace's policies document. A document may hold more than that: `brokers.pulsar.partitions`
keeps its own there, and what nobody knows is passed over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from channel.records import Document, Scalar
from channel.view import View

ON_CHANNEL_LOSS: Final = "on_channel_loss"
"""The name of the policy that says what becomes of a namespace's bundles while their owner has lost the channel."""


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


def misfit(policies: Document) -> str | None:
    """Why no namespace may be given these policies; None if it may."""
    return _misfit_of_loss(policies[ON_CHANNEL_LOSS]) if ON_CHANNEL_LOSS in policies else None


def _misfit_of_loss(value: Scalar) -> str | None:
    if isinstance(value, str) and value in tuple(OnChannelLoss):
        return None
    return f"{ON_CHANNEL_LOSS} is {value!r}, and can only be {' or '.join(OnChannelLoss)}"
