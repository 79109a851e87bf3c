"""Convert the balancing settings of a Pulsar `broker.conf` to ours, by tables of its keys: the
settings that each key sets here, or why it has no meaning here.

Every entry is taken, has no meaning here, or is not understood. The last two carry a reason. Our
default stays for an entry that is not understood.

Keys, types and meanings follow Pulsar 4.0.8 and 4.2.4, and values are converted as Pulsar does. One
exception: where Pulsar accepts nonsense (any word but `true` is false), the entry is not
understood.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from equipoise.brokers.balancing.settings.properties import Property, parse_properties
from equipoise.brokers.balancing.settings.setting_values import (
    LEGIBLE,
    Value,
    format_value,
    nearest,
    value_of,
)
from equipoise.brokers.balancing.splitting.split_points import ALGORITHMS, MIB
from equipoise.brokers.errors import InvalidSetting, unknown_setting
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import check_namespace

Convert = Callable[[str], Value]

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000

_match_integer: Final = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_match_decimal: Final = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"
).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The settings that a key sets, and the conversion of its value. `note` is for people."""

    settings: tuple[str, ...]
    convert: Convert
    note: str = ""


def _truth(text: str) -> Value:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false; Pulsar reads it as false")
    return text.lower() == "true"


def _integer(
    *, least: int = 0, most: int = _INT_MAX, times: int = 1, unbounded: tuple[int, ...] = ()
) -> Convert:
    """Return a conversion for integers of at least `least`, multiplied by `times` for our unit.
    `unbounded` values mean no limit.
    """

    def convert(text: str) -> Value:
        if _match_integer(text) is None or not -most - 1 <= int(text) <= most:
            raise ValueError(f"it must be an integer of at most {most}")
        number = int(text)
        if number in unbounded:
            return None
        if number < least:
            raise ValueError(
                f"it must be at least {least}"
                + (f", or {unbounded[0]} for no limit" if unbounded else "")
            )
        return number * times

    return convert


def _decimal(*, most: float = math.inf, times: float = 1.0) -> Convert:
    """Return a conversion for numbers from 0 to `most`, multiplied by `times` for our unit."""

    def convert(text: str) -> Value:
        number = float(text) if _match_decimal(text) is not None else math.nan
        if not 0 <= number <= most or math.isinf(number):
            raise ValueError(
                "it must be a number from 0" + ("" if math.isinf(most) else f" to {most:g}")
            )
        return number * times

    return convert


def _class_of(names: Mapping[str, str], *, kind: str) -> Convert:
    """Return a conversion from Pulsar's class name, with or without its package, to our
    strategy.
    """

    def convert(text: str) -> Value:
        name = text.rpartition(".")[2]
        if name not in names:
            raise ValueError(f"there is no such {kind} here; there are {', '.join(names)}")
        return names[name]

    return convert


def _algorithm(text: str) -> Value:
    if text not in ALGORITHMS:
        raise ValueError(f"there is no such algorithm; there are {', '.join(ALGORITHMS)}")
    return text


def _namespaces(text: str) -> Value:
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        return frozenset(check_namespace(name) for name in names)
    except InvalidName as error:
        raise ValueError(str(error)) from None


def _taken(*settings: str, by: Convert, note: str = "") -> Taken:
    return Taken(settings=settings, convert=by, note=note)


_MINUTES: Final = _integer(least=1, times=_MINUTE_MS)
_SECONDS: Final = _integer(most=_LONG_MAX // _SECOND_MS, times=_SECOND_MS)
_PERCENT: Final = _integer()
_COUNT: Final = _integer()
_ONE_OR_MORE: Final = _integer(least=1)
_WEIGHT: Final = _decimal()

_SHEDDERS: Final = {
    name: name
    for name in (
        "TransferShedder",
        "ThresholdShedder",
        "OverloadShedder",
        "UniformLoadShedder",
        "AvgShedder",
    )
}
_UNBOUNDED: Final = "-1"
_OPTIONAL: Final = "reports.nic_speed_gbps"  # Without a value, it is measured.
_PLACEMENTS: Final = {
    "LeastLongTermMessageRate": "LeastLongTermMessageRate",
    "LeastResourceUsageWithWeight": "LeastResourceUsageWithWeight",
    "RoundRobinBrokerSelector": "RoundRobin",
}


def express(row: Taken, value: Value) -> str:
    """Return the text that a key converts to `value`, in Pulsar's unit. A value that the key cannot
    have is a fraction of the unit.
    """
    if value is None:
        return _UNBOUNDED if row.settings[0] != _OPTIONAL else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    if isinstance(value, str):
        return next((theirs for theirs, ours in _PLACEMENTS.items() if ours == value), value)
    unit = row.convert("1")
    assert isinstance(unit, int | float), "a number is converted from a number"
    return f"{value / unit:.12g}"


ENABLED: Final = "loadBalancerEnabled"
"""The key that switches balancing on, unless the load manager is `NOOP`."""

TAKEN: Final[Mapping[str, Taken]] = MappingProxyType(
    {
        # Whether and when.
        ENABLED: _taken("balancing.enabled", by=_truth),
        "loadBalancerSheddingEnabled": _taken("balancing.shedding", by=_truth),
        "loadBalancerAutoBundleSplitEnabled": _taken("balancing.splitting", by=_truth),
        "loadBalancerAutoUnloadSplitBundlesEnabled": _taken(
            "balancing.unload_split_children", by=_truth
        ),
        "loadBalancerSheddingIntervalMinutes": _taken("balancing.shed_interval_ms", by=_MINUTES),
        "loadBalancerSplitIntervalMinutes": _taken("balancing.split_interval_ms", by=_MINUTES),
        "loadBalancerSheddingGracePeriodMinutes": _taken(
            "balancing.rest_ms", by=_integer(most=_LONG_MAX // _MINUTE_MS, times=_MINUTE_MS)
        ),
        "namespaceBundleUnloadingTimeoutMs": _taken(
            "balancing.move_timeout_ms", by=_integer(least=1, most=_LONG_MAX)
        ),
        "defaultNamespaceBundleSplitAlgorithm": _taken("balancing.split_algorithm", by=_algorithm),
        "defaultNumberOfNamespaceBundles": _taken("balancing.namespace_bundles", by=_ONE_OR_MORE),
        "loadBalancerLoadSheddingStrategy": _taken(
            "balancing.shedder", by=_class_of(_SHEDDERS, kind="shedder")
        ),
        "loadBalancerLoadPlacementStrategy": _taken(
            "balancing.placement", by=_class_of(_PLACEMENTS, kind="placement")
        ),
        # Load reports.
        "loadBalancerReportUpdateThresholdPercentage": _taken(
            "reports.change_percent", by=_PERCENT
        ),
        "loadBalancerReportUpdateMinIntervalMillis": _taken(
            "reports.interval_min_ms", by=_ONE_OR_MORE
        ),
        "loadBalancerReportUpdateMaxIntervalMinutes": _taken(
            "reports.interval_max_ms", by=_MINUTES
        ),
        "loadBalancerHostUsageCheckIntervalMinutes": _taken(
            "reports.sample_interval_ms", by=_MINUTES
        ),
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport": _taken(
            "reports.bundles_max", by=_integer(least=1, unbounded=(-1,))
        ),
        "loadBalancerOverrideBrokerNicSpeedGbps": _taken("reports.nic_speed_gbps", by=_decimal()),
        "loadBalancerHistoryResourcePercentage": _taken(
            "reports.history", "threshold.history", by=_decimal(most=1)
        ),
        "loadBalancerCPUResourceWeight": _taken("weights.cpu", by=_WEIGHT),
        "loadBalancerMemoryResourceWeight": _taken(
            "weights.memory", by=_WEIGHT, note="out of use in Pulsar since 3.0"
        ),
        "loadBalancerDirectMemoryResourceWeight": _taken("weights.direct_memory", by=_WEIGHT),
        "loadBalancerBandwidthInResourceWeight": _taken("weights.bandwidth_in", by=_WEIGHT),
        "loadBalancerBandwidthOutResourceWeight": _taken("weights.bandwidth_out", by=_WEIGHT),
        # TransferShedder, and what others share with it.
        "loadBalancerBrokerLoadTargetStd": _taken("transfer.target_deviation", by=_decimal()),
        "loadBalancerSheddingConditionHitCountThreshold": _taken(
            "transfer.hit_count_threshold", by=_COUNT
        ),
        "loadBalancerTransferEnabled": _taken("transfer.transfer", by=_truth),
        "loadBalancerMaxNumberOfBrokerSheddingPerCycle": _taken(
            "transfer.sources_max", by=_ONE_OR_MORE
        ),
        "loadBalanceSheddingDelayInSeconds": _taken("transfer.cool_down_ms", by=_SECONDS),
        "loadBalancerBrokerLoadDataTTLInSeconds": _taken("transfer.load_ttl_ms", by=_SECONDS),
        "loadBalancerSheddingBundlesWithPoliciesEnabled": _taken(
            "transfer.with_policies", by=_truth
        ),
        "loadBalancerSheddingExcludedNamespaces": _taken(
            "transfer.excluded_namespaces", by=_namespaces
        ),
        "loadBalancerDebugModeEnabled": _taken(
            "transfer.pulsar_debug",
            by=_truth,
            note=(
                "it changes what Pulsar decides, so it applies only with pulsar_exact; reasons are"
                " always recorded"
            ),
        ),
        "loadBalancerBrokerOverloadedThresholdPercentage": _taken(
            "transfer.overloaded_percent",
            "overload.overloaded_percent",
            "least_message_rate.overloaded_percent",
            by=_PERCENT,
        ),
        # The classic shedders.
        "loadBalancerBrokerThresholdShedderPercentage": _taken(
            "threshold.threshold_percent", by=_PERCENT
        ),
        "loadBalancerBundleUnloadMinThroughputThreshold": _taken(
            "threshold.bytes_min", by=_decimal(times=MIB)
        ),
        "lowerBoundarySheddingEnabled": _taken("threshold.lower_boundary", by=_truth),
        "loadBalancerMsgRateDifferenceShedderThreshold": _taken(
            "uniform.rate_difference_percent", by=_decimal()
        ),
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": _taken(
            "uniform.throughput_ratio", by=_decimal()
        ),
        "maxUnloadPercentage": _taken(
            "uniform.unloaded_share", "average.unloaded_share", by=_decimal(most=1)
        ),
        "minUnloadMessage": _taken("uniform.messages_min", "average.messages_min", by=_COUNT),
        "minUnloadMessageThroughput": _taken("uniform.bytes_min", "average.bytes_min", by=_COUNT),
        "maxUnloadBundleNumPerShedding": _taken(
            "uniform.bundles_max", by=_integer(unbounded=(-1,))
        ),
        "loadBalancerAvgShedderLowThreshold": _taken("average.low_percent", by=_PERCENT),
        "loadBalancerAvgShedderHighThreshold": _taken("average.high_percent", by=_PERCENT),
        "loadBalancerAvgShedderHitCountLowThreshold": _taken("average.low_hits", by=_COUNT),
        "loadBalancerAvgShedderHitCountHighThreshold": _taken("average.high_hits", by=_COUNT),
        # Placement.
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": _taken(
            "least_usage.difference_percent", by=_PERCENT
        ),
        "loadBalancerBrokerMaxTopics": _taken("placement.topics_max", by=_ONE_OR_MORE),
        "preferLaterVersions": _taken("placement.prefer_later_versions", by=_truth),
        "failureDomainsEnabled": _taken("placement.failure_domains", by=_truth),
        # Splits.
        "loadBalancerNamespaceBundleMaxTopics": _taken("limits.topics_max", by=_ONE_OR_MORE),
        "loadBalancerNamespaceBundleMaxSessions": _taken(
            "limits.sessions_max", by=_integer(least=1, unbounded=(-1, 0))
        ),
        "loadBalancerNamespaceBundleMaxMsgRate": _taken(
            "limits.messages_per_second_max", by=_ONE_OR_MORE
        ),
        "loadBalancerNamespaceBundleMaxBandwidthMbytes": _taken(
            "limits.bytes_per_second_max", by=_integer(least=1, times=MIB)
        ),
        "loadBalancerNamespaceMaximumBundles": _taken("split.bundles_max", by=_ONE_OR_MORE),
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": _taken(
            "split.hits_threshold", by=_COUNT
        ),
        "loadBalancerMaxNumberOfBundlesToSplitPerCycle": _taken(
            "split.splits_max", by=_ONE_OR_MORE
        ),
        "flowOrQpsDifferenceThresholdPercentage": _taken(
            "split_points.margin", by=_decimal(times=0.01)
        ),
    }
)

MANAGER: Final = "loadManagerClassName"
EXTENSIBLE: Final = "ExtensibleLoadManagerImpl"
NOOP: Final = "NoopLoadManager"
MANAGERS: Final[Mapping[str, Mapping[str, Value]]] = MappingProxyType(
    {
        "ModularLoadManagerImpl": {},
        EXTENSIBLE: {
            "balancing.shedder": "TransferShedder",
            "balancing.placement": "LeastResourceUsageWithWeight",
        },
        NOOP: {"balancing.enabled": False},
    }
)
"""The settings of ours that each of Pulsar's load managers sets."""

STRATEGIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "loadBalancerLoadSheddingStrategy": "TransferShedder",
        "loadBalancerLoadPlacementStrategy": "LeastResourceUsageWithWeight",
    }
)
"""The keys that name strategies, and what the extensible load manager uses instead of their
values."""

PLACING_SHEDDER: Final = "AvgShedder"
"""Pulsar sets this one at both keys, because it chooses the destinations of its moves as a
placement of what it unloaded."""

# The old spelling counts only while the new one has its default, even if the default is written
# out.
OLD_SPELLINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "loadBalancerBandwithInResourceWeight": "loadBalancerBandwidthInResourceWeight",
        "loadBalancerBandwithOutResourceWeight": "loadBalancerBandwidthOutResourceWeight",
    }
)
OLD_SPELLINGS_YIELD_TO: Final = 1.0

_BY_THE_LOG: Final = (
    "here the log alone stores who owns a bundle, so there is no other store to choose"
)
_BY_THE_AGENT: Final = "brokers cancel stuck operations after their own deadlines"
_OUT_OF_USE: Final = "Pulsar itself no longer reads it"
_WORKER: Final = "it is a setting of the broker's own, not of balancing: "

MEANINGLESS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "loadManagerServiceUnitStateTableViewClassName": _BY_THE_LOG,
        "loadBalancerServiceUnitTableViewSyncer": _BY_THE_LOG,
        "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": (
            "a split removes its parent at once, so nothing waits to be removed"
        ),
        "loadBalancerServiceUnitStateMaxConcurrentOverrides": (
            "here the death of a broker is one record, which frees all its bundles"
        ),
        "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": _BY_THE_AGENT,
        "loadBalancerServiceUnitStateMonitorIntervalInSeconds": _BY_THE_AGENT,
        "metadataStoreOperationTimeoutSeconds": "there is no metadata store here",
        "loadBalancerMultiPhaseBundleUnload": (
            "the owner always serves until the destination is ready, and sends its clients there"
        ),
        "loadBalancerDistributeBundlesEvenlyEnabled": (
            "among equal brokers, the one with the fewest bundles is always chosen"
        ),
        "loadBalancerResourceQuotaUpdateIntervalMinutes": (
            "there are no resource quotas here, and no store to write them to"
        ),
        "topicBundleAssignmentStrategy": "a topic is always in the bundle that holds its hash",
        "supportedNamespaceBundleSplitAlgorithms": (
            f"all algorithms are always available: {', '.join(ALGORITHMS)}"
        ),
        "loadBalancerPlacementStrategy": _OUT_OF_USE,
        "loadBalancerBrokerUnderloadedThresholdPercentage": _OUT_OF_USE,
        "loadBalancerBrokerComfortLoadLevelPercentage": _OUT_OF_USE,
        "clusterName": _WORKER + "--cluster",
        "bindAddress": _WORKER + "--host",
        "advertisedAddress": _WORKER + "--advertised-host",
        "webServicePort": _WORKER + "--http-port",
        "brokerServicePort": _WORKER + "--pulsar-port",
    }
)


NOT_ABOUT_BALANCING: Final = "it is not about balancing"
"""Why most entries of a `broker.conf` have no meaning here."""

# The beginnings of Pulsar's balancing keys. An unknown key that starts so is probably misspelled.
_BEGINNINGS: Final = ("loadbalanc", "loadmanager")
_SIMILAR: Final = 0.9
_PLACEMENT: Final = "loadBalancerLoadPlacementStrategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenEntry:
    """An entry that was taken, with the values of our `settings`. `note` is for people."""

    line: int
    key: str
    value: str
    settings: Mapping[str, Value]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEntry:
    """An entry that was not taken, and why."""

    line: int
    key: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSettings:
    """The result for a `broker.conf`, each list in the order of the file."""

    taken: tuple[TakenEntry, ...]
    without_meaning: tuple[OtherEntry, ...]
    not_understood: tuple[OtherEntry, ...]

    @property
    def settings(self) -> Mapping[str, Value]:
        """All values by setting. If two keys set the same setting, the later counts."""
        return {setting: value for entry in self.taken for setting, value in entry.settings.items()}


def read_pulsar_settings(text: str) -> PulsarSettings:
    """Return the settings of a `broker.conf`. Raises `OperatorError` if the file is malformed."""
    entries = [
        Property(line=each.line, key=each.key, value=each.value.strip())
        for each in parse_properties(text)
    ]
    values = {entry.key: entry.value for entry in entries}
    last = {entry.key: entry.line for entry in entries}
    taken, without_meaning, not_understood = [], [], []
    for entry in entries:
        why = (
            f"line {last[entry.key]} sets it again, and the last counts"
            if entry.line != last[entry.key]
            else _why_meaningless(entry, values)
        )
        if why is not None:
            without_meaning.append(_other(entry, why))
            continue
        try:
            taken.append(_taken_entry(entry))
        except ValueError as misfit:
            not_understood.append(_other(entry, str(misfit)))
    return PulsarSettings(
        taken=tuple(taken),
        without_meaning=tuple(without_meaning),
        not_understood=tuple(not_understood),
    )


DYNAMIC_KEYS: Final = (*TAKEN, MANAGER)
"""The keys that can be set one by one."""


def settings_of_key(key: str, value: str) -> Mapping[str, Value]:
    """Return the settings that one key sets, converted from its value. Raises `NotFound`,
    `InvalidSetting`.
    """
    names_of_key(key)
    try:
        return _taken_entry(Property(line=1, key=key, value=value.strip())).settings
    except ValueError as misfit:
        raise InvalidSetting(
            setting=key, value=value[:LEGIBLE], expected=f"as Pulsar has it ({misfit})"
        ) from None


def keys_of_settings(values: Mapping[str, Value]) -> Mapping[str, str]:
    """Return values by setting as Pulsar's keys and texts. A setting without a key, or only with
    others of its key, keeps its name.
    """
    keys = {
        key: row for key, row in TAKEN.items() if all(setting in values for setting in row.settings)
    }
    expressed = {key: express(row, values[row.settings[0]]) for key, row in keys.items()}
    covered = {setting for row in keys.values() for setting in row.settings}
    return expressed | {
        setting: format_value(value) for setting, value in values.items() if setting not in covered
    }


def names_of_key(key: str) -> tuple[str, ...]:
    """Return the names of the settings of one key. Raises `NotFound`."""
    if key in TAKEN:
        return TAKEN[key].settings
    if key == MANAGER:
        return tuple(sorted({setting for settings in MANAGERS.values() for setting in settings}))
    raise unknown_setting(setting=key[:LEGIBLE], nearest=nearest(key, DYNAMIC_KEYS))


def _why_meaningless(entry: Property, values: Mapping[str, str]) -> str | None:
    """Return why an entry has no meaning, alone or beside the other entries; None if it is
    taken.
    """
    key = entry.key
    if key in MEANINGLESS:
        return MEANINGLESS[key]
    if key not in TAKEN and key not in OLD_SPELLINGS and key != MANAGER:
        return None if _is_about_balancing(key) else NOT_ABOUT_BALANCING
    if not entry.value:
        return "it is empty, so the default stays"
    manager = _class_in(values.get(MANAGER, ""))
    if key == ENABLED and manager == NOOP:
        return f"{NOOP} balances nothing, so this has no effect"
    if key in STRATEGIES and manager == EXTENSIBLE:
        return (
            None
            if _class_in(entry.value) == STRATEGIES[key]
            else f"{EXTENSIBLE} uses {STRATEGIES[key]}, so this has no effect"
        )
    if key == _PLACEMENT and _class_in(entry.value) == PLACING_SHEDDER:
        return (
            f"{PLACING_SHEDDER} names the destinations of its moves itself here; the default places"
            " other bundles"
        )
    if key in OLD_SPELLINGS:
        new = OLD_SPELLINGS[key]
        return (
            f"{new} is set, too, and counts"
            if not _is_default_weight(values.get(new, ""))
            else None
        )
    old = next((old for old, new in OLD_SPELLINGS.items() if new == key), "")
    if values.get(old) and _is_default_weight(entry.value):
        return (
            f"{old} is set, too, and in Pulsar it counts as long as this is"
            f" {OLD_SPELLINGS_YIELD_TO}"
        )
    return None


def _taken_entry(entry: Property) -> TakenEntry:
    """Return the entry as our settings. Raises `ValueError` for an unknown key or an invalid
    value.
    """
    if entry.key == MANAGER:
        return _taken_manager(entry)
    row = TAKEN.get(OLD_SPELLINGS.get(entry.key, entry.key))
    if row is None:
        near = nearest(entry.key, (*TAKEN, *OLD_SPELLINGS, *MEANINGLESS, MANAGER))
        raise ValueError("Pulsar has no such key" + (f"; it has {near}" if near else ""))
    settings = _settings(row, entry.value)
    note = (
        f"the old spelling of {OLD_SPELLINGS[entry.key]}"
        if entry.key in OLD_SPELLINGS
        else row.note
    )
    return TakenEntry(
        line=entry.line, key=entry.key, value=entry.value, settings=settings, note=note
    )


def _settings(row: Taken, text: str) -> Mapping[str, Value]:
    value = row.convert(text)
    try:
        return {setting: value_of(setting, value) for setting in row.settings}
    except InvalidSetting as error:
        raise ValueError(f"here {error.setting} must be {error.expected}") from None


def _taken_manager(entry: Property) -> TakenEntry:
    settings = MANAGERS.get(_class_in(entry.value))
    if settings is None:
        raise ValueError(f"there is no such load manager; there are {', '.join(MANAGERS)}")
    note = "there is one load manager here, with the strategies of all of Pulsar's"
    return TakenEntry(
        line=entry.line, key=entry.key, value=entry.value, settings=settings, note=note
    )


def _class_in(value: str) -> str:
    """Return the name of a Java class without its package."""
    return value.rpartition(".")[2]


def _is_default_weight(value: str) -> bool:
    """Return whether Pulsar treats a weight as not set."""
    try:
        return not value or float(value) == OLD_SPELLINGS_YIELD_TO
    except ValueError:
        return False


def _is_about_balancing(key: str) -> bool:
    return key.lower().startswith(_BEGINNINGS) or nearest(key, TAKEN, cutoff=_SIMILAR) is not None


def _other(entry: Property, why: str) -> OtherEntry:
    return OtherEntry(
        line=entry.line, key=entry.key[:LEGIBLE], value=entry.value[:LEGIBLE], why=why
    )
