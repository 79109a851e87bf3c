"""The judge of the benchmark of peers, on logs that are made up."""

from __future__ import annotations

import pytest

from tests.benchmarks.peers.judge import Holding, Pause, Verdict, Write, judge, without_pauses

MS = 1_000_000
END_MS = 1_000


def holding(program: str, from_ms: int, to_ms: int = END_MS, *, shard: int = 0) -> Holding:
    """A holding whose epoch is the time of its beginning."""
    return Holding(
        shard=shard, program=program, epoch=from_ms, from_ns=from_ms * MS, to_ns=to_ms * MS
    )


def write(
    at_ms: int, by: Holding, count: int, *, accepted: bool = True, request: str = ""
) -> Write:
    return Write(
        at_ns=at_ms * MS,
        shard=by.shard,
        program=by.program,
        epoch=by.epoch,
        request=request or f"r{at_ms}",
        count=count,
        accepted=accepted,
    )


def judged(holdings: list[Holding], *writes: Write) -> Verdict:
    return judge(holdings, writes, from_ns=0, to_ns=END_MS * MS)


def test_a_move_without_a_pause_is_clean() -> None:
    a, b = holding("a", 0, 500), holding("b", 500)
    verdict = judged([a, b], write(400, a, 1), write(600, b, 2))
    assert verdict == Verdict(
        without_owner_ms=[0.0],
        two_owners_ms=0.0,
        stale_accepted=0,
        refused=0,
        lost=0,
        doubled=0,
        changes=1,
        moved=1,
        shards={"b": 1},
    )


def test_time_without_an_owner_is_of_each_shard_that_an_event_concerns() -> None:
    verdict = judged(
        [
            holding("a", 0, 300),
            holding("b", 350),
            holding("a", 0, 300, shard=1),
            holding("a", 400, shard=1),
            holding("a", 0, 300, shard=2),
            holding("a", 310, shard=2),
        ]
    )
    assert [50.0, 100.0] == verdict.without_owner_ms
    assert (1, 1) == (verdict.changes, verdict.moved)


def test_two_owners_are_found_with_their_stale_write_and_the_update_that_it_overwrites() -> None:
    a, b = holding("a", 0, 700), holding("b", 500)
    verdict = judged([a, b], write(400, a, 1), write(550, b, 2), write(600, a, 2))
    assert (200.0, 1, 1, 0) == (
        verdict.two_owners_ms,
        verdict.stale_accepted,
        verdict.lost,
        verdict.doubled,
    )


def test_a_stale_write_that_is_refused_does_no_harm() -> None:
    a, b = holding("a", 0, 700), holding("b", 500)
    verdict = judged([a, b], write(550, b, 1), write(600, a, 1, accepted=False))
    assert (0, 1, 0) == (verdict.stale_accepted, verdict.refused, verdict.lost)


def test_a_request_that_counts_at_both_owners_is_doubled() -> None:
    a, b = holding("a", 0, 700), holding("b", 500)
    verdict = judged([a, b], write(550, b, 1, request="r"), write(600, a, 2, request="r"))
    assert 1 == verdict.doubled


def test_a_program_that_was_stopped_owned_nothing_meanwhile() -> None:
    a, b = holding("a", 0, 800), holding("b", 500)
    pause = Pause(program="a", from_ns=100 * MS, to_ns=750 * MS)
    verdict = judged(without_pauses([a, b], [pause]), write(600, b, 1), write(760, a, 2))
    assert ([400.0], 50.0, 1) == (
        verdict.without_owner_ms,
        verdict.two_owners_ms,
        verdict.stale_accepted,
    )


def test_an_owner_whose_predecessor_wakes_up_does_not_become_stale() -> None:
    a, b = holding("a", 0, 751), holding("b", 500)
    pause = Pause(program="a", from_ns=100 * MS, to_ns=750 * MS)
    verdict = judged(without_pauses([a, b], [pause]), write(800, b, 1))
    assert 0 == verdict.stale_accepted


@pytest.mark.parametrize("at_ms", [-10, 2_000])
def test_only_writes_of_the_event_count(at_ms: int) -> None:
    a, b = holding("a", -100, 3_000), holding("b", -50, 3_000)
    verdict = judged([a, b], write(at_ms, a, 0))
    assert (0, 0) == (verdict.stale_accepted, verdict.lost)
