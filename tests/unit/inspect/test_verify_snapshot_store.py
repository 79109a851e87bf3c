"""The audit of a channel that has a snapshot: by itself, against its log, and where the log's
beginning is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.errors import LogTruncated
from equipoise.channel.core.log import Check, Log, SnapshotRow
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.inspect import verify as audit
from equipoise.channel.inspect.verify import Finding, Kind, compacted_snapshot_of, verify
from equipoise.channel.snapshots.snapshot_rows import FoundSnapshot, encode_marker
from equipoise.compaction.retention import Retention
from tests.channels.compacting import (
    TIMEOUT_MS,
    begin_copy,
    compacted,
    image_of,
    marker_in,
    renewed,
    write_snapshot,
    written,
)
from tests.channels.folding import Channel, channel_in, channel_with
from tests.channels.gap_log import GapLog

KEPT = Retention(unit="offsets", amount=5)
ALL = Retention(unit="offsets", amount=2**40)


@pytest.fixture
def log() -> Iterator[GapLog]:
    """A log of its own."""
    with closing(GapLog()) as made:
        yield made


def only_finding(log: GapLog, *, cluster: str | None = None) -> Finding:
    """The one thing that an audit finds."""
    findings = verify(log, cluster=cluster)
    assert 1 == findings.findings_count, findings
    return findings.findings[0]


def grown(log: GapLog, channel: Channel) -> Channel:
    """Write a little more of a channel to its log."""
    channel.accept(
        propose.set_policy(
            channel.admin(), channel.view, name="p", document={"records": len(channel.entries)}
        )
    )
    return written(log, channel)


def test_a_snapshot_beside_a_whole_log_is_in_order(log: GapLog) -> None:
    """The log is folded from zero, and passes the snapshot's horizon with the snapshot's digest."""
    channel = written(log, channel_in("owned"))
    compacted(log, retain=ALL)
    horizon = channel.view.offset
    grown(log, channel)
    findings = verify(log)
    assert findings.in_order
    assert (horizon, False, horizon + 1) == (
        findings.snapshot_to,
        findings.from_snapshot,
        findings.records,
    )


def test_a_log_that_was_cut_is_folded_from_its_snapshot(log: GapLog) -> None:
    """What follows the snapshot is audited as what follows any record: renewals confirm its digest,
    and are counted.
    """
    channel = written(log, channel_with("a:1", "b:1"))
    compacted(log)
    channel.accept(propose.renewed(channel.author("a:1"), channel.broker("a:1")))
    channel.accept(propose.renewed(channel.author("a:1"), channel.broker("a:1")))
    written(log, channel)
    findings = verify(log)
    assert findings.in_order
    assert (4, True, 6, 2, 2) == (
        findings.snapshot_to,
        findings.from_snapshot,
        findings.folded_to,
        findings.records,
        findings.agreements,
    )


def test_a_damaged_row_is_found(log: GapLog) -> None:
    """A row that is not what was written is named, beside a log that is in order by itself."""
    channel = written(log, channel_with("a:1"))
    compacted(log, retain=ALL)
    log.compacted_snapshot().replace(
        [SnapshotRow("broker:a:1", image_of(log).rows["broker:a:1"].replace(b"a:1", b"b:1"))],
        image_of(log).marker,
        timeout_ms=TIMEOUT_MS,
    )
    finding = only_finding(log)
    assert (Kind.SNAPSHOT, channel.view.offset) == (finding.kind, finding.first)
    assert "'broker:a:1' does not match its checksum" in finding.text


def test_a_damaged_marker_is_found(log: GapLog) -> None:
    """A marker that cannot be read is found, though nobody can say how far it went."""
    written(log, channel_with("a:1"))
    compacted(log, retain=ALL)
    log.compacted_snapshot().replace([], b"no marker", timeout_ms=TIMEOUT_MS)
    assert (Kind.SNAPSHOT, 0) == (only_finding(log).kind, only_finding(log).first)
    assert verify(log).snapshot_to is None


def test_a_snapshot_of_another_history_is_found(log: GapLog) -> None:
    """A snapshot that is whole, and yet not what the log folds to at its horizon, is found
    there.
    """
    channel = written(log, channel_with("a:1", "b:1"))
    other = from_bytes(to_bytes(channel.view))
    other.remove_broker(other.brokers["b:1"])
    write_snapshot(log, other)
    grown(log, channel)
    finding = only_finding(log)
    assert (Kind.SNAPSHOT, 4, 4) == (finding.kind, finding.first, finding.last)
    assert "the log folds to digest" in finding.text


def test_a_horizon_without_a_record_is_found(log: GapLog) -> None:
    """A snapshot that says it was folded to where nothing stands is found out by the next
    record.
    """
    channel = written(log, channel_with("a:1"))
    write_snapshot(log, channel.view)
    log.compacted_snapshot().replace(
        [], encode_marker(replace(marker_in(log), horizon=4)), timeout_ms=TIMEOUT_MS
    )
    log.leap(10)
    assert "the log ends before it, at offset 3" in only_finding(log).text
    log.put((11, channel.entries[0][1]))
    assert "nothing stands there" in only_finding(log).text


def test_a_snapshot_of_a_former_log_is_found(log: GapLog) -> None:
    """A snapshot that names another log is none of this one."""
    channel = written(log, channel_with("a:1"))
    write_snapshot(log, channel.view)
    log.compacted_snapshot().replace(
        [], encode_marker(replace(marker_in(log), log="a former one")), timeout_ms=TIMEOUT_MS
    )
    assert "belongs to another log" in only_finding(log).text


def test_a_compaction_that_passes_in_between_is_no_finding(
    log: GapLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit whose log is cut while it looks at snapshot and history snapshot says so, and
    accuses neither.
    """
    channel = renewed(written(log, channel_with("a:1", bundles=4)), 7)
    written(log, channel)
    compacted(log, retain=KEPT)
    look = compacted_snapshot_of

    def late(audited: Log, *, check: Check) -> FoundSnapshot:
        monkeypatch.undo()
        written(log, renewed(channel, 20))
        compacted(log, retain=KEPT)
        return look(audited, check=check)

    monkeypatch.setattr(audit, "compacted_snapshot_of", late)
    with pytest.raises(LogTruncated):
        verify(log)
    assert verify(log).in_order


def test_a_log_without_its_beginning_is_incomplete(log: GapLog) -> None:
    """Where neither log nor snapshot has the beginning, that is what is found, and nothing is
    folded.
    """
    written(log, channel_with("a:1"))
    log.truncate(3, timeout_ms=TIMEOUT_MS)
    finding = only_finding(log)
    assert (Kind.INCOMPLETE, 1, 2) == (finding.kind, finding.first, finding.last)
    assert "no snapshot" in finding.text
    assert -1 == verify(log).folded_to


def test_a_log_with_a_damaged_snapshot_alone_is_incomplete(log: GapLog) -> None:
    """Where only a damaged snapshot has the beginning, both are found."""
    written(log, channel_with("a:1"))
    compacted(log)
    log.compacted_snapshot().replace(
        [SnapshotRow("genesis", b"{}")], image_of(log).marker, timeout_ms=TIMEOUT_MS
    )
    assert {Kind.INCOMPLETE, Kind.SNAPSHOT} == {finding.kind for finding in verify(log).findings}


def test_the_snapshot_of_another_cluster_is_not_folded(log: GapLog) -> None:
    """A log that begins with another cluster's snapshot is another cluster's."""
    written(log, channel_with("a:1"))
    compacted(log)
    assert Kind.FOREIGN == only_finding(log, cluster="mine").kind


def test_a_copy_is_audited_from_its_snapshot(log: GapLog) -> None:
    """A copy begins with its snapshot, and its offsets are above the old end."""
    begin_copy(log, channel_in("owned"), base=1_000)
    findings = verify(log)
    assert findings.in_order
    assert (1_000, True, 1_001) == (
        findings.snapshot_to,
        findings.from_snapshot,
        findings.folded_to,
    )


def test_a_log_that_was_closed_is_in_order(log: GapLog) -> None:
    """The record that closes a log ends its audit in good order, and what anybody writes after it
    is not looked at.
    """
    channel = channel_with("a:1")
    channel.die("a:1")
    channel.put(propose.close_log(channel.admin(), channel.view))
    channel.put_bytes(b"garbage")
    written(log, channel)
    findings = verify(log)
    assert findings.in_order
    assert (5, 5) == (findings.records, findings.accepted)
