"""Test where an archive or an audit begins."""

from __future__ import annotations

from equipoise.channel.core.snapshot import from_bytes
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources.beginnings import Beginning, beginning_of
from tests.channels.compacting import compacted
from tests.channels.walk import Walk


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
