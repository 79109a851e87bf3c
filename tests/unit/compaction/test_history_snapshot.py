"""Test when a compaction moves the history snapshot, conflicts with other compactors, and
damage.
"""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from equipoise.channel.core.errors import OperatorError, SnapshotFenced, log_access_denied
from equipoise.channel.core.log import SnapshotRow
from equipoise.channel.inspect.verify import Kind, verify
from equipoise.channel.snapshots.restore import earliest
from equipoise.channel.snapshots.snapshot_rows import history_snapshot_of
from equipoise.compaction.compactor import Step
from equipoise.compaction.retention import Retention
from tests.channels.compacting import (
    TIMEOUT_MS,
    compacted,
    fold,
    renewed,
    told_by,
    untold,
    write_snapshot,
    written,
)
from tests.channels.folding import Channel, channel_with
from tests.channels.gap_log import GapLog
from tests.unit.sqlite.sqlite_files import edit, open_at

KEPT = Retention(unit="offsets", amount=5)


@pytest.fixture
def channel(log: GapLog) -> Channel:
    """One broker, a namespace of four bundles, and some renewals: ten records, all on the log."""
    channel = written(log, renewed(channel_with("a:1", bundles=4), 7))
    assert 10 == channel.view.offset
    return channel


def history_position(log: GapLog) -> int | None:
    """Where the history snapshot is; None if there is none that can be used."""
    marker = history_snapshot_of(log).marker
    return None if marker is None else marker.position


def test_where_zero_or_the_snapshot_tells_all_there_is_no_history(
    log: GapLog, channel: Channel
) -> None:
    """No history snapshot is written while nothing is cut, nor where nothing is kept."""
    compacted(log, retain=Retention(unit="offsets", amount=100))
    assert (1, None, -1) == (log.start(), log.history_snapshot().load(), earliest(log).view.offset)
    compacted(log)
    assert (11, None, 10) == (log.start(), log.history_snapshot().load(), earliest(log).view.offset)


def test_a_history_that_the_log_has_passed_is_none(log: GapLog, channel: Channel) -> None:
    """One that is left below the log's beginning is no damage, and the next that is needed takes
    its place.
    """
    compacted(log, retain=KEPT)
    compacted(log)
    assert (11, None, None, 10) == (
        log.start(),
        history_position(log),
        history_snapshot_of(log).problem,
        earliest(log).view.offset,
    )
    assert verify(log).in_order
    written(log, renewed(channel, 7))
    compacted(log, retain=KEPT)
    assert 13 == history_position(log) == log.start()


def test_a_history_is_not_lowered(log: GapLog, channel: Channel) -> None:
    """A longer retention leaves the history snapshot where it is: what lies below can be told no
    more, and what lies above still can.
    """
    compacted(log, retain=Retention(unit="offsets", amount=2))
    before = log.history_snapshot().load()
    written(log, renewed(channel, 3))
    compacted(log, retain=Retention(unit="offsets", amount=100))
    assert before == log.history_snapshot().load()
    assert [] == untold(log)


def test_a_cut_in_a_gap_is_lowered_to_the_record_before(log: GapLog, channel: Channel) -> None:
    """Without a record just below the cut, the log begins right after the history snapshot's last
    record and keeps nothing more.
    """
    log.leap(50)
    log.put(*(((offset + 50), data) for offset, data in channel.entries[-1:]))  # A late duplicate.
    done = compacted(log, retain=Retention(unit="offsets", amount=20))
    assert (60, 11, 11) == (done.horizon, done.start, history_position(log))
    assert [10, 60] == list(told_by(log))


def test_a_dry_run_tells_where_the_log_would_begin(
    log: GapLog, other: GapLog, channel: Channel
) -> None:
    """A dry run folds what the history snapshot would be, and claims and writes nothing."""
    log.leap(50)
    log.put(*(((offset + 50), data) for offset, data in channel.entries[-1:]))
    log.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
    retain = Retention(unit="offsets", amount=20)
    would = compacted(other, retain=retain, dry_run=True)
    assert (11, None) == (would.start, log.history_snapshot().load())
    log.history_snapshot().replace([], b"not fenced", timeout_ms=TIMEOUT_MS)
    assert would.start == compacted(other, retain=retain).start


def test_who_comes_between_look_and_claim_is_seen(
    log: GapLog, other: GapLog, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history snapshot that another compactor has moved meanwhile is not put lower by one that
    looked at it before.
    """
    history_snapshot = log.history_snapshot()
    claim = history_snapshot.claim

    def claim_late(*, timeout_ms: int) -> None:
        written(other, renewed(channel, 10))
        compacted(other, retain=Retention(unit="offsets", amount=2))
        claim(timeout_ms=timeout_ms)

    monkeypatch.setattr(history_snapshot, "claim", claim_late)
    with pytest.raises(SnapshotFenced):
        compacted(log, retain=KEPT)
    assert 19 == history_position(log) == log.start()


def spoil(log: GapLog) -> None:
    """Write a row into the history snapshot that its marker knows nothing of."""
    image = log.history_snapshot().load()
    assert image is not None
    log.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
    log.history_snapshot().replace(
        [SnapshotRow("broker:ghost", b"{}")], image.marker, timeout_ms=TIMEOUT_MS
    )


def test_a_damaged_history_costs_the_past_alone(
    log: GapLog, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a finding and a warning; the log is told from its snapshot on, which the next
    compaction makes the history snapshot.
    """
    compacted(log, retain=KEPT)
    spoil(log)
    with caplog.at_level(logging.WARNING):
        assert 10 == earliest(log).view.offset
    assert (
        f"the history of the log {log.name} begins at its snapshot, because its history snapshot"
        " cannot be used: its row 'broker:ghost'" in caplog.text
    )
    findings = verify(log)
    assert [Kind.HISTORY] == [finding.kind for finding in findings.findings]
    assert (None, True) == (findings.history_to, findings.from_snapshot)
    written(log, renewed(channel, 2))
    compacted(log, retain=KEPT)
    assert verify(log).in_order
    assert (11, [10, 11, 12]) == (history_position(log), list(told_by(log)))


def test_a_history_that_cannot_be_had_costs_the_past_alone(
    log: GapLog, channel: Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a right is missing on its topic, tools look back as far as the snapshot goes; whoever
    would move it says what is missing.
    """
    compacted(log, retain=KEPT)

    def denied(**_: object) -> NoReturn:
        raise log_access_denied(log=log.name, problem="not authorized")

    monkeypatch.setattr(log.history_snapshot(), "load", denied)
    monkeypatch.setattr(log.history_snapshot(), "claim", denied)
    with caplog.at_level(logging.WARNING):
        assert 10 == earliest(log).view.offset
    assert "not authorized" in caplog.text
    written(log, renewed(channel, 9))
    with pytest.raises(OperatorError):
        compacted(log, retain=KEPT)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET checksum = 0 WHERE offset = 1",
        "UPDATE entries SET checksum = 0 WHERE offset = 3",
    ],
)
def test_a_damaged_record_of_the_past_is_in_nobodys_way(
    channel: Channel, tmp_path: Path, damage: str
) -> None:
    """What only the past needs, and cannot be read, is cut off as anything else: the story is then
    known from the snapshot on.
    """
    with closing(open_at(tmp_path / "log.db")) as log:
        log.append([data for _, data in channel.entries], timeout_ms=TIMEOUT_MS)
        compacted(log, retain=Retention(unit="offsets", amount=100))
        edit(tmp_path / "log.db", damage)
        log.append([data for _, data in renewed(channel, 3).entries[10:]], timeout_ms=TIMEOUT_MS)
        assert 8 == compacted(log, retain=Retention(unit="offsets", amount=6)).start
        assert list(range(10, 14)) == list(told_by(log))
        assert verify(log).in_order


def test_an_audit_begins_with_the_history(log: GapLog, channel: Channel) -> None:
    """Then the snapshot is compared with what the log folds to from there."""
    compacted(log, retain=KEPT)
    findings = verify(log)
    assert (5, True, 10, False) == (
        findings.history_to,
        findings.from_history_snapshot,
        findings.snapshot_to,
        findings.from_snapshot,
    )
    assert (True, 5) == (findings.in_order, findings.records)


def test_an_audit_compares_snapshot_and_history(log: GapLog, channel: Channel) -> None:
    """A snapshot that agrees with the history snapshot passes; one that leads to another view than
    the log is a finding.
    """
    compacted(log, retain=KEPT)
    write_snapshot(log, fold(channel.entries[:5]), clear=True)
    assert (5, 5, True) == (
        (findings := verify(log)).snapshot_to,
        findings.history_to,
        findings.in_order,
    )
    other = channel_with("b:1", bundles=2)
    write_snapshot(log, renewed(other, 7, broker="b:1").view, clear=True)
    assert [(Kind.SNAPSHOT, 10)] == [
        (finding.kind, finding.first) for finding in verify(log).findings
    ]


def test_an_audit_begins_with_the_snapshot_where_that_is_lower(
    log: GapLog, channel: Channel
) -> None:
    """A compactor that died after moving the history snapshot past the snapshot leaves both logs in
    order.
    """
    compacted(log)
    written(log, renewed(channel, 10))
    with pytest.raises(DiedError):
        compacted(log, retain=KEPT, step=die_with_the_history)
    findings = verify(log)
    assert (10, True, 15, True) == (
        findings.snapshot_to,
        findings.from_snapshot,
        findings.history_to,
        findings.in_order,
    )


class DiedError(Exception):
    """What a compactor dies of."""


def die_with_the_history(told: str) -> None:
    """Die once the history snapshot has been moved."""
    if told == Step.HISTORY_READ_BACK:
        raise DiedError
