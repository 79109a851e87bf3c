"""The verdicts of the checkers are read as they give them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.load import verdicts
from tests.load.verdicts import Verdict, check_calls

SCHEMA = """
CREATE TABLE writes(position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value INTEGER, token INTEGER,
    broker TEXT, request TEXT UNIQUE);
CREATE TABLE refusals(position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, token INTEGER, highest INTEGER,
    broker TEXT, request TEXT);
"""  # noqa: E501
CALL = {
    "request": "r",
    "key": "t/n/k",
    "broker": "a",
    "token": 7,
    "value": 1,
    "status": 200,
    "call_ns": 1,
    "return_ns": 2,
}


def checked_calls(folder: Path, *, written: bool, calls: int = 1) -> Verdict:
    """Check one acknowledged call, which the store has or has not."""
    history, store = folder / "history.jsonl", folder / "store.db"
    history.write_text((json.dumps(CALL) + "\n") * calls)
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript(SCHEMA)
        if written:
            connection.execute(
                "INSERT INTO writes(key, value, token, broker, request) VALUES ('t/n/k', 1, 7, 'a',"
                " 'r')"
            )
        connection.commit()
    return check_calls([history], store=store)


def test_a_lost_write_is_a_violation(tmp_path: Path) -> None:
    """The verdict has the rule, its messages and their number."""
    verdict = checked_calls(tmp_path, written=False)
    rule = "acknowledged_writes_are_stored"
    assert (False, [rule], {rule: 1}) == (
        verdict.is_clean,
        list(verdict.violations),
        verdict.counts,
    )
    assert f"violations of {rule}" == verdict.text


def test_files_without_calls_get_no_verdict(tmp_path: Path) -> None:
    """Without a verdict nothing is clean."""
    verdict = checked_calls(tmp_path, written=True, calls=0)
    assert not verdict.is_clean
    assert verdict.text.startswith("no verdict: the files cannot be checked: ")


def test_a_checker_that_fails_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The problem has the error of the checker."""
    broken = tmp_path / "checker.py"
    broken.write_text("raise SystemExit('out of order')")
    monkeypatch.setattr(verdicts, "CALL_CHECKER", broken)
    verdict = checked_calls(tmp_path, written=True)
    assert not verdict.is_clean
    assert "the checker ended with code 1: out of order" in verdict.text
