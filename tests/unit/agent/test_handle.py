"""Leases and handles: until when they are good, by which clock, and what ends them for ever.

May live here: the check that stands between a broker's belief and its answer, alone.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokers.agent.events import Instant
from brokers.agent.handle import Handle, Lease

WALL_MS = 1_700_000_000_000


def instant(boot_ms: int, *, ahead_ms: int = 0) -> Instant:
    """Both clocks at a boot time, the wall clock `ahead_ms` further than it usually is."""
    return Instant(boot_ms, WALL_MS + boot_ms + ahead_ms)


def lease_until(deadline_ms: int) -> Lease:
    """A lease of 3 s that ends at a boot time."""
    lease = Lease(incarnation=7, skew_max_ms=250)
    lease.extend(decided=instant(deadline_ms - 3_000), lease_ms=3_000)
    return lease


def handle_under(lease: Lease, *, is_open: bool = True) -> Handle:
    """A handle of one bundle."""
    return Handle(bundle="t/n/0x00000000_0xffffffff", namespace="t/n", low=0, high=0xFFFFFFFF, token=9, lease=lease, is_open=is_open)


def test_a_lease_counts_from_the_decision() -> None:
    """It is good from the moment of the decision that was accepted to its length later, and not at that very moment any more."""
    lease = lease_until(10_000)
    assert [True, True, False, False] == [lease.good(instant(at_ms)) for at_ms in (7_000, 9_999, 10_000, 10_001)]
    assert [3_000, 1, 0, 0] == [lease.left_ms(instant(at_ms)) for at_ms in (7_000, 9_999, 10_000, 20_000)]


def test_a_lease_that_was_never_given_is_not_good() -> None:
    """Before the first accepted attempt there is no lease."""
    assert not Lease(incarnation=7, skew_max_ms=250).good(instant(1))


def test_a_wall_clock_that_jumps_ahead_ends_a_lease() -> None:
    """Half a margin ahead is borne, one millisecond more is not, until a renewal is decided on after the jump."""
    lease = lease_until(10_000)
    assert lease.good(instant(8_000, ahead_ms=250))
    assert not lease.good(instant(8_000, ahead_ms=251))
    assert 0 == lease.left_ms(instant(8_000, ahead_ms=251))
    lease.extend(decided=instant(8_000, ahead_ms=60_000), lease_ms=3_000)
    assert lease.good(instant(8_001, ahead_ms=60_000))


@given(back_ms=st.integers(0, 10**9), boot_ms=st.integers(7_000, 20_000))
def test_a_wall_clock_that_goes_back_changes_nothing(back_ms: int, boot_ms: int) -> None:
    """The wall clock may shorten a lease, and never lengthen it."""
    lease = lease_until(10_000)
    assert (boot_ms < 10_000) == lease.good(instant(boot_ms, ahead_ms=-back_ms))


def test_a_lost_lease_stays_lost() -> None:
    """An incarnation that is over gets no lease again, whatever is read late."""
    lease = lease_until(10_000)
    lease.lose()
    assert not lease.good(instant(7_001))
    lease.extend(decided=instant(9_000), lease_ms=3_000)
    assert not lease.good(instant(9_001))
    assert 0 == lease.deadline_ms


def test_a_handle_passes_while_it_is_open_and_its_lease_is_good() -> None:
    """Both must hold."""
    lease = lease_until(10_000)
    opened, closed = handle_under(lease), handle_under(lease, is_open=False)
    assert [True, False] == [handle.passes(instant(8_000)) for handle in (opened, closed)]
    assert not opened.passes(instant(10_000))


def test_a_handle_does_not_outlive_its_incarnation() -> None:
    """A broker that joins anew has a new lease; handles of the former incarnation go by the former one."""
    former = lease_until(10_000)
    handle = handle_under(former)
    former.lose()
    assert lease_until(20_000).good(instant(18_000))
    assert not handle.passes(instant(8_000))


def test_two_handles_of_one_bundle_are_two() -> None:
    """Handles are compared by identity: two tenures of one bundle must not be taken for each other."""
    lease = lease_until(10_000)
    assert handle_under(lease) != handle_under(lease)
