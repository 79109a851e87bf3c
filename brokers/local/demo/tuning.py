"""Settings with which balancing is quick enough to be watched, and the way by which an operator puts them on the channel.

May live here: such settings as data, and their change. What each of them means is told in docs/reference/settings.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from equipoise.brokers.agent.intents import SetSettings
from equipoise.brokers.balancing.settings.settings_records import Changes, differences, document_of
from equipoise.brokers.operations.access import opened
from equipoise.brokers.operations.moving import request
from equipoise.channel.core.ranges import ADMIN_PREFIX

OPERATOR: Final = f"{ADMIN_PREFIX}demo"
"""Who changes settings here."""

QUICK: Final[Changes] = {
    "balancing.shed_interval_ms": 1_000,
    "balancing.split_interval_ms": 1_000,
    "balancing.rest_ms": 4_000,
    "reports.sample_interval_ms": 500,
    "reports.interval_min_ms": 500,
    "reports.interval_max_ms": 1_000,
    # After 5 seconds a tenth of an average is left, and not nine tenths: whoever watches does not wait for minutes.
    "reports.history": "0.1",
}
"""Rounds follow each other in a second, each by what was measured just before."""

BY_USE: Final[Changes] = {
    "balancing.shedder": "TransferShedder",
    "transfer.target_deviation": "0.06",
    "transfer.hit_count_threshold": 1,
    "transfer.cool_down_ms": 1_000,
    # All brokers of a machine share its network, so that its use says nothing of one of them.
    "weights.bandwidth_in": 0,
    "weights.bandwidth_out": 0,
}
"""Balance what brokers use of their processors, as Pulsar's default strategy does, but within seconds."""

BY_COST: Final[Changes] = {"balancing.shedder": "BalancedShedder"}
"""Balance what bundles cost, by our own strategy."""

CORES: Final = "0.25"
"""What part of a processor a broker is said to have: so little that a few dozen calls a second can be seen in its use."""

_SET_MS: Final = 20_000


async def tune(log_url: str, changes: Changes) -> Sequence[str]:
    """Set settings on the channel, or take away what is None; what became of each, as a text. Raises as `request` and `opened` do."""
    return await asyncio.to_thread(_tuned, log_url, changes)


def _tuned(log_url: str, changes: Changes) -> Sequence[str]:
    with opened(log_url, timeout_ms=_SET_MS, publisher=OPERATOR) as access:
        before = document_of(access.view)
        request(access, SetSettings(changes=changes))
        return [str(changed) for changed in differences(before, document_of(access.view))]
