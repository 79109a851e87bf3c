"""Handles under any course of events: what must never pass, and what a namespace that serves on
adds to that.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle, Lease

LEASE_MS, ATTENTION_MS, SKEW_MS = 3_000, 1_400, 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Both clocks go on by so much, and then something happens; `looks` are made, and nothing else
    does.
    """

    boot_ms: int
    wall_ms: int
    what: str


HAPPENINGS = st.lists(
    st.builds(
        Happening,
        boot_ms=st.integers(0, 2 * LEASE_MS),
        wall_ms=st.integers(-LEASE_MS, 3 * LEASE_MS),
        what=st.sampled_from(
            ["looks", "step", "step", "renewed", "renewed", "lost", "policy", "closed"]
        ),
    ),
    max_size=30,
)


@given(course=HAPPENINGS)
def test_what_serves_on_is_bounded(course: list[Happening]) -> None:
    """It passes wherever a handle that fences does, and past the lease only for who is awake; for
    who has lost all, nothing does.
    """
    lease = Lease(incarnation=7, skew_max_ms=SKEW_MS, attention_ms=ATTENTION_MS)
    fencing, serving = (
        Handle(
            bundle="t/n/0_1",
            namespace="t/n",
            low=0,
            high=1,
            token=9,
            lease=lease,
            is_open=True,
            serves_on=serves_on,
        )
        for serves_on in (False, True)
    )
    boot_ms, wall_ms, stepped_ms, is_lost, was_given = 1, 1_700_000_000_000, None, False, False
    for happening in course:
        boot_ms, wall_ms = boot_ms + happening.boot_ms, wall_ms + happening.wall_ms
        now = Instant(boot_ms, wall_ms)
        match happening.what:
            case "step":
                lease.attend(now)
                stepped_ms = boot_ms
            case "renewed":
                lease.extend(decided=now, lease_ms=LEASE_MS)
                was_given = True
            case "lost":
                lease.lose()
                is_lost = True
            case "policy":
                serving.serves_on = not serving.serves_on
            case "closed":
                fencing.is_open = serving.is_open = False
        assert fencing.passes(now) == (fencing.is_open and lease.good(now))
        assert serving.passes(now) >= fencing.passes(now)
        if not serving.is_open or is_lost or not was_given:
            assert not serving.passes(now)
        elif not lease.good(now):
            is_awake = stepped_ms is not None and boot_ms - stepped_ms <= ATTENTION_MS
            assert serving.passes(now) <= (serving.serves_on and is_awake)
