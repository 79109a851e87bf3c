"""Describe each setting of balancing and its range of numbers, as data.

Types and defaults come from the fields in `balancing_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from equipoise.brokers.balancing.namespace_size import NEW_BUNDLES_MAX
from equipoise.brokers.balancing.splitting.bundle_limits import MIB
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.shedder.loads import FIGURE_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The allowed numbers of a setting, from `least` to `most`. If `open`, both bounds are excluded."""

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
        return f"{least} and below {self.most:g}" if self.open else f"from {self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The description of a setting, and the range of its numbers. Only numbers use the range."""

    text: str
    range: Range = Range()


_SHARE: Final = Range(most=1)
_COUNT: Final = Range(most=INTEGER_MAX)
_SOME: Final = Range(least=1, most=INTEGER_MAX)
_ABOVE_ZERO: Final = Range(open=True)

_EXACT: Final = Meaning(text="Decide as Pulsar's own code does, with its faults.")
_UNLOADED_SHARE: Final = Meaning(text="What part of the difference is moved.", range=_SHARE)
_MESSAGES_MIN: Final = Meaning(text="Less is not worth a move: messages per second.")
_BYTES_MIN: Final = Meaning(text="Less is not worth a move: bytes per second.")


def _says(text: str, numbers: Range = _COUNT) -> Meaning:
    return Meaning(text=text, range=numbers)


GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "balancing": "What is done, when, by which strategies, and how much of it at once.",
        "reports": "When a broker reports its load, and what it says.",
        "weights": "What the use of each resource counts for, with all strategies that weigh resources.",
        "balanced": "`BalancedShedder`: our own shedder, which levels cost by capacity.",
        "transfer": "`TransferShedder`: Pulsar's, which names the destination of each move.",
        "threshold": "`ThresholdShedder`: Pulsar's, which unloads what is too far above the mean.",
        "overload": "`OverloadShedder`: Pulsar's, which unloads what is above a fixed use.",
        "uniform": "`UniformLoadShedder`: Pulsar's, which goes by messages and throughput.",
        "average": "`AvgShedder`: Pulsar's, which pairs the most used with the least used.",
        "limits": "What a bundle may carry before it is split, and of what neighbours that are merged must stay clear.",
        "split": "When bundles are split.",
        "merge": "When neighbours are merged.",
        "split_points": "Where a bundle is cut by its load.",
        "placement": "The rules that all placements keep.",
        "least_message_rate": "`LeastLongTermMessageRate`: Pulsar's placement by message rate.",
        "least_usage": "`LeastResourceUsageWithWeight`: Pulsar's placement by use.",
    }
)
"""What each group is about."""

MEANINGS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        "balancing.enabled": _says("Whether anything is moved, split or merged by itself."),
        "balancing.shedding": _says("Whether bundles are moved to even out the load."),
        "balancing.splitting": _says("Whether bundles that carry too much are split."),
        "balancing.merging": _says("Whether neighbours that carry little are merged."),
        "balancing.shedder": _says("The strategy that moves bundles."),
        "balancing.placement": _says("The strategy that finds an owner for a bundle that has none."),
        "balancing.shed_interval_ms": _says("From one round of the shedder to the next.", _SOME),
        "balancing.split_interval_ms": _says("From one round of splits and merges to the next.", _SOME),
        "balancing.rest_ms": _says("How long a bundle is left alone after a move, a split or a merge, whoever made it."),
        "balancing.move_timeout_ms": _says("How long the end of a move is waited for.", _SOME),
        "balancing.moves_max": _says("Moves under way in the cluster at once.", _SOME),
        "balancing.broker_moves_max": _says("Moves under way at one broker at once, those to it and from it together.", _SOME),
        "balancing.split_algorithm": _says("Where a bundle is cut that is split by itself."),
        "balancing.unload_split_children": _says("Whether the children of such a split move away at once."),
        "balancing.namespace_bundles": _says(
            "Of how many bundles a namespace is made, where nobody says.", Range(least=1, most=NEW_BUNDLES_MAX)
        ),
        "reports.sample_interval_ms": _says("How often a broker looks at its own load.", _SOME),
        "reports.interval_min_ms": _says("From one report of a broker to the next, at least.", _SOME),
        "reports.interval_max_ms": _says("From one report of a broker to the next, at most.", _SOME),
        "reports.change_percent": _says("A report is due in between once a figure has changed by so much."),
        "reports.bundles_max": _says("So many bundles are named in a report, the busiest; none: all of them.", _SOME),
        "reports.history": _says("What an average keeps of what it was, each 5 seconds.", _SHARE),
        "reports.nic_speed_gbps": _says("What the network carries each way; none: what its card says.", Range()),
        "weights.cpu": _says("What the use of the CPU counts for.", Range()),
        "weights.memory": _says("What the use of the memory counts for.", Range()),
        "weights.direct_memory": _says("What the use of direct memory counts for; brokers here report none.", Range()),
        "weights.bandwidth_in": _says("What the use of the network counts for, inwards.", Range()),
        "weights.bandwidth_out": _says("What the use of the network counts for, outwards.", Range()),
        "balanced.moves_max": _says("Moves of one round.", _SOME),
        "balanced.start_ratio": _says("From so far off the mean on a broker is levelled, as part of the mean.", Range()),
        "balanced.settle_ratio": _says("Until it is no further off than this.", Range()),
        "balanced.wobble_ratio": _says("How much of its cost a bundle may wobble without moving back and forth.", Range()),
        "transfer.target_deviation": _says(
            "The standard deviation of the brokers' uses, as a fraction, above which bundles move.", Range()
        ),
        "transfer.hit_count_threshold": _says("After so many uneven rounds in a row one acts."),
        "transfer.sources_max": _says("So many brokers give in one round.", _SOME),
        "transfer.transfer": _says("Whether moves name their destination, and swaps are tried."),
        "transfer.overloaded_percent": _says("From this use on a broker may be overloaded.", Range()),
        "transfer.load_ttl_ms": _says("How long a report counts."),
        "transfer.cool_down_ms": _says("How much younger than its last move a broker's report must be before it takes part again."),
        "transfer.with_policies": _says("Whether bundles of namespaces with policies move, too."),
        "transfer.excluded_namespaces": _says("Namespaces whose bundles never move."),
        "transfer.pulsar_exact": _EXACT,
        "transfer.pulsar_debug": _says("With `pulsar_exact`: as Pulsar in its debug mode, which counts what a swap brings back."),
        "threshold.threshold_percent": _says("So far above the mean a broker's use may be.", Range()),
        "threshold.bytes_min": _BYTES_MIN,
        "threshold.lower_boundary": _says("Whether the most used gives, too, when somebody is as far below the mean."),
        "threshold.history": _says("With `pulsar_exact`: what an average keeps of what it was, each round.", _SHARE),
        "threshold.pulsar_exact": _EXACT,
        "overload.overloaded_percent": _says("Above this use a broker gives.", Range()),
        "overload.pulsar_exact": _EXACT,
        "uniform.rate_difference_percent": _says("By so much of the idlest's message rate the busiest may differ; 0: never mind.", Range()),
        "uniform.throughput_ratio": _says("So many times the idlest's throughput the busiest may have; 0: never mind.", Range()),
        "uniform.unloaded_share": _UNLOADED_SHARE,
        "uniform.messages_min": _MESSAGES_MIN,
        "uniform.bytes_min": _BYTES_MIN,
        "uniform.bundles_max": _says("So many are taken at most; none: as many as fit."),
        "uniform.pulsar_exact": _EXACT,
        "average.low_percent": _says("Which difference of use counts, in points of percent.", Range()),
        "average.high_percent": _says("Which difference of use counts as large.", Range()),
        "average.low_hits": _says("After so many rounds of the former a pair acts."),
        "average.high_hits": _says("After so many rounds of the latter a pair acts."),
        "average.unloaded_share": _UNLOADED_SHARE,
        "average.messages_min": _MESSAGES_MIN,
        "average.bytes_min": _BYTES_MIN,
        "average.pulsar_exact": _EXACT,
        "limits.topics_max": _says("Topics of a bundle; above it, it is split.", _SOME),
        "limits.sessions_max": _says("Consumers and producers of a bundle; none: any number.", _SOME),
        "limits.messages_per_second_max": _says("Messages of a bundle per second, both ways together.", _ABOVE_ZERO),
        "limits.bytes_per_second_max": _says(f"Bytes of a bundle per second, both ways together; {MIB:,} are a MiB.", _ABOVE_ZERO),
        "split.hits_threshold": _says("A bundle is split in the round after so many in which it exceeded a limit."),
        "split.splits_max": _says("So many splits a round.", _SOME),
        "split.bundles_max": _says("A namespace is not split into more.", _SOME),
        "split.pulsar_exact": _EXACT,
        "merge.cold_ratio": _says("Neighbours are cold that together carry less than this part of every limit.", Range(most=1, open=True)),
        "merge.hits_threshold": _says("A pair is merged in the round after so many in which it was cold."),
        "merge.merges_max": _says("So many merges a round.", _SOME),
        "merge.bundles_min": _says("A namespace keeps so many.", _SOME),
        "split_points.margin": _says("By such a part a bundle must exceed a limit before its load is divided.", Range()),
        "placement.topics_max": _says("As many topics as a broker may have.", _SOME),
        "placement.prefer_later_versions": _says("Whether bundles keep to the brokers of the latest version."),
        "placement.failure_domains": _says("Whether anti-affinity goes by failure domains, too."),
        "placement.pulsar_exact": _EXACT,
        "least_message_rate.overloaded_percent": _says("Brokers above this use come last.", Range()),
        "least_usage.difference_percent": _says("So far below the mean a broker's use is to be, in points of percent.", Range()),
    }
)
"""Each setting by its name GROUP.FIELD, in the order of the groups."""
