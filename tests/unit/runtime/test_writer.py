"""What is written in the background: batches, retries, losses, and the bounded end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.observations import writer as module
from equipoise.brokers.runtime.observations.writer import EvidenceFile, ObservationWriter, Served
from equipoise.brokers.runtime.service import Evidence
from equipoise.brokers.side_topics import SERVING
from equipoise.channel.core.side_log import Document, SideLogUnavailable
from equipoise.channel.log.memory_log import MemorySideLog

PATIENCE_S = 20.0


class Store(MemorySideLog):
    """A store in memory that waits for `gate` before each write, and fails while `is_away`."""

    def __init__(self) -> None:
        super().__init__("memory:store", SERVING)
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.is_away = False
        self.attempts = 0
        self.batches: list[list[int]] = []

    def append(self, documents: Sequence[Document]) -> None:
        self.reached.set()
        assert self.gate.wait(PATIENCE_S)
        self.attempts += 1
        if self.is_away:
            raise SideLogUnavailable(SERVING, place="in a test", problem="it is away")
        self.batches.append([orjson.loads(each.value or b"")["token"] for each in documents])

    @property
    def tokens(self) -> list[int]:
        """Return all that was written, in order."""
        return [token for batch in self.batches for token in batch]


def served(token: int) -> Served:
    """Return the beginning of a period under this token."""
    return Served(
        log="log",
        broker="b",
        incarnation=1,
        bundle="t/n/0x00000000_0xffffffff",
        token=token,
        boot="boot",
        started_ns=1,
        answered_ns=None,
        lease_deadline_ns=2,
        ended=None,
        by_token=False,
        at_ms=3,
        at_ns=1,
    )


def writer_to(store: Store) -> ObservationWriter:
    """Return a writer to a store."""
    return ObservationWriter(lambda: store, broker="b", clock=SystemClock())


def test_all_observations_are_written_in_order_and_in_batches() -> None:
    store = Store()
    store.gate.clear()
    writer = writer_to(store)
    writer.served(served(0))
    assert store.reached.wait(PATIENCE_S)
    for token in range(1, 2_000):
        writer.served(served(token))
    store.gate.set()
    writer.close()
    assert list(range(2_000)) == store.tokens
    assert [1, 1_000, 999] == [len(batch) for batch in store.batches if batch]


def test_a_store_that_hangs_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Dropped observations are logged."""
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    monkeypatch.setattr(module, "_WAITING_MAX", 1)
    store = Store()
    store.gate.clear()
    writer = writer_to(store)
    writer.served(served(0))
    assert store.reached.wait(PATIENCE_S)
    for token in range(1, 4):
        writer.served(served(token))
    writer.close()
    assert "still being written" in caplog.text
    store.gate.set()
    monkeypatch.setattr(module, "CLOSE_S", PATIENCE_S)
    writer.close()
    assert [0, 1] == store.tokens
    assert "2 observations were dropped" in caplog.text


def test_an_unavailable_store_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost, and the log has two lines."""
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    store = Store()
    store.is_away = True
    with caplog.at_level(logging.INFO, logger=module.__name__):
        writer = writer_to(store)
        writer.served(served(1))
        wait_for(lambda: "observations not stored" in caplog.text)
        writer.served(served(2))
        store.is_away = False
        writer.close()
    assert [1, 2] == store.tokens
    assert "it is away" in caplog.text
    assert "observations are stored again" in caplog.text


def test_a_batch_is_lost_after_the_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the broker there is only one more attempt."""
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    monkeypatch.setattr(module, "_ATTEMPTS_MAX", 3)
    store = Store()
    store.is_away = True
    writer = writer_to(store)
    writer.served(served(1))
    wait_for(lambda: 3 == store.attempts)
    store.is_away = False
    writer.served(served(2))
    wait_for(lambda: [2] == store.tokens)
    monkeypatch.setattr(module, "_RETRY_S", PATIENCE_S)
    store.is_away = True
    writer.served(served(3))
    wait_for(lambda: 5 == store.attempts)
    writer.close()
    assert [2] == store.tokens


def test_a_bug_of_a_store_costs_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged with its type."""
    store, errors = Store(), iter([ValueError("a bug")])

    def opening() -> Store:
        for error in errors:
            raise error
        return store

    writer = ObservationWriter(opening, broker="b", clock=SystemClock())
    writer.served(served(1))
    wait_for(lambda: "ValueError: a bug" in caplog.text)
    writer.served(served(2))
    writer.close()
    assert [2] == store.tokens


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    looks = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        looks.wait(0.01)
    raise AssertionError("the condition did not come true")


# --- the file of evidence ---

BUNDLE = "t/n/0x00000000_0xffffffff"


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
