"""Ownership and work: both checks, and the effects of splits, merges and lost leases on work in
progress.
"""

from __future__ import annotations

import asyncio

import pytest

from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.runtime.service import (
    Admitted,
    Evidence,
    Ownership,
    OwnershipLost,
    note_first,
)
from equipoise.brokers.testing.virtual_member import VirtualClock
from equipoise.channel.core.ranges import HASH_MAX, bundle_name, key_hash

MIDDLE = 0x80000000
LEFT_KEY, RIGHT_KEY = "7", "0"


def clock_at_start() -> VirtualClock:
    return VirtualClock(boot_ms=1_000, ahead_ms=0)


def good_lease() -> Lease:
    lease = Lease(incarnation=3, skew_max_ms=250)
    lease.renew(decided=Instant(1_000, 1_000), lease_ms=3_000)
    return lease


def opened(
    low: int = 0, high: int = HASH_MAX, *, token: int = 9, lease: Lease | None = None
) -> Handle:
    name = bundle_name("t/n", low, high)
    return Handle(
        bundle=name,
        namespace="t/n",
        low=low,
        high=high,
        token=token,
        lease=lease or good_lease(),
        is_open=True,
    )


def replaced(gone: tuple[Handle, ...], children: tuple[Handle, ...]) -> None:
    for handle in gone:
        handle.is_open = False
        handle.children = children


def test_work_that_passes_both_checks_is_recorded() -> None:
    """With times, token, and lease."""
    clock, seen = clock_at_start(), list[Evidence]()
    ownership = Ownership(opened(), clock=clock, record=seen.append)
    assert ownership.is_good
    work = ownership.begin(LEFT_KEY)
    clock.boot_ms = 3_999
    work.finish()
    assert [
        Evidence(
            bundle="t/n/0x00000000_0xffffffff",
            key=LEFT_KEY,
            token=9,
            started_ns=1_000_000_000,
            answered_ns=3_999_000_000,
            lease_deadline_ns=4_000_000_000,
        )
    ] == seen


@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_first_work_is_noted_once(*, is_recorded: bool) -> None:
    """Beside the evidence of all work, and also if two begin at once."""
    recorded, noted = list[Evidence](), list[Evidence]()
    record = recorded.append if is_recorded else None
    ownership = Ownership(opened(), clock=clock_at_start(), record=record)
    note_first(ownership, noted.append)
    works = [ownership.begin(key) for key in (LEFT_KEY, RIGHT_KEY)]
    for work in (*works, ownership.begin(LEFT_KEY)):
        work.finish()
    assert [LEFT_KEY] == [evidence.key for evidence in noted]
    assert len(recorded) == (3 if is_recorded else 0)


@pytest.mark.parametrize("way", ["closed", "lease", "wall clock", "incarnation"])
def test_work_is_not_begun_or_answered_once_the_handle_is_lost(way: str) -> None:
    clock, lease, seen = clock_at_start(), good_lease(), list[Evidence]()
    handle = opened(lease=lease)
    ownership = Ownership(handle, clock=clock, record=seen.append)
    work = ownership.begin(LEFT_KEY)
    if way == "closed":
        handle.is_open = False
    elif way == "lease":
        clock.boot_ms = 4_000
    elif way == "wall clock":
        clock.ahead_ms = 251
    else:
        lease.lose()
    problem = "closed here" if way == "closed" else "lease of this broker has run out"
    for lost_work in (work.finish, lambda: ownership.begin(LEFT_KEY)):
        with pytest.raises(OwnershipLost, match=problem) as lost:
            lost_work()
        assert (handle.bundle, 9) == (lost.value.bundle, lost.value.token)
    assert [] == seen


def test_work_goes_on_over_splits_unless_its_child_moves_away() -> None:
    """Under the child that holds its key. Also over a second split."""
    lease, seen = good_lease(), list[Evidence]()
    whole = opened(lease=lease)
    ownership = Ownership(whole, clock=clock_at_start(), record=seen.append)
    left_work, right_work = ownership.begin(LEFT_KEY), ownership.begin(RIGHT_KEY)
    lost_work = ownership.begin(RIGHT_KEY)
    left, right = opened(0, MIDDLE, lease=lease), opened(MIDDLE, lease=lease)
    replaced((whole,), (left, right))
    cut = MIDDLE // 2
    parts = opened(0, cut, lease=lease), opened(cut, MIDDLE, lease=lease)
    replaced((left,), parts)
    left_work.finish()
    right_work.finish()
    holder = next(part for part in parts if part.low <= key_hash(LEFT_KEY) < part.high)
    assert [holder.bundle, right.bundle] == [evidence.bundle for evidence in seen]
    right.is_open = False
    with pytest.raises(OwnershipLost, match="closed here"):
        lost_work.finish()


def test_a_merge_keeps_work_under_the_greater_token_only() -> None:
    """A store may have refused the smaller one meanwhile."""
    lease = good_lease()
    left, right = opened(0, MIDDLE, token=9, lease=lease), opened(MIDDLE, token=12, lease=lease)
    clock = clock_at_start()
    left_work, right_work = (
        Ownership(left, clock=clock).begin(LEFT_KEY),
        Ownership(right, clock=clock).begin(RIGHT_KEY),
    )
    replaced((left, right), (opened(token=12, lease=lease),))
    right_work.finish()
    with pytest.raises(OwnershipLost, match="merged under another token"):
        left_work.finish()


def test_a_context_of_work_checks_at_its_end() -> None:
    """An error of the work itself is raised instead."""
    handle = opened()
    ownership = Ownership(handle, clock=clock_at_start())
    with pytest.raises(OwnershipLost), ownership.begin(LEFT_KEY):
        handle.is_open = False
    handle.is_open = True
    work = ownership.begin(LEFT_KEY)
    handle.is_open = False
    with pytest.raises(ZeroDivisionError), work:
        raise ZeroDivisionError


def released(handle: Handle) -> None:
    """Let a handle be as that of a bundle that moves, before its service closes it."""
    handle.is_open, handle.is_settling = False, True


def test_admitted_work_may_be_finished_until_the_service_closes_the_bundle() -> None:
    """Under a good lease. Other work, and work that starts then, may not."""
    clock, admitted, handle = clock_at_start(), Admitted(), opened()
    ownership = Ownership(handle, clock=clock, admitted=admitted)
    other = ownership.begin(LEFT_KEY)
    with ownership.admit(LEFT_KEY):
        released(handle)
        with pytest.raises(OwnershipLost, match="closed here"):
            other.finish()
        with pytest.raises(OwnershipLost, match="closed here"):
            ownership.admit(LEFT_KEY)
    for lost in ("lease", "closed"):
        handle.is_open = True
        late = ownership.admit(LEFT_KEY)
        released(handle)
        if lost == "closed":
            handle.is_settling = False
        else:
            clock.boot_ms += 3_000
        with pytest.raises(OwnershipLost):
            late.finish()
        clock.boot_ms = 1_000


async def test_a_closing_waits_for_the_admitted_work_of_its_bundle() -> None:
    """Also of one that was split since, until it fails or is finished, in any thread."""
    admitted, whole = Admitted(), opened()
    left, right = opened(0, MIDDLE), opened(MIDDLE)
    ownership = Ownership(whole, clock=clock_at_start(), admitted=admitted)
    left_bundle, right_bundle = (
        Ownership(half, clock=clock_at_start()).bundle for half in (left, right)
    )
    failing, finished = ownership.admit(LEFT_KEY), ownership.admit(LEFT_KEY)
    await admitted.all_ended(left_bundle, timeout_ms=60_000)  # None has been entered.
    failing.__enter__()
    finished.__enter__()
    replaced((whole,), (left, right))
    await admitted.all_ended(right_bundle, timeout_ms=60_000)
    await admitted.all_ended(left_bundle, timeout_ms=1)  # The time is over.
    ending = asyncio.ensure_future(admitted.all_ended(left_bundle, timeout_ms=60_000))
    failing.__exit__(ValueError, ValueError(), None)
    await asyncio.sleep(0)
    assert not ending.done()
    await asyncio.to_thread(finished.__exit__, None, None, None)
    await ending
