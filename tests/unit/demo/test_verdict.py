"""The way to the judge and back."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.brokers.local.demo import verdict
from equipoise.brokers.local.demo.verdict import Verdict, judge, judge_messages

SCHEMA = """
CREATE TABLE writes(position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value INTEGER, token INTEGER, broker TEXT, request TEXT UNIQUE);
CREATE TABLE refusals(position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, token INTEGER, highest INTEGER, broker TEXT, request TEXT);
"""
CALL = {"request": "r", "key": "t/n/k", "broker": "a", "token": 7, "value": 1, "status": 200, "call_ns": 1, "return_ns": 2}


def judged(folder: Path, *, written: bool, calls: int = 1) -> Verdict | None:
    """What the judge says of one acknowledged call, which the store has or has not."""
    history, store = folder / "history.jsonl", folder / "store.db"
    history.write_text((json.dumps(CALL) + "\n") * calls)
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript(SCHEMA)
        if written:
            connection.execute("INSERT INTO writes(key, value, token, broker, request) VALUES ('t/n/k', 1, 7, 'a', 'r')")
        connection.commit()
    return asyncio.run(judge([history], store=store, evidence=[]))


def test_a_clean_case_is_clean(tmp_path: Path) -> None:
    """The verdict, the number of double owners and the totals come back."""
    said = judged(tmp_path, written=True)
    assert said is not None
    assert (True, 0, {}, None) == (said.is_clean, said.double_owners, said.violations, said.problem)
    assert 1 == said.totals["acknowledged"]
    assert "clean, no violation" == said.text


def test_a_lost_write_is_told_with_its_rule(tmp_path: Path) -> None:
    """A violation comes back with the rule and its messages."""
    said = judged(tmp_path, written=False)
    assert said is not None
    assert not said.is_clean
    assert ["acknowledged_writes_are_stored"] == list(said.violations)
    assert {"acknowledged_writes_are_stored": 1} == said.counts
    assert "violations of acknowledged_writes_are_stored" == said.text


def test_what_cannot_be_judged_is_not_clean(tmp_path: Path) -> None:
    """Without a single call there is no verdict, and that is told."""
    said = judged(tmp_path, written=True, calls=0)
    assert said is not None
    assert not said.is_clean
    assert said.problem is not None
    assert said.text.startswith("no verdict: what was left cannot be judged")


def judged_messages(folder: Path, *, windows: Sequence[tuple[int, int]]) -> Verdict | None:
    """What the judge says of two messages that were receipted, and one of them delivered."""
    history = folder / "messages.jsonl"
    lines: list[dict[str, object]] = [{"event": "ready", "subscription": "s", "consumer": "c", "topics": ["t"], "at_ns": 1}]
    for n, event in ((0, "sent"), (0, "receipted"), (1, "sent"), (1, "receipted")):
        lines.append({"event": event, "topic": "t", "producer": "p", "n": n, "at_ns": 10 + len(lines)})
    lines.append({"event": "received", "topic": "t", "subscription": "s", "consumer": "c", "producer": "p", "n": 0, "at_ns": 20})
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return asyncio.run(judge_messages([history], windows=windows, evidence=[]))


def test_a_lost_message_is_counted(tmp_path: Path) -> None:
    """What was receipted and never delivered is a violation, and counted."""
    said = judged_messages(tmp_path, windows=[])
    assert said is not None
    assert (False, {"receipted_messages_are_delivered": 1}, 1) == (said.is_clean, said.counts, said.totals["lost"])


def test_a_kill_excuses_what_it_cost(tmp_path: Path) -> None:
    """A loss in a window is none of the rules' business, and still counted."""
    said = judged_messages(tmp_path, windows=[(0, 5), (13, 30)])
    assert said is not None
    assert (True, 1) == (said.is_clean, said.totals["lost"])


def test_without_a_checkout_there_is_no_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the judges are not shipped, there is no verdict at all."""
    monkeypatch.setattr(verdict, "JUDGE", tmp_path / "judge.py")
    monkeypatch.setattr(verdict, "JUDGE_OF_MESSAGES", tmp_path / "messages.py")
    assert judged(tmp_path, written=True) is None
    assert judged_messages(tmp_path, windows=[]) is None


def test_a_judge_that_breaks_down_says_nothing_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the judge itself fails, the verdict is not clean, and tells how it ended."""
    broken = tmp_path / "judge.py"
    broken.write_text("raise SystemExit('the scales are broken')")
    monkeypatch.setattr(verdict, "JUDGE", broken)
    said = judged(tmp_path, written=True)
    assert said is not None
    assert not said.is_clean
    assert "the scales are broken" in said.text
