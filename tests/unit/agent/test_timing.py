"""Timing: which durations are refused, and how they grow with the membership."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from equipoise.brokers.agent.core import Profile
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Lease
from equipoise.brokers.agent.timing import Timing, timing_of
from equipoise.brokers.errors import InvalidConfig
from tests.simulation.clock import Clock
from tests.simulation.scenario import EXTENDING_TIMING

# 2 x 1 % x 3,000 ms + 400 ms of stall = 460 ms of grace period at least; half a lease is 1,500 ms.
TIGHT = Timing(
    lease_ms=3_000, renew_ms=1_000, grace_ms=460, round_trip_ms=500, reconnect_ms=960, stall_ms=400
)


# Changes by which `TIGHT` becomes unsafe, and the setting that the error names.
EDGES: dict[str, tuple[str, Timing]] = {
    "grace period below rate error and stall": (
        "grace_ms",
        replace(TIGHT, grace_ms=459, reconnect_ms=900),
    ),
    "half the grace period does not cover the clocks": (
        "grace_ms",
        replace(TIGHT, grace_ms=145, stall_ms=1, reconnect_ms=600),
    ),
    "longer stall": ("grace_ms", replace(TIGHT, stall_ms=401)),
    "worse clocks": ("grace_ms", replace(TIGHT, clock_rate_error_ppm=10_200)),
    "renewal too late in the lease": ("lease_ms", replace(TIGHT, renew_ms=1_001, reconnect_ms=900)),
    "longer round trip": ("lease_ms", replace(TIGHT, round_trip_ms=501)),
    "longer failover": ("lease_ms", replace(TIGHT, failover_ms=1_251)),
    "longer reconnect": ("grace_ms", replace(TIGHT, reconnect_ms=961)),
}


@pytest.mark.parametrize(("setting", "timing"), EDGES.values(), ids=EDGES)
def test_durations_just_beyond_a_limit_are_refused(setting: str, timing: Timing) -> None:
    """The error names the setting, its value, and a value that is safe."""
    TIGHT.check()
    with pytest.raises(
        InvalidConfig,
        match=(
            f"{setting} is {getattr(timing, setting)} ms, which is not safe: it must be at least "
        ),
    ):
        timing.check()
    followed(timing).check()


def followed(timing: Timing) -> Timing:
    """Return durations after each error was followed: lease and grace period are then just long
    enough.
    """
    for _ in range(10):  # One rule may hand over to the next.
        try:
            timing.check()
        except InvalidConfig as refused:
            setting, least_ms = re.findall(r"(\w+) is \d+ ms.* at least (\d+)", str(refused))[0]
            timing = replace(timing, **{setting: int(least_ms)})
    return timing


@pytest.mark.parametrize(
    "log_url", ["sqlite:channel.db", "memory:here", "kafka://localhost:9092/channel"]
)
def test_the_defaults_are_safe(log_url: str) -> None:
    timing_of(log_url).check()
    timing_of(log_url, extends=False).check()


def test_the_defaults_depend_on_the_kind_of_log() -> None:
    """On Kafka the extension outlasts a session timeout and an election; without one, the lease
    does.
    """
    kafka_url = "kafka://localhost:9092/channel"
    embedded, kafka = (timing_of(url) for url in ("sqlite:channel.db", kafka_url))
    plain = timing_of(kafka_url, extends=False)
    assert [(3_000, 1_000, 500), (3_000, 500, 500), (15_000, 3_000, 1_000)] == [
        (each.lease_ms, each.renew_ms, each.grace_ms) for each in (embedded, kafka, plain)
    ]
    assert kafka.extend_ms >= 9_000 + 1_000 + 2 * kafka.renew_ms
    assert plain.lease_ms >= 9_000 + 1_000 + plain.renew_ms
    assert Timing() == embedded == timing_of("") == timing_of("kafkaesque://x/y")
    assert Timing() == timing_of("sqlite:channel.db", extends=False)


def test_small_clusters_keep_their_pace() -> None:
    """From 10 members on the promises grow in proportion. Deadlines of the service do not."""
    assert Timing() == Timing().for_members(1) == Timing().for_members(10)
    assert replace(
        Timing(), lease_ms=30_000, renew_ms=10_000, grace_ms=5_000
    ) == Timing().for_members(100)


@given(members=st.integers(1, 10_000))
def test_all_members_together_renew_about_ten_times_a_second(members: int) -> None:
    renew_ms = Timing().for_members(members).renew_ms
    assert members * 1_000 / renew_ms <= max(10 * renew_ms / (renew_ms - 1), members)
    assert members <= 10 or members * 1_000 / renew_ms <= 10.1


@st.composite
def only_just_safe(draw: st.DrawFn) -> Timing:
    """Draw durations with the shortest safe lease and grace period."""
    timing = Timing(
        renew_ms=draw(st.integers(100, 10_000)),
        round_trip_ms=draw(st.integers(50, 2_000)),
        stall_ms=draw(st.integers(50, 2_000)),
        reconnect_ms=draw(st.integers(50, 2_000)),
        clock_rate_error_ppm=draw(st.integers(0, 30_000)),
    )
    return followed(replace(timing, lease_ms=1, grace_ms=1))


KAFKA = timing_of("kafka://localhost:9092/channel", extends=False)


@given(
    timing=only_just_safe() | st.sampled_from((Timing(), KAFKA, KAFKA.for_members(100))),
    began_us=st.integers(0, 10**12),
    slept_permille=st.integers(0, 1_000),
    errors_permille=st.tuples(st.integers(-1_000, 1_000), st.integers(-1_000, 1_000)),
)
@example(timing=Timing(), began_us=999, slept_permille=1_000, errors_permille=(-1_000, 1_000))
@example(timing=KAFKA, began_us=999, slept_permille=1_000, errors_permille=(-1_000, 1_000))
@example(
    timing=followed(replace(KAFKA, grace_ms=1, stall_ms=1)),
    began_us=999,
    slept_permille=1_000,
    errors_permille=(-1_000, 1_000),
)
def test_a_lease_ends_before_any_broker_may_accuse(
    timing: Timing, began_us: int, slept_permille: int, errors_permille: tuple[int, int]
) -> None:
    """However wrong the clocks run, and with an unseen sleep."""
    slow, fast = (
        Clock(
            boot_start_us=began_us % 7_777,
            wall_start_us=0,
            rate_error_ppm=timing.clock_rate_error_ppm * error // 1_000,
        )
        for error in errors_permille
    )
    lease = Lease(incarnation=1, skew_max_ms=timing.skew_max_ms)
    lease.renew(decided=slow.read(began_us), lease_ms=timing.lease_ms)
    # The observer reads the renewal at once. One that reads it later accuses later.
    heard_ms = fast.read(began_us).boot_ms
    accused_us = fast.true_us_of(heard_ms + timing.lease_ms + timing.grace_ms) - 2
    slept_us = timing.skew_max_ms * slept_permille + 999
    slow.freeze(began_us + 1)
    slow.thaw(began_us + 1 + slept_us)
    assert not lease.good(slow.read(accused_us))


@given(
    timing=only_just_safe() | st.just(EXTENDING_TIMING),
    leases_permille=st.integers(1_001, 20_000),
    began_us=st.integers(0, 10**12),
    slept_permille=st.integers(0, 1_000),
    errors_permille=st.tuples(st.integers(-1_000, 1_000), st.integers(-1_000, 1_000)),
)
@example(
    timing=Timing(),
    leases_permille=1_001,
    began_us=999,
    slept_permille=1_000,
    errors_permille=(-1_000, 1_000),
)
def test_an_extension_ends_before_a_broker_that_it_may_not_know_may_accuse(
    timing: Timing,
    leases_permille: int,
    began_us: int,
    slept_permille: int,
    errors_permille: tuple[int, int],
) -> None:
    timing = replace(timing, extend_ms=timing.lease_ms * leases_permille // 1_000)
    slow, fast = (
        Clock(
            boot_start_us=began_us % 7_777,
            wall_start_us=0,
            rate_error_ppm=timing.clock_rate_error_ppm * error // 1_000,
        )
        for error in errors_permille
    )
    joined = Profile().joined(
        key="x", expected_offset=0, instance_id="x", timestamp_ms=0, timing=timing
    )
    lease = Lease(incarnation=1, skew_max_ms=timing.skew_max_ms)
    lease.renew(decided=slow.read(began_us), lease_ms=timing.lease_ms, extend_ms=timing.extend_ms)
    now = slow.read(began_us)
    lease.extend(until_ms=lease.outlast_ms, skew_ms=lease.skew_ms, now=now)
    known_ms = fast.read(began_us).boot_ms + joined.unheard_ms
    slow.freeze(began_us + 1)
    slow.thaw(began_us + 1 + timing.skew_max_ms * slept_permille + 999)
    assert not lease.good(slow.read(fast.true_us_of(known_ms) - 2))


@pytest.mark.parametrize(
    ("setting", "timing"),
    [
        ("lease_ms", replace(EXTENDING_TIMING, reconnect_ms=651)),
        ("lease_ms", replace(EXTENDING_TIMING, round_trip_ms=251)),
        ("extend_ms", replace(EXTENDING_TIMING, failover_ms=10_001)),
        ("extend_ms", replace(EXTENDING_TIMING, extend_ms=3_001, failover_ms=2_000)),
        ("renew_ms", replace(EXTENDING_TIMING, round_trip_ms=501, reconnect_ms=100)),
    ],
    ids=str,
)
def test_an_extension_that_no_outage_leaves_time_for_is_refused(
    setting: str, timing: Timing
) -> None:
    EXTENDING_TIMING.check()
    with pytest.raises(InvalidConfig, match=f"{setting} is {getattr(timing, setting)} ms"):
        timing.check()
    followed(timing).check()


@given(members=st.integers(1, 2_000))
def test_whoever_joins_last_assures_the_first_in_time(members: int) -> None:
    """Before the lease of the first ends, the last is out of touch, and has been asked."""
    first = timing_of("kafka://localhost:9092/channel")
    last = first.for_members(members)
    asked_ms = last.touch_ms + last.round_trip_ms + first.ask_ms
    assert first.renew_ms + first.round_trip_ms + asked_ms <= first.lease_ms


@given(timing=only_just_safe(), members=st.integers(1, 2_000))
def test_safe_durations_stay_safe_in_any_membership(timing: Timing, members: int) -> None:
    timing.check()
    timing.for_members(members).check()


def test_a_shorter_extension_keeps_what_was_served_until_now_right() -> None:
    """Evidence of an answer in the extension names an end after that answer."""
    lease = Lease(incarnation=1, skew_max_ms=100)
    lease.renew(decided=Instant(boot_ms=0, wall_ms=0), lease_ms=3_000, extend_ms=30_000)
    lease.extend(until_ms=9_000, skew_ms=0, now=Instant(boot_ms=6_000, wall_ms=6_000))
    lease.extend(until_ms=0, skew_ms=0, now=Instant(boot_ms=7_000, wall_ms=7_000))
    assert (3_000, 7_000) == (lease.ends_ms, lease.until_ms)
