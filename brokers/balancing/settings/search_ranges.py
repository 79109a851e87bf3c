"""Define which settings of each policy a search may change, and between which numbers.

A range holds the values that can help on some load. The ranges in `setting_meanings` are wider:
they hold all allowed values. These settings are left out: switches, limits that protect a cluster,
and those of figures that load traces do not have (bytes, sessions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRange:
    """The numbers that a search tries, from `least` to `most`. If `log`, it tries 1 to 2 as often
    as 10 to 20.
    """

    least: float
    most: float
    log: bool = False


_HISTORY: Final = SearchRange(least=0, most=0.99)
_UNLOADED_SHARE: Final = SearchRange(least=0.05, most=1, log=True)
_MESSAGES_MIN: Final = SearchRange(least=10, most=10_000, log=True)

SEARCH_RANGES: Final[Mapping[str, Mapping[str, SearchRange]]] = MappingProxyType(
    {
        "BalancedShedder": {
            "balanced.start_ratio": SearchRange(least=0.02, most=0.5, log=True),
            "balanced.settle_ratio": SearchRange(least=0.01, most=0.4, log=True),
            "balanced.patience_ms": SearchRange(least=0, most=600_000),
            "balanced.churn_max": SearchRange(least=0.02, most=2, log=True),
            "balanced.moves_max": SearchRange(least=1, most=16, log=True),
            "reports.cost_window_ms": SearchRange(least=30_000, most=900_000, log=True),
        },
        "TransferShedder": {
            "transfer.target_deviation": SearchRange(least=0.02, most=0.5, log=True),
            "transfer.hit_count_threshold": SearchRange(least=0, most=10),
            "transfer.sources_max": SearchRange(least=1, most=20, log=True),
            "transfer.cool_down_ms": SearchRange(least=0, most=600_000),
            "reports.history": _HISTORY,
        },
        "ThresholdShedder": {
            "threshold.threshold_percent": SearchRange(least=1, most=40, log=True),
            "reports.history": _HISTORY,
        },
        "OverloadShedder": {
            "overload.overloaded_percent": SearchRange(least=20, most=95),
        },
        "UniformLoadShedder": {
            "uniform.rate_difference_percent": SearchRange(least=5, most=200, log=True),
            "uniform.unloaded_share": _UNLOADED_SHARE,
            "uniform.messages_min": _MESSAGES_MIN,
        },
        "AvgShedder": {
            "average.low_percent": SearchRange(least=1, most=40, log=True),
            "average.high_percent": SearchRange(least=5, most=80, log=True),
            "average.low_hits": SearchRange(least=1, most=20, log=True),
            "average.high_hits": SearchRange(least=1, most=10, log=True),
            "average.unloaded_share": _UNLOADED_SHARE,
            "average.messages_min": _MESSAGES_MIN,
        },
    }
)
"""The ranges by the name of a shedder and the name of a setting. A test checks that each default is
in its range."""
