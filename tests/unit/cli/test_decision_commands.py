"""`equipoise decisions` beyond the transcript of plans."""

from __future__ import annotations

from pathlib import Path

from equipoise.brokers.decision_log import DecisionLog, newest_decisions
from tests.decisions import move, outcome, shed, with_plan
from tests.unit.cli.fabricated import run


def test_a_planned_move_has_the_time_that_moves_take(log: str) -> None:
    DecisionLog(log).write(with_plan(shed(), moves=outcome().plan.moves))
    assert (
        f"  t/n/0: a -> b; {move(0).reason}; moves take 10 ms\n" in run("decisions", log=log).stdout
    )


def test_a_channel_with_decisions_can_be_verified_compacted_and_copied(
    log: str, tmp_path: Path
) -> None:
    """The copy begins without decisions."""
    DecisionLog(log).write(shed())
    copy = f"sqlite:{tmp_path}/copy.db"
    for command in (("verify",), ("compact",), ("verify",), ("copy", log, copy)):
        result = run("channel", *command, log=log)
        assert 0 == result.exit_code, result.stderr
    assert ([shed()], []) == (
        list(newest_decisions(log, 1)),
        list(newest_decisions(copy, 1)),
    )
