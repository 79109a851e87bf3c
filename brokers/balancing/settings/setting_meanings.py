"""Describe each setting of balancing and its range of numbers, as data.

Types and defaults come from the fields in `balancing_settings`. A policy describes its own settings
(see `shedder.policy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from equipoise.brokers.balancing.namespace_policies import NEW_BUNDLES_MAX
from equipoise.brokers.balancing.quarantine import HOLD_MS_MAX, RENEWALS_MAX
from equipoise.brokers.balancing.settings.balancing_settings import POLICIES
from equipoise.brokers.balancing.splitting.bundle_limits import MIB
from equipoise.shedder.policy import ANY, COUNT, EXACT, SHARE, SOME, Meaning, Policy, Range

_ABOVE_ZERO: Final = Range(open=True)


def _meaning(text: str, numbers: Range = COUNT) -> Meaning:
    return Meaning(text=text, range=numbers)


def _about(policy: type[Policy]) -> str:
    """Return the name of a policy, and the first line of its documentation."""
    return f"`{policy.__name__}`: {(policy.__doc__ or '').strip().partition(chr(10))[0]}"


GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "balancing": (
            "What balancing does, how often, with which strategies, and how many moves run at once."
        ),
        "reports": "When a broker reports its load, and what the report contains.",
        "weights": "The weight of each resource, for all strategies that use resource weights.",
        **{group: _about(policy) for group, policy in POLICIES.items()},
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
        "balancing.shed_interval_ms": _meaning("Time between two rounds of the shedder.", SOME),
        "balancing.split_interval_ms": _meaning(
            "Time between two rounds of splits and merges.", SOME
        ),
        "balancing.rest_ms": _meaning(
            "Time after a move, a split or a merge in which balancing leaves the bundle alone."
            " Operators' moves count, too."
        ),
        "balancing.move_timeout_ms": _meaning("Time to wait for the end of a move.", SOME),
        "balancing.moves_max": _meaning("Limit of concurrent moves in the cluster.", SOME),
        "balancing.broker_moves_max": _meaning(
            "Limit of concurrent moves to and from one broker.", SOME
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
            "Time between two samples of a broker's own load.", SOME
        ),
        "reports.interval_min_ms": _meaning("Minimum time between two reports of a broker.", SOME),
        "reports.interval_max_ms": _meaning("Maximum time between two reports of a broker.", SOME),
        "reports.change_percent": _meaning(
            "Change of a figure that makes a report due before the maximum time, in percent."
        ),
        "reports.bundles_max": _meaning(
            "Number of bundles in a report: the busiest. None: all bundles.", SOME
        ),
        "reports.history": _meaning(
            "Weight of the old value in an average, every 5 seconds.", SHARE
        ),
        "reports.cost_window_ms": _meaning(
            "How far back loads count in the cost of a bundle.", SOME
        ),
        "reports.nic_speed_gbps": _meaning(
            "Speed of the network in each direction, in Gbit/s. None: the speed of the network"
            " card.",
            ANY,
        ),
        "weights.cpu": _meaning("Weight of the CPU use.", ANY),
        "weights.memory": _meaning("Weight of the memory use.", ANY),
        "weights.direct_memory": _meaning(
            "Weight of the direct memory use. Brokers of Equipoise report none.", ANY
        ),
        "weights.bandwidth_in": _meaning("Weight of the inbound network use.", ANY),
        "weights.bandwidth_out": _meaning("Weight of the outbound network use.", ANY),
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
        "split.splits_max": _meaning("Limit of splits in one round.", SOME),
        "split.bundles_max": _meaning("Limit of bundles of a namespace: splits stop there.", SOME),
        "split.pulsar_exact": _meaning(EXACT),
        "merge.cold_ratio": _meaning(
            "Fraction of every limit below which two neighbours together count as cold.",
            Range(most=1, open=True),
        ),
        "merge.hits_threshold": _meaning("Number of cold rounds before a pair is merged."),
        "merge.merges_max": _meaning("Limit of merges in one round.", SOME),
        "merge.bundles_min": _meaning(
            "Minimum number of bundles of a namespace: merges stop there.", SOME
        ),
        "split_points.margin": _meaning(
            "Fraction by which a bundle must exceed a limit before its load is divided.", ANY
        ),
        "placement.topics_max": _meaning("Limit of topics of a broker.", SOME),
        "placement.prefer_later_versions": _meaning(
            "Places bundles only on brokers of the latest version."
        ),
        "placement.failure_domains": _meaning("Applies anti-affinity to failure domains, too."),
        "placement.pulsar_exact": _meaning(EXACT),
        "least_message_rate.overloaded_percent": _meaning(
            "Use above which a broker is chosen last, in percent.", ANY
        ),
        "least_usage.difference_percent": _meaning(
            "Distance below the mean at which a broker is preferred, in percentage points.", ANY
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
        "tenants.namespaces_max": _meaning("Limit of namespaces of a tenant.", SOME),
        "tenants.bundles_max": _meaning("Limit of bundles of a tenant.", SOME),
        "tenants.topics_max": _meaning("Limit of topics of a tenant at one broker.", SOME),
        "tenants.records_per_second_max": _meaning(
            "Limit of changes per second that callers make in a tenant at one broker. Twice as many"
            " may come at once.",
            SOME,
        ),
    }
)
"""Each setting by its name GROUP.FIELD, in the order of the groups."""
