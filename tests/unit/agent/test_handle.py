"""Leases and handles: how long they are good, by which clock, and what ends them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle, Lease

WALL_MS = 1_700_000_000_000


def instant(boot_ms: int, *, ahead_ms: int = 0) -> Instant:
    """Return both clocks at a boot time, with the wall clock `ahead_ms` ahead."""
    return Instant(boot_ms, WALL_MS + boot_ms + ahead_ms)


def lease_until(deadline_ms: int) -> Lease:
    """Return a lease of 3 s that ends at a boot time, with an attention of 1.4 s."""
    lease = Lease(incarnation=7, skew_max_ms=250, attention_ms=1_400)
    lease.renew(decided=instant(deadline_ms - 3_000), lease_ms=3_000)
    return lease


def handle_under(lease: Lease, *, is_open: bool = True, serves_on: bool = False) -> Handle:
    name = "t/n/0x00000000_0xffffffff"
    return Handle(
        bundle=name,
        namespace="t/n",
        low=0,
        high=0xFFFFFFFF,
        token=9,
        lease=lease,
        is_open=is_open,
        serves_on=serves_on,
    )


def test_a_lease_counts_from_the_decision() -> None:
    """Its end is exclusive."""
    lease = lease_until(10_000)
    assert [True, True, False, False] == [
        lease.good(instant(at_ms)) for at_ms in (7_000, 9_999, 10_000, 10_001)
    ]
    assert [3_000, 1, 0, 0] == [
        lease.left_ms(instant(at_ms)) for at_ms in (7_000, 9_999, 10_000, 20_000)
    ]


def test_a_wall_clock_that_jumps_ahead_ends_a_lease() -> None:
    """By more than half a grace period, until a renewal is decided after the jump."""
    lease = lease_until(10_000)
    assert lease.good(instant(8_000, ahead_ms=250))
    assert not lease.good(instant(8_000, ahead_ms=251))
    assert 0 == lease.left_ms(instant(8_000, ahead_ms=251))
    lease.renew(decided=instant(8_000, ahead_ms=60_000), lease_ms=3_000)
    assert lease.good(instant(8_001, ahead_ms=60_000))


@given(back_ms=st.integers(0, 10**9), boot_ms=st.integers(7_000, 20_000))
def test_a_wall_clock_that_goes_back_changes_nothing(back_ms: int, boot_ms: int) -> None:
    lease = lease_until(10_000)
    assert (boot_ms < 10_000) == lease.good(instant(boot_ms, ahead_ms=-back_ms))


def test_a_lost_lease_stays_lost() -> None:
    lease = lease_until(10_000)
    lease.lose()
    assert not lease.good(instant(7_001))
    lease.renew(decided=instant(9_000), lease_ms=3_000)
    assert not lease.good(instant(9_001))
    assert 0 == lease.deadline_ms


def test_handles_are_compared_by_identity() -> None:
    """Two ownerships of one bundle differ."""
    lease = lease_until(10_000)
    assert handle_under(lease) != handle_under(lease)


def test_a_handle_that_serves_on_outlasts_its_lease() -> None:
    """As long as its broker takes steps."""
    lease = lease_until(10_000)
    serving_on, fenced = handle_under(lease, serves_on=True), handle_under(lease)
    for at_ms in (9_000, 10_000, 11_400, 60_000):
        lease.attend(instant(at_ms))
        assert [True, at_ms < 10_000] == [
            handle.passes(instant(at_ms)) for handle in (serving_on, fenced)
        ]


def test_a_broker_that_has_slept_does_not_serve_on() -> None:
    """By either clock. The wall clock has half a grace period more."""
    lease = lease_until(10_000)
    handle = handle_under(lease, serves_on=True)
    lease.attend(instant(11_000))
    assert [True, False] == [handle.passes(instant(at_ms)) for at_ms in (12_400, 12_401)]
    assert [True, False] == [
        handle.passes(instant(11_000, ahead_ms=ahead_ms)) for ahead_ms in (1_650, 1_651)
    ]
    lease.attend(instant(13_000, ahead_ms=60_000))
    assert handle.passes(instant(13_000, ahead_ms=60_000))
