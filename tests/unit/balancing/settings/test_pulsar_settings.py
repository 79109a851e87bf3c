"""Pulsar's settings: every entry of a `broker.conf` is taken, or has a reason why not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.pulsar_settings import (
    MANAGER,
    MEANINGLESS,
    OLD_SPELLINGS,
    STRATEGIES,
    TAKEN,
    keys_of_settings,
    read_pulsar_settings,
    settings_of_key,
)
from equipoise.brokers.balancing.settings.setting_values import SETTINGS, with_value
from equipoise.channel.core.errors import OperatorError

# Each key with the default of Pulsar 4.2.4 and what it sets here.
DEFAULTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "loadBalancerEnabled": ("true", {"balancing.enabled": True}),
    "loadBalancerSheddingEnabled": ("true", {"balancing.shedding": True}),
    "loadBalancerAutoBundleSplitEnabled": ("true", {"balancing.splitting": True}),
    "loadBalancerAutoUnloadSplitBundlesEnabled": (
        "true",
        {"balancing.unload_split_children": True},
    ),
    "loadBalancerSheddingIntervalMinutes": ("1", {"balancing.shed_interval_ms": 60_000}),
    "loadBalancerSplitIntervalMinutes": ("1", {"balancing.split_interval_ms": 60_000}),
    "loadBalancerSheddingGracePeriodMinutes": ("30", {"balancing.rest_ms": 1_800_000}),
    "namespaceBundleUnloadingTimeoutMs": ("60000", {"balancing.move_timeout_ms": 60_000}),
    "defaultNamespaceBundleSplitAlgorithm": (
        "range_equally_divide",
        {"balancing.split_algorithm": "range_equally_divide"},
    ),
    "defaultNumberOfNamespaceBundles": ("4", {"balancing.namespace_bundles": 4}),
    "loadBalancerLoadSheddingStrategy": (
        "org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder",
        {"balancing.shedder": "ThresholdShedder"},
    ),
    "loadBalancerLoadPlacementStrategy": (
        "org.apache.pulsar.broker.loadbalance.impl.LeastLongTermMessageRate",
        {"balancing.placement": "LeastLongTermMessageRate"},
    ),
    "loadBalancerReportUpdateThresholdPercentage": ("10", {"reports.change_percent": 10}),
    "loadBalancerReportUpdateMinIntervalMillis": ("5000", {"reports.interval_min_ms": 5_000}),
    "loadBalancerReportUpdateMaxIntervalMinutes": ("15", {"reports.interval_max_ms": 900_000}),
    "loadBalancerHostUsageCheckIntervalMinutes": ("1", {"reports.sample_interval_ms": 60_000}),
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport": ("10", {"reports.bundles_max": 10}),
    "loadBalancerOverrideBrokerNicSpeedGbps": ("0.8", {"reports.nic_speed_gbps": 0.8}),
    "loadBalancerHistoryResourcePercentage": (
        "0.9",
        {"reports.history": 0.9, "threshold.history": 0.9},
    ),
    "loadBalancerCPUResourceWeight": ("1.0", {"weights.cpu": 1.0}),
    "loadBalancerMemoryResourceWeight": ("0", {"weights.memory": 0.0}),
    "loadBalancerDirectMemoryResourceWeight": ("0", {"weights.direct_memory": 0.0}),
    "loadBalancerBandwidthInResourceWeight": ("1.0", {"weights.bandwidth_in": 1.0}),
    "loadBalancerBandwidthOutResourceWeight": ("1.0", {"weights.bandwidth_out": 1.0}),
    "loadBalancerBrokerLoadTargetStd": ("0.25", {"transfer.target_deviation": 0.25}),
    "loadBalancerSheddingConditionHitCountThreshold": ("3", {"transfer.hit_count_threshold": 3}),
    "loadBalancerTransferEnabled": ("true", {"transfer.transfer": True}),
    "loadBalancerMaxNumberOfBrokerSheddingPerCycle": ("3", {"transfer.sources_max": 3}),
    "loadBalanceSheddingDelayInSeconds": ("180", {"transfer.cool_down_ms": 180_000}),
    "loadBalancerBrokerLoadDataTTLInSeconds": ("1800", {"transfer.load_ttl_ms": 1_800_000}),
    "loadBalancerSheddingBundlesWithPoliciesEnabled": ("false", {"transfer.with_policies": False}),
    "loadBalancerSheddingExcludedNamespaces": ("", {}),
    "loadBalancerDebugModeEnabled": ("false", {"transfer.pulsar_debug": False}),
    "loadBalancerBrokerOverloadedThresholdPercentage": (
        "85",
        {
            "transfer.overloaded_percent": 85,
            "overload.overloaded_percent": 85,
            "least_message_rate.overloaded_percent": 85,
        },
    ),
    "loadBalancerBrokerThresholdShedderPercentage": ("10", {"threshold.threshold_percent": 10}),
    "loadBalancerBundleUnloadMinThroughputThreshold": ("10", {"threshold.bytes_min": 10_485_760.0}),
    "lowerBoundarySheddingEnabled": ("false", {"threshold.lower_boundary": False}),
    "loadBalancerMsgRateDifferenceShedderThreshold": (
        "50",
        {"uniform.rate_difference_percent": 50.0},
    ),
    "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": (
        "4",
        {"uniform.throughput_ratio": 4.0},
    ),
    "maxUnloadPercentage": ("0.2", {"uniform.unloaded_share": 0.2, "average.unloaded_share": 0.2}),
    "minUnloadMessage": ("1000", {"uniform.messages_min": 1_000, "average.messages_min": 1_000}),
    "minUnloadMessageThroughput": (
        "1048576",
        {"uniform.bytes_min": 1_048_576, "average.bytes_min": 1_048_576},
    ),
    "maxUnloadBundleNumPerShedding": ("-1", {"uniform.bundles_max": None}),
    "loadBalancerAvgShedderLowThreshold": ("15", {"average.low_percent": 15}),
    "loadBalancerAvgShedderHighThreshold": ("40", {"average.high_percent": 40}),
    "loadBalancerAvgShedderHitCountLowThreshold": ("8", {"average.low_hits": 8}),
    "loadBalancerAvgShedderHitCountHighThreshold": ("2", {"average.high_hits": 2}),
    "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": (
        "10",
        {"least_usage.difference_percent": 10},
    ),
    "loadBalancerBrokerMaxTopics": ("50000", {"placement.topics_max": 50_000}),
    "preferLaterVersions": ("false", {"placement.prefer_later_versions": False}),
    "failureDomainsEnabled": ("false", {"placement.failure_domains": False}),
    "loadBalancerNamespaceBundleMaxTopics": ("1000", {"limits.topics_max": 1_000}),
    "loadBalancerNamespaceBundleMaxSessions": ("1000", {"limits.sessions_max": 1_000}),
    "loadBalancerNamespaceBundleMaxMsgRate": ("30000", {"limits.messages_per_second_max": 30_000}),
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": (
        "100",
        {"limits.bytes_per_second_max": 104_857_600},
    ),
    "loadBalancerNamespaceMaximumBundles": ("128", {"split.bundles_max": 128}),
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": (
        "3",
        {"split.hits_threshold": 3},
    ),
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle": ("10", {"split.splits_max": 10}),
    "flowOrQpsDifferenceThresholdPercentage": ("10", {"split_points.margin": 0.1}),
}

# The keys of the load balancer in the configuration classes of Pulsar 4.0.8 and 4.2.4.
KEYS = (
    *DEFAULTS,
    "loadBalancerBandwithInResourceWeight",
    "loadBalancerBandwithOutResourceWeight",
    "loadBalancerBrokerComfortLoadLevelPercentage",
    "loadBalancerBrokerUnderloadedThresholdPercentage",
    "loadBalancerDistributeBundlesEvenlyEnabled",
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis",
    "loadBalancerMultiPhaseBundleUnload",
    "loadBalancerPlacementStrategy",
    "loadBalancerResourceQuotaUpdateIntervalMinutes",
    "loadBalancerServiceUnitStateMaxConcurrentOverrides",
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds",
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds",
    "loadBalancerServiceUnitTableViewSyncer",
    "loadManagerClassName",
    "loadManagerServiceUnitStateTableViewClassName",
    "supportedNamespaceBundleSplitAlgorithms",
    "topicBundleAssignmentStrategy",
)

NEW, OLD = "loadBalancerBandwidthInResourceWeight", "loadBalancerBandwithInResourceWeight"


def test_every_key_of_pulsar_is_known() -> None:
    assert () == tuple(
        key for key in KEYS if key not in {*TAKEN, *OLD_SPELLINGS, *MEANINGLESS, MANAGER}
    )


def test_the_defaults_are_all_the_keys() -> None:
    assert set(TAKEN) == set(DEFAULTS)


@pytest.mark.parametrize("key", DEFAULTS)
def test_a_key_sets_what_it_means(key: str) -> None:
    """Pulsar's default of each key, converted to our names and units."""
    text, expected = DEFAULTS[key]
    assert pytest.approx(expected) == read_pulsar_settings(f"{key} = {text}\n").settings


@pytest.mark.parametrize("key", DEFAULTS)
def test_the_text_of_a_setting_is_what_its_key_converts(key: str) -> None:
    values = read_pulsar_settings(f"{key} = {DEFAULTS[key][0]}\n").settings
    told = keys_of_settings(values)
    assert [key] * bool(values) == list(told)
    assert not values or settings_of_key(key, told[key]) == pytest.approx(values)


def test_a_setting_without_a_key_keeps_its_name() -> None:
    told = keys_of_settings(
        {
            "balanced.moves_max": 5,
            "balancing.shed_interval_ms": 30_000,
            "overload.overloaded_percent": 85,
        }
    )
    assert {
        "balanced.moves_max": "5",
        "loadBalancerSheddingIntervalMinutes": "0.5",
        "overload.overloaded_percent": "85",
    } == told
    assert {"loadBalancerOverrideBrokerNicSpeedGbps": ""} == keys_of_settings(
        {"reports.nic_speed_gbps": None}
    )


@pytest.mark.parametrize("key", DEFAULTS)
def test_our_defaults_are_pulsars(key: str) -> None:
    """Except for rounds, reports, and failure domains."""
    for setting, value in DEFAULTS[key][1].items():
        if (
            not setting.startswith(("balancing.", "reports."))
            and setting != "placement.failure_domains"
        ):
            assert pytest.approx(value) == SETTINGS[setting].default


def test_settings_of_several_keys_are_combined() -> None:
    read = read_pulsar_settings(
        "loadBalancerBrokerLoadTargetStd=0.1\nloadBalanceSheddingDelayInSeconds=7\n"
    )
    assert {"transfer.target_deviation": 0.1, "transfer.cool_down_ms": 7_000} == read.settings


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "loadBalancerOverrideBrokerNicSpeedGbps=1e300",
            "here reports.nic_speed_gbps must be a number",
        ),
        (
            "defaultNumberOfNamespaceBundles=5000",
            "here balancing.namespace_bundles must be an integer, from 1 to 4096",
        ),
        (
            "defaultNamespaceBundleSplitAlgorithm=specified_positions_divide",
            "here balancing.split_algorithm must be one of",
        ),
    ],
)
def test_a_value_that_only_pulsar_accepts_is_not_understood(text: str, why: str) -> None:
    """Our default stays."""
    (entry,) = read_pulsar_settings(text).not_understood
    assert entry.why.startswith(why)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("loadBalancerEnabled", "no", "true or false"),
        ("loadBalancerSheddingIntervalMinutes", "0", "at least 1"),
        ("loadBalancerSheddingIntervalMinutes", "1.5", "an integer"),
        ("loadBalancerSheddingIntervalMinutes", "99999999999", "an integer of at most 2147483647"),
        ("loadBalancerBrokerOverloadedThresholdPercentage", "-5", "at least 0"),
        ("loadBalancerBrokerLoadTargetStd", "NaN", "a number from 0"),
        ("loadBalancerBrokerLoadTargetStd", "1e999", "a number from 0"),
        ("loadBalancerBrokerLoadTargetStd", "0x1p-2", "a number from 0"),
        ("loadBalancerHistoryResourcePercentage", "1.5", "a number from 0 to 1"),
        (
            "loadBalancerLoadSheddingStrategy",
            "org.example.MyShedder",
            "there is no such shedder here",
        ),
        (
            "loadBalancerLoadPlacementStrategy",
            "org.example.Mine",
            "there is no such placement here",
        ),
        ("loadManagerClassName", "org.example.Mine", "there is no such load manager"),
        ("defaultNamespaceBundleSplitAlgorithm", "by_magic", "there is no such algorithm"),
        ("loadBalancerSheddingExcludedNamespaces", "tenant/ns,what is this", "TENANT/NAMESPACE"),
        ("loadBalancerNamespaceBundleMaxSessions", "-2", "at least 1, or -1 for no limit"),
        (
            "loadBalancerSheddingEnabledd",
            "true",
            "Pulsar has no such key; it has loadBalancerSheddingEnabled",
        ),
        ("LoadBalancerEnabled", "true", "Pulsar has no such key; it has loadBalancerEnabled"),
        (
            "lowerBoundaryShedingEnabled",
            "true",
            "Pulsar has no such key; it has lowerBoundarySheddingEnabled",
        ),
        ("loadBalancerXyzzy", "1", "Pulsar has no such key"),
    ],
)
def test_an_entry_that_is_not_understood_has_a_reason_and_sets_nothing(
    key: str, value: str, problem: str
) -> None:
    read = read_pulsar_settings(f"\n{key}={value}")
    assert ((), ()) == (read.taken, read.without_meaning)
    (entry,) = read.not_understood
    assert (2, key, value) == (entry.line, entry.key, entry.value)
    assert problem in entry.why


@pytest.mark.parametrize("key", MEANINGLESS)
def test_an_entry_without_meaning_here_has_a_reason(key: str) -> None:
    assert key not in TAKEN
    assert [(key, MEANINGLESS[key])] == [
        (entry.key, entry.why) for entry in read_pulsar_settings(f"{key}=x").without_meaning
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("managedLedgerDefaultEnsembleSize=2", "it is not about balancing"),
        ("loadBalancerOverrideBrokerNicSpeedGbps=", "it is empty, so the default stays"),
        (
            "loadBalancerLoadPlacementStrategy=org.apache.pulsar.broker.loadbalance.impl.AvgShedder",
            "AvgShedder names the destinations",
        ),
        ("a" * 5_000 + "=1", "it is not about balancing"),
    ],
)
def test_an_entry_that_sets_nothing_has_a_reason(text: str, why: str) -> None:
    (entry,) = read_pulsar_settings(text).without_meaning
    assert entry.why.startswith(why)


def test_the_last_of_two_counts() -> None:
    """As in Java."""
    read = read_pulsar_settings("minUnloadMessage=1\nminUnloadMessage=2\n")
    assert {"uniform.messages_min": 2, "average.messages_min": 2} == read.settings
    assert [(1, "line 2 sets it again, and the last counts")] == [
        (entry.line, entry.why) for entry in read.without_meaning
    ]


@pytest.mark.parametrize(
    ("text", "expected", "unused"),
    [
        (f"{OLD}=0.3", 0.3, []),
        (f"{OLD}=0.3\n{NEW}=0.7", 0.7, [OLD]),
        (f"{NEW}=0.7\n{OLD}=0.3", 0.7, [OLD]),
        (f"{NEW}=1.0\n{OLD}=0.3", 0.3, [NEW]),
        (f"{NEW}=1\n{OLD}=0.3", 0.3, [NEW]),
        (f"{NEW}=1.0\n{OLD}=", 1.0, [OLD]),
        (f"{NEW}=\n{OLD}=0.3", 0.3, [NEW]),
    ],
)
def test_the_old_spelling_counts_as_in_pulsar(
    text: str, expected: float, unused: list[str]
) -> None:
    """Pulsar uses the old spelling as long as the new one has its default, written out or not."""
    read = read_pulsar_settings(text)
    assert {"weights.bandwidth_in": expected} == read.settings
    assert unused == [entry.key for entry in read.without_meaning]
    assert OLD in OLD_SPELLINGS


def test_the_extensible_load_manager_has_strategies_of_its_own() -> None:
    """It ignores the configured strategies."""
    manager = (
        f"{MANAGER}=org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl\n"
    )
    others = "".join(f"{key}={DEFAULTS[key][0]}\n" for key in STRATEGIES)
    expected = {
        "balancing.shedder": "TransferShedder",
        "balancing.placement": "LeastResourceUsageWithWeight",
    }
    for text in (manager, manager + others, others + manager):
        read = read_pulsar_settings(text)
        assert expected == read.settings
        assert () == read.not_understood
        assert all("ExtensibleLoadManagerImpl uses" in entry.why for entry in read.without_meaning)


def test_the_noop_load_manager_disables_balancing() -> None:
    """As in Pulsar's standalone settings."""
    manager = f"{MANAGER}=org.apache.pulsar.broker.loadbalance.NoopLoadManager\n"
    for text in (
        manager,
        f"{manager}loadBalancerEnabled=true",
        f"loadBalancerEnabled=true\n{manager}",
    ):
        assert {"balancing.enabled": False} == read_pulsar_settings(text).settings


def test_a_malformed_file_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"line 2: .* four hexadecimal digits"):
        read_pulsar_settings("loadBalancerEnabled=true\nx=\\uzzzz")


@given(
    entries=st.lists(
        st.tuples(
            st.sampled_from([*TAKEN, *OLD_SPELLINGS, *MEANINGLESS, MANAGER])
            | st.text(alphabet="abLB", min_size=1, max_size=8),
            st.sampled_from(
                ["", "1", "-1", "0", "0.5", "true", "FALSE", "a,b", "9" * 30, "NaN", "-0.0", "1e5"]
            )
            | st.text(max_size=8),
        ),
        max_size=20,
    )
)
def test_every_entry_ends_up_in_one_list(entries: list[tuple[str, str]]) -> None:
    """Every taken value can be given to its strategy."""
    lines = [
        f"{key}={''.join(f'{chr(92)}u{ord(sign):04x}' for sign in value if ord(sign) <= 0xFFFF)}"
        for key, value in entries
    ]
    read = read_pulsar_settings("\n".join(lines))
    told = [entry.line for entry in read.taken] + [
        entry.line for entry in (*read.without_meaning, *read.not_understood)
    ]
    assert list(range(1, len(entries) + 1)) == sorted(told)
    for setting, value in read.settings.items():
        with_value(BalancingSettings(), setting, value)
