"""Test where a stream begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.channel.core.snapshot import from_bytes
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources.beginnings import Beginning, beginning_of, kept_beginning
from tests.channels.compacting import compacted
from tests.channels.walk import Walk


def never() -> Beginning:
    raise AssertionError("the beginning is stored already")


@pytest.mark.parametrize("snapshot", [None, b"a snapshot"])
def test_a_beginning_is_stored_once(tmp_path: Path, snapshot: bytes | None) -> None:
    """Further attempts at the first batch begin where the first one did, even if the log has
    changed.
    """
    made = Beginning(positions={"channel": 7, "decisions": 2}, snapshot=snapshot)
    assert made == kept_beginning(tmp_path / "checkpoint", lambda: made)
    assert made == kept_beginning(tmp_path / "checkpoint", never)


def test_a_truncated_log_is_read_from_its_snapshot() -> None:
    """A whole log is read from its first record, without a snapshot."""
    log, walk = MemoryLog(name="memory:beginnings"), Walk(4)
    log.append([walk.step()[1] for _ in range(40)], timeout_ms=0)
    assert Beginning(positions={Source.CHANNEL: 1}) == beginning_of(log)
    done = compacted(log)
    assert done.start > 1
    beginning = beginning_of(log)
    assert {Source.CHANNEL: done.start} == beginning.positions
    assert beginning.snapshot is not None
    assert done.start - 1 == from_bytes(beginning.snapshot).offset
    log.close()
