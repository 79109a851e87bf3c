"""The file of evidence: its lines, its losses, and its bounded end."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.observations import writer as module
from equipoise.brokers.runtime.observations.writer import EvidenceFile
from equipoise.brokers.runtime.service import Evidence

BUNDLE = "t/n/0x00000000_0xffffffff"
PATIENCE_S = 20.0


def piece(key: str) -> Evidence:
    """Return one piece of evidence."""
    return Evidence(
        bundle=BUNDLE, key=key, token=7, started_ns=1, answered_ns=2, lease_deadline_ns=3
    )


def lines_of(path: Path) -> list[dict[str, object]]:
    """Return the lines of a file of evidence."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_each_piece_is_a_line_in_order(tmp_path: Path) -> None:
    """`message` and `by_token` are there only if they are set."""
    file = EvidenceFile(tmp_path / "evidence", broker="b")
    pieces = (piece("x"), replace(piece("y"), message="p:7"), replace(piece("z"), by_token=True))
    for each in pieces:
        file.write(each)
    file.close()
    plain = {
        "broker": "b",
        "bundle": BUNDLE,
        "token": 7,
        "started_ns": 1,
        "answered_ns": 2,
        "lease_deadline_ns": 3,
    }
    keys = (
        {"key": "t/n/x"},
        {"key": "t/n/y", "message": "p:7"},
        {"key": "t/n/z", "by_token": True},
    )
    assert [plain | key for key in keys] == lines_of(tmp_path / "evidence")


def test_a_disk_that_hangs_does_not_delay_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the queue is full."""
    disk, at_disk = threading.Event(), threading.Event()

    def hang(_file: EvidenceFile, _lines: bytes) -> bool:
        at_disk.set()
        return disk.wait(PATIENCE_S)

    monkeypatch.setattr(EvidenceFile, "_write", hang)
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    monkeypatch.setattr(module, "_WAITING_MAX", 1)
    file = EvidenceFile(tmp_path / "evidence", broker="b")
    file.write(piece("x"))
    assert at_disk.wait(PATIENCE_S)
    for key in ("y", "z"):
        file.write(piece(key))
    file.close()
    assert "still being written" in caplog.text
    disk.set()
    monkeypatch.setattr(module, "CLOSE_S", PATIENCE_S)
    file.close()


def test_the_file_has_the_number_of_dropped_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nobody takes it for complete."""
    disk, at_disk, write = threading.Event(), threading.Event(), EvidenceFile._write  # noqa: SLF001

    def wait(file: EvidenceFile, lines: bytes) -> bool:
        at_disk.set()
        return disk.wait(PATIENCE_S) and write(file, lines)

    monkeypatch.setattr(EvidenceFile, "_write", wait)
    monkeypatch.setattr(module, "CLOSE_S", PATIENCE_S)
    monkeypatch.setattr(module, "_WAITING_MAX", 1)
    file = EvidenceFile(tmp_path / "evidence", broker="b")
    file.write(piece("x"))
    assert at_disk.wait(PATIENCE_S)
    for key in ("y", "lost", "lost too"):
        file.write(piece(key))
    disk.set()
    file.close()
    lines = lines_of(tmp_path / "evidence")
    assert ["t/n/x", "t/n/y"] == [line["key"] for line in lines if "key" in line]
    assert [{"broker": "b", "dropped": 2}] == [line for line in lines if "key" not in line]


def test_a_file_that_cannot_be_made_is_an_invalid_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"evidence: .*No such file"):
        EvidenceFile(tmp_path / "nowhere" / "evidence", broker="b")
