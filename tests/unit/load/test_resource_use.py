"""The use of resources, from counters and limits that may be wrong, go back, or be missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.load.process_use import MEMBERSHIP, CgroupLimits, cgroup_limits
from equipoise.brokers.load.resource_use import (
    Card,
    Counters,
    Limits,
    counting_cards,
    default_capacity,
    network_kbits,
    resources_between,
)
from equipoise.shedder.loads import FIGURE_MAX, Resources, Use

MIB = 1 << 20
BEFORE = Counters(
    at_ms=1_000, cpu_seconds=10.0, memory_bytes=5 * MIB, bytes_in=1_000, bytes_out=2_000
)
NOW = Counters(at_ms=3_000, cpu_seconds=11.0, memory_bytes=7 * MIB, bytes_in=3_000, bytes_out=2_500)
LIMITS = Limits(cpu_cores=0.5, memory_bytes=100 * MIB, network_kbits=1_000)
COUNTS = st.integers(0, 2**63)
COUNTERS = st.builds(
    Counters,
    at_ms=COUNTS,
    cpu_seconds=st.floats(0, 1e12),
    memory_bytes=COUNTS,
    bytes_in=COUNTS,
    bytes_out=COUNTS,
)


def between(
    before: Counters, now: Counters, *, reported_in: float = 0.0, reported_out: float = 0.0
) -> Resources | None:
    return resources_between(
        before, now, LIMITS, reported_in=reported_in, reported_out=reported_out
    )


def test_use_covers_the_time_between_two_measurements() -> None:
    """CPU in percent of a core, memory in MiB as it is now, network in Kbit/s, each with its
    limit.
    """
    expected = Resources(
        cpu=Use(used=50, limit=50),
        memory=Use(used=7, limit=100),
        bandwidth_in=Use(used=8, limit=1_000),
        bandwidth_out=Use(used=2, limit=1_000),
    )
    assert expected == between(BEFORE, NOW)


def test_the_network_carries_at_least_what_services_report() -> None:
    """No card counts loopback traffic, so the network carries at least what services report, in
    each direction.
    """
    found = between(BEFORE, NOW, reported_in=500, reported_out=1_000)
    assert found is not None
    assert (8, 8) == (found.bandwidth_in.used, found.bandwidth_out.used)


def test_a_counter_that_went_back_counts_as_unchanged() -> None:
    """A child that ends takes its counts with it, and a card may be created again."""
    found = between(NOW, replace(BEFORE, at_ms=5_000))
    assert found is not None
    assert (0, 0, 0) == (found.cpu.used, found.bandwidth_in.used, found.bandwidth_out.used)


@pytest.mark.parametrize("at_ms", [BEFORE.at_ms, BEFORE.at_ms - 1])
def test_no_use_is_known_if_no_time_has_passed(at_ms: int) -> None:
    assert between(BEFORE, replace(NOW, at_ms=at_ms)) is None


@given(COUNTERS, COUNTERS, st.floats(0, 1e15), st.floats(0, 1e15))
def test_use_is_never_negative_or_infinite(
    before: Counters, now: Counters, reported_in: float, reported_out: float
) -> None:
    """For any counters and clocks."""
    found = between(before, now, reported_in=reported_in, reported_out=reported_out)
    for use in (
        () if found is None else (found.cpu, found.memory, found.bandwidth_in, found.bandwidth_out)
    ):
        assert 0 <= use.used <= FIGURE_MAX * 1_000


ETHERNET = Card(name="eth0", speed_mbits=1_000, bytes_in=5, bytes_out=6)
BRIDGE = Card(name="docker0", speed_mbits=0, bytes_in=7, bytes_out=8)


def test_only_cards_with_a_speed_count() -> None:
    """Traffic of a container goes over the bridge and over the card, and counts once. Without any
    speed, all cards count.
    """
    assert [ETHERNET] == counting_cards([BRIDGE, ETHERNET])
    assert [BRIDGE] == counting_cards([BRIDGE])


@pytest.mark.parametrize(
    ("cards", "nic_speed_gbps", "expected"),
    [
        ([ETHERNET, ETHERNET], None, 2_000_000),
        ([BRIDGE], None, 0),
        ([], None, 0),
        ([ETHERNET], 2.5, 2_500_000),
        ([], 0.5, 500_000),
    ],
)
def test_the_network_capacity_is_the_setting_or_that_of_the_cards(
    cards: list[Card], nic_speed_gbps: float | None, expected: float
) -> None:
    """The setting comes first, then the sum of the speeds of all cards."""
    assert expected == network_kbits(cards, nic_speed_gbps=nic_speed_gbps)


NO_LIMIT = "9223372036854771712"
TREES: dict[str, tuple[dict[str, str], CgroupLimits]] = {
    "no control groups": ({}, CgroupLimits()),
    "garbage": (
        {MEMBERSHIP: "x\n1:\n::\n0::relative", "/sys/fs/cgroup/cpu.max": "all of it"},
        CgroupLimits(),
    ),
    "v2, no limit": (
        {
            MEMBERSHIP: "0::/\n",
            "/sys/fs/cgroup/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/memory.max": "max\n",
        },
        CgroupLimits(),
    ),
    "v2, its own": (
        {
            MEMBERSHIP: "0::/app/worker\n",
            "/sys/fs/cgroup/app/worker/cpu.max": "150000 100000\n",
            "/sys/fs/cgroup/app/worker/memory.max": "1048576\n",
        },
        CgroupLimits(cpu_cores=1.5, memory_bytes=MIB),
    ),
    "v2, a tighter one above": (
        {
            MEMBERSHIP: "0::/app/worker\n",
            "/sys/fs/cgroup/app/worker/cpu.max": "150000 100000\n",
            "/sys/fs/cgroup/app/cpu.max": "50000 100000\n",
        },
        CgroupLimits(cpu_cores=0.5),
    ),
    "v2, in a container": (
        {MEMBERSHIP: "0::/docker/4711\n", "/sys/fs/cgroup/cpu.max": "200000 100000\n"},
        CgroupLimits(cpu_cores=2.0),
    ),
    "v1": (
        {
            MEMBERSHIP: "4:memory:/app\n3:cpu,cpuacct:/app\n0::/\n",
            "/sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us": "25000\n",
            "/sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/memory/app/memory.limit_in_bytes": "2097152\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
        },
        CgroupLimits(cpu_cores=0.25, memory_bytes=2 * MIB),
    ),
    "v1, no limit": (
        {
            MEMBERSHIP: "3:cpu:/\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        CgroupLimits(),
    ),
    "v2 beside v1": (
        {MEMBERSHIP: "0::/app\n", "/sys/fs/cgroup/unified/app/cpu.max": "300000 100000"},
        CgroupLimits(cpu_cores=3.0),
    ),
}


@pytest.mark.parametrize(("files", "expected"), TREES.values(), ids=TREES.keys())
def test_the_tightest_control_group_counts(files: dict[str, str], expected: CgroupLimits) -> None:
    """Both versions are read, above the process's own group, and at the root of a container's
    mount.
    """
    assert expected == cgroup_limits(files.get)


@given(st.text(), st.text())
def test_any_text_is_a_limit_or_none(membership: str, limit: str) -> None:
    """No content of the files raises, and a limit is positive."""
    found = cgroup_limits(lambda path: membership if path == MEMBERSHIP else limit)
    assert found.cpu_cores is None or found.cpu_cores > 0


@pytest.mark.parametrize(
    ("cpu_cores", "allowed", "expected"),
    [(None, 64.0, 100), (None, 0.5, 50), (4.0, 0.5, 400), (0.001, 64.0, 1)],
)
def test_a_broker_has_the_capacity_of_its_cores(
    cpu_cores: float | None, allowed: float, expected: int
) -> None:
    """One process computes on one core, however many there are, unless it is told of more."""
    assert expected == default_capacity(cpu_cores, allowed=allowed)
