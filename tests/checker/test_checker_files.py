"""Test the checker as a program: files, exit codes, and messages about damaged input."""

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import case
import checker
from counter_service import Leavings, plain_run


def json_lines(records: Sequence[case.Call] | Sequence[case.Work], **more: object) -> str:
    """Format records as lines, with extra fields that the checker ignores."""
    return "".join(json.dumps(record._asdict() | more) + "\n" for record in records)


SCHEMA = """
CREATE TABLE writes(position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value INTEGER, token INTEGER,
    broker TEXT, request TEXT);
CREATE TABLE refusals(position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, token INTEGER, highest INTEGER,
    broker TEXT, request TEXT);
"""  # noqa: E501


def save(left: Leavings, folder: Path) -> list[str]:
    history, store_path, evidence = (
        folder / "history.jsonl",
        folder / "store.db",
        folder / "accepts.jsonl",
    )
    history.write_text(json_lines(left.calls, caller="c1", target="b0"), encoding="utf-8")
    evidence.write_text(
        json_lines(left.works, bundle="shop/orders/0x00000000_0xffffffff"), encoding="utf-8"
    )
    with closing(sqlite3.connect(store_path)) as store, store:
        store.executescript(SCHEMA)
        store.executemany(
            "INSERT INTO writes(request, key, broker, token, value) VALUES (?, ?, ?, ?, ?)",
            left.writes,
        )
        store.executemany(
            "INSERT INTO refusals(request, key, token, highest) VALUES (?, ?, ?, ?)", left.refusals
        )
    return [str(history), "--store", str(store_path), "--evidence", str(evidence)]


def alone(
    arguments: Sequence[str], program: str = "checker.py"
) -> subprocess.CompletedProcess[str]:
    """Run a copy of the checker's files in a process that sees only the standard library."""
    with tempfile.TemporaryDirectory() as folder:
        for name in {"case.py", "rules.py", "checker.py", program}:
            shutil.copy(Path(__file__).with_name(name), folder)
        command = [sys.executable, "-E", "-s", "-S", f"{folder}/{program}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_clean_case_exits_with_zero(tmp_path: Path) -> None:
    """The checker runs without any package, and its last lines are the count of double owners and
    the verdict.
    """
    ended = alone(save(plain_run(), tmp_path))
    assert (0, ["double owners: 0", "verdict: clean, no violation"]) == (
        ended.returncode,
        ended.stdout.splitlines()[-2:],
    )


def test_violations_exit_with_one(tmp_path: Path) -> None:
    """A double owner is counted as one, in JSON as in text."""
    left = plain_run()
    left.change_answers("a3", call_ns=10_000, return_ns=10_001)
    arguments = save(left, tmp_path)
    for_people, for_programs = alone(arguments), alone([*arguments, "--json"])
    answer = json.loads(for_programs.stdout)
    assert (1, 1) == (for_people.returncode, for_programs.returncode)
    assert ["double owners: 1", "verdict: 1 violations"] == for_people.stdout.splitlines()[-2:]
    assert ("violations", 1, 1) == (
        answer["verdict"],
        answer["double_owners"],
        answer["violations"]["one_owner_at_a_time"]["count"],
    )


def test_a_half_written_last_line_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = save(plain_run(), tmp_path)
    with (tmp_path / "history.jsonl").open("a", encoding="utf-8") as history:
        history.write('{"request": "a9", "ke')
    assert 0 == checker.main(arguments)
    assert "line 9: half written" in capsys.readouterr().err


LINE = (
    '{"request": "r", "key": "k", "broker": "b", "token": 1, "value": 1, "status": 200, "call_ns":'
    ' 1, "return_ns": 2}'
)
DAMAGED_LINES = {
    "not JSON": '{"request": "a9", "ke',
    "not UTF-8": "\udcff",
    "nested without end": "[" * 100_000,
    "not an object": "[]",
    "a field is missing": LINE.replace('"status": 200, ', ""),
    "a number is text": LINE.replace('"call_ns": 1', '"call_ns": "1"'),
    "a truth value is no number": LINE.replace('"token": 1', '"token": true'),
    "acknowledged without a token": LINE.replace('"token": 1', '"token": null'),
    "returned before it was called": LINE.replace('"return_ns": 2', '"return_ns": 0'),
}


@pytest.mark.parametrize("damaged", DAMAGED_LINES.values(), ids=DAMAGED_LINES.keys())
def test_a_damaged_line_makes_the_case_unusable(
    damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage anywhere but at the very end of a file is reported with its place, and nothing is
    checked.
    """
    arguments = save(plain_run(), tmp_path)
    history = tmp_path / "history.jsonl"
    history.write_bytes(damaged.encode(errors="surrogateescape") + b"\n" + history.read_bytes())
    assert 2 == checker.main([*arguments, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert "unusable" == answer["verdict"]
    assert "history.jsonl' line 1" in answer["reason"] or "request 'r'" in answer["reason"]


def test_a_case_without_an_acknowledged_call_is_unusable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty case is not clean, because it proves nothing."""
    assert 2 == checker.main(save(Leavings(), tmp_path))
    assert "no call was acknowledged" in capsys.readouterr().out


BAD_STORES = {
    "missing": None,
    "no database": b"long enough to be taken for a database" * 100,
    "no tables": b"",
}


@pytest.mark.parametrize("content", BAD_STORES.values(), ids=BAD_STORES.keys())
def test_a_store_that_cannot_be_read_makes_the_case_unusable(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checker names the store that it cannot read, and creates none in its place."""
    arguments = save(plain_run(), tmp_path)
    other = tmp_path / "other.db"
    if content is not None:
        other.write_bytes(content)
    assert 2 == checker.main([*arguments, "--store", str(other)])
    assert "other.db'" in capsys.readouterr().out
    assert (content is not None) == other.exists()
