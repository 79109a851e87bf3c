"""The file of evidence: what is in it at the end, and that no disk keeps a broker from ending."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.observations import evidence as module
from equipoise.brokers.runtime.observations.evidence import EvidenceFile
from equipoise.brokers.runtime.service import Evidence

BUNDLE = "t/n/0x00000000_0xffffffff"
PATIENCE_S = 20.0


def piece(key: str) -> Evidence:
    """One piece of evidence."""
    return Evidence(bundle=BUNDLE, key=key, token=7, started_ns=1, answered_ns=2, lease_deadline_ns=3)


def test_all_that_was_queued_is_in_the_file_at_the_end(tmp_path: Path) -> None:
    """Each piece is a line, in order, and named as callers name its key."""
    file = EvidenceFile(tmp_path / "evidence", broker="b")
    for key in ("x", "y"):
        file.write(piece(key))
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "evidence").read_bytes().splitlines()]
    assert [("b", "t/n/x", 7), ("b", "t/n/y", 7)] == [(line["broker"], line["key"], line["token"]) for line in lines]


def test_evidence_of_a_message_names_it(tmp_path: Path) -> None:
    """Where the key stands for many things, the line says which it was; where it does not, there is no such field."""
    file = EvidenceFile(tmp_path / "evidence", broker="b")
    file.write(replace(piece("x"), message="p:7"))
    file.write(piece("x"))
    file.close()
    named, plain = (json.loads(line) for line in (tmp_path / "evidence").read_bytes().splitlines())
    assert "p:7" == named["message"]
    assert "message" not in plain


def test_evidence_says_where_only_the_token_guards(tmp_path: Path) -> None:
    """What was done past a lease is marked, and nothing else."""
    file = EvidenceFile(tmp_path / "evidence", broker="b")
    file.write(replace(piece("x"), by_token=True))
    file.write(piece("x"))
    file.close()
    marked, plain = (json.loads(line) for line in (tmp_path / "evidence").read_bytes().splitlines())
    assert (True, False) == (marked["by_token"], "by_token" in plain)


def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The end has a bound, even with a queue that is full, and says that something is missing."""
    disk, at_disk = threading.Event(), threading.Event()

    def hang(_file: EvidenceFile, _lines: bytes) -> bool:
        at_disk.set()
        return disk.wait(PATIENCE_S)

    monkeypatch.setattr(EvidenceFile, "_write", hang)
    monkeypatch.setattr(module, "_CLOSE_S", 0.01)
    monkeypatch.setattr(module, "_LINES_MAX", 1)
    file = EvidenceFile(tmp_path / "evidence", broker="b")
    file.write(piece("x"))
    assert at_disk.wait(PATIENCE_S)
    for key in ("y", "z"):
        file.write(piece(key))
    file.close()
    assert "still being written" in caplog.text
    disk.set()
    monkeypatch.setattr(module, "_CLOSE_S", PATIENCE_S)
    file.close()


def test_what_was_dropped_is_told_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a queue that was full stands a line that says how much is missing, so that nobody takes the file for complete."""
    disk, at_disk, write = threading.Event(), threading.Event(), EvidenceFile._write  # noqa: SLF001

    def wait(file: EvidenceFile, lines: bytes) -> bool:
        at_disk.set()
        return disk.wait(PATIENCE_S) and write(file, lines)

    monkeypatch.setattr(EvidenceFile, "_write", wait)
    monkeypatch.setattr(module, "_CLOSE_S", PATIENCE_S)
    monkeypatch.setattr(module, "_LINES_MAX", 1)
    file = EvidenceFile(tmp_path / "evidence", broker="b")
    file.write(piece("x"))
    assert at_disk.wait(PATIENCE_S)
    for key in ("y", "lost", "lost too"):
        file.write(piece(key))
    disk.set()
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "evidence").read_bytes().splitlines()]
    assert ["t/n/x", "t/n/y"] == [line["key"] for line in lines if "key" in line]
    assert [{"broker": "b", "dropped": 2}] == [line for line in lines if "key" not in line]


def test_a_file_that_cannot_be_made_is_a_matter_of_settings(tmp_path: Path) -> None:
    """A path that cannot be written is told as the setting that it is."""
    with pytest.raises(InvalidConfig, match=r"evidence: .*No such file"):
        EvidenceFile(tmp_path / "nowhere" / "evidence", broker="b")
