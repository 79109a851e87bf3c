"""The decision writer: what it counts, what it writes, and what it logs when the decision log
fails.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.decision_log import DecisionLog
from equipoise.brokers.runtime.loops.decision_writer import REPEATED_MS, DecisionWriter
from equipoise.brokers.side_topics import DECISIONS
from equipoise.brokers.testing.virtual_member import VirtualClock
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.shedder.plan import Idle, Move, Plan, Stay

IDLE = Idle(result="Skip", cause="HitCount", reason="the load is even")
MOVE = Move(bundle="t/n/0x00000000_0xffffffff", source="a", destination="b", reason="test")

# Written whatever came before it, and after all of that.
LAST = Decision(at_ms=0, broker="a", kind="merge", strategy="AutoMerge")


class Kept(DecisionLog):
    """A decision log that notes decisions, and fails while `is_away`. `has_last` is set at the last
    decision, stored or not.
    """

    def __init__(self) -> None:
        super().__init__("memory:kept")
        self.decisions: list[Decision] = []
        self.has_last = threading.Event()
        self.is_away = False

    def write(self, decision: Decision) -> None:
        if not self.is_away:
            self.decisions.append(decision)
        if decision == LAST:
            self.has_last.set()
        if self.is_away:
            raise SideLogUnavailable(DECISIONS, place="test", problem="it is away")


def decision(
    *, moves: tuple[Move, ...] = (), strategy: str = "BalancedShedder", mean: float = 0.5
) -> Decision:
    """Return the decision of one round."""
    idle = None if moves else IDLE
    counted = {("Success", "Overloaded"): 1} if moves else {("Skip", "HitCount"): 1}
    return Decision(
        at_ms=0,
        broker="a",
        kind="shed",
        strategy=strategy,
        plan=Plan(moves=moves, idle=idle, mean=mean),
        counted=counted,
    )


def written(
    kept: Kept, clock: VirtualClock, steps: Sequence[tuple[int, Decision]]
) -> tuple[int, list[Decision]]:
    """Make decisions at these times. Return how many were counted, and those that were written."""
    counted: list[Decision] = []

    async def story() -> None:
        writer = DecisionWriter(kept, broker="a", clock=clock, counted=counted.append)
        for at_ms, each in steps:
            clock.boot_ms = at_ms
            writer.decided(each)
        writer.decided(LAST)
        task = asyncio.ensure_future(writer.run())
        await asyncio.to_thread(kept.has_last.wait, 10)
        task.cancel()
        assert kept.has_last.is_set()

    asyncio.run(story())
    return len(counted) - 1, [each for each in kept.decisions if each != LAST]


def test_equal_rounds_without_moves_are_written_once_a_minute() -> None:
    """All are counted. Small differences of figures do not matter."""
    steps = [
        (at_ms, decision(mean=0.5 + at_ms / 1e9))
        for at_ms in (0, 5_000, REPEATED_MS - 1, REPEATED_MS)
    ]
    count, kept = written(Kept(), VirtualClock(boot_ms=0), steps)
    assert (4, [0.5, 0.5 + REPEATED_MS / 1e9]) == (count, [each.plan.mean for each in kept])


def test_rounds_with_moves_and_the_first_round_after_them_are_written() -> None:
    """So is the first round of another strategy."""
    each = [
        decision(),
        decision(moves=(MOVE,)),
        decision(moves=(MOVE,)),
        decision(),
        decision(),
        decision(strategy="TransferShedder"),
    ]
    _, kept = written(
        Kept(), VirtualClock(boot_ms=0), [(number, one) for number, one in enumerate(each)]
    )
    assert [each[0], each[1], each[2], each[3], each[5]] == kept


def test_all_rounds_of_splits_are_written() -> None:
    """Even if they have equal counts within a minute."""
    stays = [
        (Stay(subject=bundle, reason="it cannot be cut"),)
        for bundle in ("t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff")
    ]
    rounds = [
        replace(decision(strategy="AutoSplit"), kind="split", plan=Plan(stays=each))
        for each in stays
    ]
    _, kept = written(Kept(), VirtualClock(boot_ms=0), list(enumerate(rounds)))
    assert stays == [each.plan.stays for each in kept]


def test_decisions_that_cannot_be_written_are_lost_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line per minute reports the losses. The writer goes on."""

    class Odd(Kept):
        def write(self, decision: Decision) -> None:
            if decision.strategy == "odd":
                raise ValueError("odd")
            super().write(decision)

    caplog.set_level(logging.WARNING, logger="equipoise.brokers.runtime.loops.decision_writer")
    assert (2, [decision()]) == written(
        Odd(), VirtualClock(boot_ms=0), [(0, decision(strategy="odd")), (1, decision())]
    )
    assert [("ERROR", True)] == [
        (line.levelname, line.exc_info is not None) for line in caplog.records
    ]
    caplog.clear()
    kept = Kept()
    kept.is_away = True
    count, decisions = written(
        kept, VirtualClock(boot_ms=0), [(number, decision(moves=(MOVE,))) for number in range(5)]
    )
    assert (5, [], 1) == (count, decisions, len(caplog.records))
    assert "it is away" in caplog.text
