"""Settings that make balancing quick enough to watch, and the way to set them on the channel.

`docs/reference/settings.md` describes each setting.
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
"""The publisher of the changes."""

QUICK: Final[Changes] = {
    "balancing.shed_interval_ms": 1_000,
    "balancing.split_interval_ms": 1_000,
    "balancing.rest_ms": 4_000,
    "reports.sample_interval_ms": 500,
    "reports.interval_min_ms": 500,
    "reports.interval_max_ms": 1_000,
    # After 5 seconds a tenth of an average is left, not nine tenths, so that the demo does not take minutes.
    "reports.history": "0.1",
}
"""Rounds every second, each by fresh measurements."""

BY_USE: Final[Changes] = {
    "balancing.shedder": "TransferShedder",
    "transfer.target_deviation": "0.06",
    "transfer.hit_count_threshold": 1,
    "transfer.cool_down_ms": 1_000,
    # All brokers of a machine share its network, so its use does not distinguish them.
    "weights.bandwidth_in": 0,
    "weights.bandwidth_out": 0,
}
"""Balance the brokers' use of processors, as Pulsar's default strategy does, but within seconds."""

BY_COST: Final[Changes] = {"balancing.shedder": "BalancedShedder"}
"""Balance the cost of bundles, with our own strategy."""

CORES: Final = "0.25"
"""The share of a processor that a broker claims to have: small enough that a few dozen calls a second show in its use."""

_SET_MS: Final = 20_000


async def tune(log_url: str, changes: Changes) -> Sequence[str]:
    """Set settings on the channel; None removes one. Return each change as text. Raises what `request` and `opened` raise."""
    return await asyncio.to_thread(_tuned, log_url, changes)


def _tuned(log_url: str, changes: Changes) -> Sequence[str]:
    with opened(log_url, timeout_ms=_SET_MS, publisher=OPERATOR) as access:
        before = document_of(access.view)
        request(access, SetSettings(changes=changes))
        return [str(changed) for changed in differences(before, document_of(access.view))]
