"""Describe each setting of balancing and its range of numbers, as data.

Types and defaults come from the fields in `balancing_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from equipoise.brokers.balancing.namespace_policies import NEW_BUNDLES_MAX
from equipoise.brokers.balancing.quarantine import HOLD_MS_MAX, RENEWALS_MAX
from equipoise.brokers.balancing.splitting.bundle_limits import MIB
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.shedder.loads import FIGURE_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The allowed numbers of a setting, from `least` to `most`. If `open`, both bounds are
    excluded.
    """

    least: float = 0
    most: float = FIGURE_MAX
    open: bool = False

    def holds(self, number: float) -> bool:
        """Return whether a number is allowed. NaN never is."""
        return self.least < number < self.most if self.open else self.least <= number <= self.most

    def __str__(self) -> str:
        least = f"above {self.least:g}" if self.open else f"at least {self.least:g}"
        if self.most in (FIGURE_MAX, INTEGER_MAX):
            return least
        return (
            f"{least} and below {self.most:g}"
            if self.open
            else f"from {self.least:g} to {self.most:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The description of a setting, and the range of its numbers. Only numbers use the range."""

    text: str
    range: Range = Range()


_SHARE: Final = Range(most=1)
_COUNT: Final = Range(most=INTEGER_MAX)
_SOME: Final = Range(least=1, most=INTEGER_MAX)
_ABOVE_ZERO: Final = Range(open=True)

_EXACT: Final = Meaning(text="Decides exactly as Pulsar's code does, including its faults.")
_UNLOADED_SHARE: Final = Meaning(text="Fraction of the difference that moves.", range=_SHARE)
_MESSAGES_MIN: Final = Meaning(text="Minimum messages per second for a move.")
_BYTES_MIN: Final = Meaning(text="Minimum bytes per second for a move.")


def _meaning(text: str, numbers: Range = _COUNT) -> Meaning:
    return Meaning(text=text, range=numbers)


GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "balancing": (
            "What balancing does, how often, with which strategies, and how many moves run at once."
        ),
        "reports": "When a broker reports its load, and what the report contains.",
        "weights": "The weight of each resource, for all strategies that use resource weights.",
        "balanced": "`BalancedShedder`: Equipoise's own shedder, which evens out cost by capacity.",
        "transfer": "`TransferShedder`: Pulsar's, which names the destination of each move.",
        "threshold": (
            "`ThresholdShedder`: Pulsar's, which unloads brokers that are too far above the mean."
        ),
        "overload": "`OverloadShedder`: Pulsar's, which unloads brokers above a fixed use.",
        "uniform": "`UniformLoadShedder`: Pulsar's, which compares messages and throughput.",
        "average": "`AvgShedder`: Pulsar's, which pairs the most used brokers with the least used.",
        "limits": (
            "The limits above which a bundle is split. Neighbours are merged only far below them."
        ),
        "split": "When bundles are split.",
        "merge": "When neighbours are merged.",
        "split_points": "Where a bundle is cut by its load.",
        "placement": "The rules of every placement strategy.",
        "least_message_rate": "`LeastLongTermMessageRate`: Pulsar's placement by message rate.",
        "least_usage": "`LeastResourceUsageWithWeight`: Pulsar's placement by use.",
        "quarantine": (
            "When a bundle that breaks its owners is kept from every broker, and for how long."
        ),
        "tenants": "What one tenant may have.",
    }
)
"""The description of each group."""

MEANINGS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        "balancing.enabled": _meaning("Enables automatic moves, splits and merges."),
        "balancing.shedding": _meaning("Enables moves that even out the load."),
        "balancing.splitting": _meaning("Enables splits of bundles above the limits."),
        "balancing.merging": _meaning("Enables merges of neighbours with little load."),
        "balancing.shedder": _meaning("The strategy that chooses which bundles move."),
        "balancing.placement": _meaning(
            "The strategy that chooses an owner for a bundle without one."
        ),
        "balancing.shed_interval_ms": _meaning("Time between two rounds of the shedder.", _SOME),
        "balancing.split_interval_ms": _meaning(
            "Time between two rounds of splits and merges.", _SOME
        ),
        "balancing.rest_ms": _meaning(
            "Time after a move, a split or a merge in which balancing leaves the bundle alone."
            " Operators' moves count, too."
        ),
        "balancing.move_timeout_ms": _meaning("Time to wait for the end of a move.", _SOME),
        "balancing.moves_max": _meaning("Limit of concurrent moves in the cluster.", _SOME),
        "balancing.broker_moves_max": _meaning(
            "Limit of concurrent moves to and from one broker.", _SOME
        ),
        "balancing.split_algorithm": _meaning(
            "The algorithm that chooses where an automatic split cuts."
        ),
        "balancing.unload_split_children": _meaning(
            "Moves the children of an automatic split to other brokers at once."
        ),
        "balancing.namespace_bundles": _meaning(
            "Number of bundles of a new namespace, if the caller gives none.",
            Range(least=1, most=NEW_BUNDLES_MAX),
        ),
        "reports.sample_interval_ms": _meaning(
            "Time between two samples of a broker's own load.", _SOME
        ),
        "reports.interval_min_ms": _meaning("Minimum time between two reports of a broker.", _SOME),
        "reports.interval_max_ms": _meaning("Maximum time between two reports of a broker.", _SOME),
        "reports.change_percent": _meaning(
            "Change of a figure that makes a report due before the maximum time, in percent."
        ),
        "reports.bundles_max": _meaning(
            "Number of bundles in a report: the busiest. None: all bundles.", _SOME
        ),
        "reports.history": _meaning(
            "Weight of the old value in an average, every 5 seconds.", _SHARE
        ),
        "reports.cost_window_ms": _meaning(
            "How far back loads count in the cost of a bundle.", _SOME
        ),
        "reports.nic_speed_gbps": _meaning(
            "Speed of the network in each direction, in Gbit/s. None: the speed of the network"
            " card.",
            Range(),
        ),
        "weights.cpu": _meaning("Weight of the CPU use.", Range()),
        "weights.memory": _meaning("Weight of the memory use.", Range()),
        "weights.direct_memory": _meaning(
            "Weight of the direct memory use. Brokers of Equipoise report none.", Range()
        ),
        "weights.bandwidth_in": _meaning("Weight of the inbound network use.", Range()),
        "weights.bandwidth_out": _meaning("Weight of the outbound network use.", Range()),
        "balanced.moves_max": _meaning(
            "Limit of bundles that one broker takes in one round.", _SOME
        ),
        "balanced.start_ratio": _meaning(
            "Distance from the mean at which a broker is helped, as a fraction of the mean.",
            Range(),
        ),
        "balanced.settle_ratio": _meaning(
            "Distance from the mean to which a round brings brokers, as a fraction of the mean.",
            Range(),
        ),
        "balanced.calm": _meaning(
            "Widens all bands by 70 %: less load moves, and the load is less even."
        ),
        "balanced.patience_ms": _meaning(
            "How long a broker that is less than 20 % from the mean, but too far, waits for help."
        ),
        "balanced.churn_max": _meaning("Share of all load that may move in an hour.", Range()),
        "transfer.target_deviation": _meaning(
            "Standard deviation of the brokers' use above which bundles move, as a fraction.",
            Range(),
        ),
        "transfer.hit_count_threshold": _meaning(
            "Number of uneven rounds in a row before bundles move."
        ),
        "transfer.sources_max": _meaning("Limit of brokers that give bundles in one round.", _SOME),
        "transfer.transfer": _meaning("Names a destination for each move, and tries swaps."),
        "transfer.overloaded_percent": _meaning(
            "Use above which a broker may count as overloaded, in percent.", Range()
        ),
        "transfer.load_ttl_ms": _meaning("Age at which a report no longer counts."),
        "transfer.cool_down_ms": _meaning(
            "Time after a move until a broker's next report counts again."
        ),
        "transfer.with_policies": _meaning("Also moves bundles of namespaces with policies."),
        "transfer.excluded_namespaces": _meaning("Namespaces whose bundles never move."),
        "transfer.pulsar_exact": _EXACT,
        "transfer.pulsar_debug": _meaning(
            "With `pulsar_exact`: counts the bundles that a swap brings back, as Pulsar does in"
            " debug mode."
        ),
        "threshold.threshold_percent": _meaning(
            "Distance above the mean at which a broker gives bundles, in percentage points.",
            Range(),
        ),
        "threshold.bytes_min": _BYTES_MIN,
        "threshold.lower_boundary": _meaning(
            "The most used broker also gives bundles if another broker is that far below the mean."
        ),
        "threshold.history": _meaning(
            "With `pulsar_exact`: weight of the old value in an average, each round.", _SHARE
        ),
        "threshold.pulsar_exact": _EXACT,
        "overload.overloaded_percent": _meaning(
            "Use above which a broker gives bundles, in percent.", Range()
        ),
        "overload.pulsar_exact": _EXACT,
        "uniform.rate_difference_percent": _meaning(
            "Allowed difference of the highest message rate from the lowest, in percent of the"
            " lowest. 0: no limit.",
            Range(),
        ),
        "uniform.throughput_ratio": _meaning(
            "Allowed ratio of the highest throughput to the lowest. 0: no limit.", Range()
        ),
        "uniform.unloaded_share": _UNLOADED_SHARE,
        "uniform.messages_min": _MESSAGES_MIN,
        "uniform.bytes_min": _BYTES_MIN,
        "uniform.bundles_max": _meaning(
            "Limit of bundles moved in one round. None: as many as fit."
        ),
        "uniform.pulsar_exact": _EXACT,
        "average.low_percent": _meaning(
            "Difference of use that counts as small, in percentage points.", Range()
        ),
        "average.high_percent": _meaning(
            "Difference of use that counts as large, in percentage points.", Range()
        ),
        "average.low_hits": _meaning(
            "Number of rounds with a small difference before a pair moves bundles."
        ),
        "average.high_hits": _meaning(
            "Number of rounds with a large difference before a pair moves bundles."
        ),
        "average.unloaded_share": _UNLOADED_SHARE,
        "average.messages_min": _MESSAGES_MIN,
        "average.bytes_min": _BYTES_MIN,
        "average.pulsar_exact": _EXACT,
        "limits.topics_max": _meaning("Topics of a bundle.", Range(least=1)),
        "limits.sessions_max": _meaning(
            "Consumers and producers of a bundle. None: no limit.", Range(least=1)
        ),
        "limits.messages_per_second_max": _meaning(
            "Messages per second of a bundle, in both directions together.", _ABOVE_ZERO
        ),
        "limits.bytes_per_second_max": _meaning(
            f"Bytes per second of a bundle, in both directions together ({MIB:,} are a MiB).",
            _ABOVE_ZERO,
        ),
        "split.hits_threshold": _meaning(
            "Number of rounds above a limit before a bundle is split."
        ),
        "split.splits_max": _meaning("Limit of splits in one round.", _SOME),
        "split.bundles_max": _meaning("Limit of bundles of a namespace: splits stop there.", _SOME),
        "split.pulsar_exact": _EXACT,
        "merge.cold_ratio": _meaning(
            "Fraction of every limit below which two neighbours together count as cold.",
            Range(most=1, open=True),
        ),
        "merge.hits_threshold": _meaning("Number of cold rounds before a pair is merged."),
        "merge.merges_max": _meaning("Limit of merges in one round.", _SOME),
        "merge.bundles_min": _meaning(
            "Minimum number of bundles of a namespace: merges stop there.", _SOME
        ),
        "split_points.margin": _meaning(
            "Fraction by which a bundle must exceed a limit before its load is divided.", Range()
        ),
        "placement.topics_max": _meaning("Limit of topics of a broker.", _SOME),
        "placement.prefer_later_versions": _meaning(
            "Places bundles only on brokers of the latest version."
        ),
        "placement.failure_domains": _meaning("Applies anti-affinity to failure domains, too."),
        "placement.pulsar_exact": _EXACT,
        "least_message_rate.overloaded_percent": _meaning(
            "Use above which a broker is chosen last, in percent.", Range()
        ),
        "least_usage.difference_percent": _meaning(
            "Distance below the mean at which a broker is preferred, in percentage points.", Range()
        ),
        "quarantine.deaths": _meaning(
            "Number of owners in a row that died soon with a bundle before it goes into quarantine."
            " 0: off."
        ),
        "quarantine.failed_opens": _meaning(
            "Number of failed opens in a row before a bundle goes into quarantine. 0: off."
        ),
        "quarantine.renewals": _meaning(
            "Number of renewed leases with which an owner clears a bundle. One that dies before has"
            " died soon.",
            Range(least=1, most=RENEWALS_MAX),
        ),
        "quarantine.hold_ms": _meaning(
            "Length of the first quarantine of a bundle. Each further death or failed open"
            " doubles it.",
            Range(least=1, most=HOLD_MS_MAX),
        ),
        "quarantine.share_percent": _meaning(
            "Limit of bundles in quarantine, in percent of all bundles. One is always allowed.",
            Range(most=100),
        ),
        "tenants.namespaces_max": _meaning("Limit of namespaces of a tenant.", _SOME),
        "tenants.bundles_max": _meaning("Limit of bundles of a tenant.", _SOME),
        "tenants.topics_max": _meaning("Limit of topics of a tenant at one broker.", _SOME),
        "tenants.records_per_second_max": _meaning(
            "Limit of changes per second that callers make in a tenant at one broker. Twice as many"
            " may come at once.",
            _SOME,
        ),
    }
)
"""Each setting by its name GROUP.FIELD, in the order of the groups."""
