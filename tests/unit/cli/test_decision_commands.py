"""`equipoise decisions`: pages and documents."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from equipoise.brokers.decision_log import DecisionLog, newest_decisions
from equipoise.shedder.plan import Stay
from tests.decisions import AT_MS, idle, move, outcome, shed, with_plan
from tests.unit.cli.fabricated import run


def test_decisions_are_printed_with_their_reasons(log: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    decisions = DecisionLog(log)
    stays = (Stay(subject="c", reason="it drains"),)
    decisions.write(
        replace(
            with_plan(shed(now_ms - 7_260_000), stays=stays), stays_left_out=2, moves_left_out=1
        )
    )
    decisions.write(idle(now_ms - 61_000))
    result = run("decisions", log=log)
    assert 0 == result.exit_code
    told = [
        line.partition(", ")[2] if line[0] == "2" else line for line in result.stdout.splitlines()
    ]
    assert told == [
        "2 h ago: shed by a (TransferShedder): Success, Overloaded",
        "  mean 50 %, deviation 40 % -> 10 %",
        f"  t/n/0: a -> b; {move(0).reason}",
        f"  t/n/1: a -> b; {move(1).reason}",
        "  and 1 move more",
        "  c stays: it drains",
        "  and 2 others that stay",
        "1 m ago: shed by a (TransferShedder): Skip, HitCount",
        "  mean 40 %, deviation 1 %",
        "  the load is even",
        "  a stays: it is used by 40 %",
    ]


def test_an_outcome_has_what_was_predicted_and_what_was_measured(log: str) -> None:
    DecisionLog(log).write(outcome())
    heading, *lines = run("decisions", log=log).stdout.splitlines()
    assert heading.endswith(": outcome of a round by a (BalancedShedder)")
    assert lines == [
        "  a had 160 % of the mean load, 120 % was predicted, 125 % was measured",
        "  b had 40 % of the mean load, 80 % was predicted, not measured: t/n/7 moved, too",
        "  t/n/0: a -> b; took 12 ms, 10 ms was predicted",
        "  t/n/1 stays: b refused it",
    ]


def test_a_planned_move_has_the_time_that_moves_take(log: str) -> None:
    DecisionLog(log).write(with_plan(shed(), moves=outcome().plan.moves))
    assert (
        f"  t/n/0: a -> b; {move(0).reason}; moves take 10 ms\n" in run("decisions", log=log).stdout
    )


def test_decisions_prints_json(log: str) -> None:
    decisions = DecisionLog(log)
    for number in range(3):
        decisions.write(idle(AT_MS + number))
    told = json.loads(run("decisions", "--limit", "2", "--json", log=log).stdout)
    assert [(AT_MS + 1, "HitCount"), (AT_MS + 2, "HitCount")] == [
        (each["at_ms"], each["cause"]) for each in told
    ]


def test_a_move_without_a_destination_is_left_to_placement(log: str) -> None:
    DecisionLog(log).write(with_plan(shed(), moves=(replace(move(0), destination=None),)))
    assert "  t/n/0: a -> wherever placement puts it; " in run("decisions", log=log).stdout


def test_without_decisions_a_sentence_is_printed(log: str) -> None:
    assert ("nothing has been decided yet\n", "[]\n") == (
        run("decisions", log=log).stdout,
        run("decisions", "--json", log=log).stdout,
    )


def test_decisions_refuses_a_channel_that_does_not_exist(tmp_path: Path) -> None:
    result = run("decisions", log=f"sqlite:{tmp_path}/none.db")
    assert "there is no file" in result.stderr
    assert result.exit_code
    assert [] == list(tmp_path.iterdir())


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
