"""The floor move by move: when a compaction needs one, what it is made of, who gets in the way, and what damage costs.

May live here: examples of `compaction.floor` on logs in memory. Any history is compacted in tests/property/test_floor.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from equipoise.channel.core.errors import LogAccessDenied, TwinFenced
from equipoise.channel.core.twin import TwinRow
from equipoise.channel.inspect.findings import Kind
from equipoise.channel.inspect.verify import verify
from equipoise.channel.snapshots.floor import floor_of
from equipoise.channel.snapshots.restore import earliest
from equipoise.compaction.retention import Retention
from equipoise.compaction.writing import Step
from tests.compacted import compact as compact_without_floor
from tests.compacting import TIMEOUT_MS, begin_copy, compacted, digests_of, fold, renewed, told_by, untold, write_twin, written
from tests.folding import Channel, channel_with
from tests.gap_log import GapLog
from tests.unit.sqlite_files import edit, open_at

KEPT = Retention(unit="offsets", amount=5)


@pytest.fixture
def log() -> Iterator[GapLog]:
    """A log of its own."""
    log = GapLog()
    yield log
    log.close()


@pytest.fixture
def channel() -> Channel:
    """One broker, a namespace of four bundles, and some renewals: ten records."""
    channel = channel_with("a:1", bundles=4)
    renewed(channel, 7)
    assert 10 == channel.view.offset
    return channel


def floor_position(log: GapLog) -> int | None:
    """Where the floor is; None if there is none that can be used."""
    marker = floor_of(log).marker
    return None if marker is None else marker.position


def test_what_is_kept_can_be_told(log: GapLog, channel: Channel) -> None:
    """After each compaction the log begins at the floor, and each of the views that it leads to is that of a fold from zero."""
    for end in (10, 13, 21):
        written(log, renewed(channel, end - channel.view.offset))
        compacted(log, retain=KEPT)
        assert end - 4 == log.start() == floor_position(log)
        expected = {offset: digest for offset, digest in digests_of(channel.entries).items() if offset >= end - 5}
        assert expected == told_by(log)


def test_where_zero_or_the_twin_tells_all_there_is_no_floor(log: GapLog, channel: Channel) -> None:
    """No floor is written while nothing is cut, nor where nothing is kept."""
    written(log, channel)
    compacted(log, retain=Retention(unit="offsets", amount=100))
    assert (1, None, -1) == (log.start(), log.floor().load(), earliest(log).view.offset)
    compacted(log)
    assert (11, None, 10) == (log.start(), log.floor().load(), earliest(log).view.offset)


def test_a_floor_that_the_log_has_passed_is_none(log: GapLog, channel: Channel) -> None:
    """One that is left below the log's beginning is no damage, and the next that is needed takes its place."""
    written(log, channel)
    compacted(log, retain=KEPT)
    compacted(log)
    assert (11, None, None, 10) == (log.start(), floor_position(log), floor_of(log).problem, earliest(log).view.offset)
    assert verify(log).in_order
    written(log, renewed(channel, 7))
    compacted(log, retain=KEPT)
    assert 13 == floor_position(log) == log.start()


def test_a_floor_is_not_lowered(log: GapLog, channel: Channel) -> None:
    """A longer retention leaves the floor where it is: what lies below can be told no more, and what lies above still can."""
    written(log, channel)
    compacted(log, retain=Retention(unit="offsets", amount=2))
    before = log.floor().load()
    written(log, renewed(channel, 3))
    compacted(log, retain=Retention(unit="offsets", amount=100))
    assert before == log.floor().load()
    assert [] == untold(log)


def test_a_copy_begins_with_its_floor(log: GapLog) -> None:
    """What the twin of a copy says before it is first replaced stays known, with all that came after."""
    begin_copy(log, channel_with("a:1"), base=1_000)
    compacted(log, retain=Retention(unit="offsets", amount=100))
    assert (1, 1, [1_000, 1_001]) == (log.start(), floor_position(log), list(told_by(log)))


def test_a_log_that_was_cut_is_told_from_its_twin_on(log: GapLog, channel: Channel) -> None:
    """Of a log that was cut by one who knew of no floor the twin becomes it, also where the retention asks for more."""
    written(log, channel)
    compact_without_floor(log, below=4)
    assert [4, 5, 6, 7, 8, 9, 10] == untold(log)
    written(log, renewed(channel, 3))
    compacted(log, retain=Retention(unit="offsets", amount=100))
    assert (4, 11, list(range(10, 14))) == (log.start(), floor_position(log), list(told_by(log)))
    written(log, renewed(channel, 3))
    compacted(log, retain=KEPT)
    assert 12 == log.start() == floor_position(log)


def test_a_cut_in_a_gap_is_lowered_to_the_record_before(log: GapLog, channel: Channel) -> None:
    """Where nothing stands just below the cut the log begins right after the floor's last record, and keeps nothing more for it."""
    written(log, channel)
    log.leap(50)
    log.put(*(((offset + 50), data) for offset, data in channel.entries[-1:]))  # A late duplicate.
    done = compacted(log, retain=Retention(unit="offsets", amount=20))
    assert (60, 11, 11) == (done.horizon, done.start, floor_position(log))
    assert [10, 60] == list(told_by(log))


def test_a_dry_run_tells_where_the_log_would_begin(log: GapLog, channel: Channel) -> None:
    """A dry run folds what the floor would be, and claims and writes nothing."""
    written(log, channel)
    log.leap(50)
    log.put(*(((offset + 50), data) for offset, data in channel.entries[-1:]))
    log.floor().claim(timeout_ms=TIMEOUT_MS)
    retain = Retention(unit="offsets", amount=20)
    other = GapLog(name=log.name)
    would = compacted(other, retain=retain, dry_run=True)
    assert (11, None) == (would.start, log.floor().load())
    log.floor().replace([], b"not fenced", timeout_ms=TIMEOUT_MS)
    assert would.start == compacted(other, retain=retain).start
    other.close()


def test_who_comes_between_look_and_claim_is_seen(log: GapLog, channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A floor that another compactor has moved meanwhile is not put lower by one that looked at it before."""
    written(log, channel)
    other, floor = GapLog(name=log.name), log.floor()
    claim = floor.claim

    def claim_late(*, timeout_ms: int) -> None:
        written(other, renewed(channel, 10))
        compacted(other, retain=Retention(unit="offsets", amount=2))
        claim(timeout_ms=timeout_ms)

    monkeypatch.setattr(floor, "claim", claim_late)
    with pytest.raises(TwinFenced):
        compacted(log, retain=KEPT)
    assert 19 == floor_position(log) == log.start()
    other.close()


def spoil(log: GapLog) -> None:
    """Write a row into the floor that its marker knows nothing of."""
    image = log.floor().load()
    assert image is not None
    log.floor().claim(timeout_ms=TIMEOUT_MS)
    log.floor().replace([TwinRow("broker:ghost", b"{}")], image.marker, timeout_ms=TIMEOUT_MS)


def test_a_damaged_floor_costs_the_past_alone(log: GapLog, channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    """It is a finding and a warning; the log is told from its twin on, which the next compaction makes the floor."""
    written(log, channel)
    compacted(log, retain=KEPT)
    spoil(log)
    with caplog.at_level(logging.WARNING):
        assert 10 == earliest(log).view.offset
    assert f"the log {log.name} is told from its twin on, because its floor cannot be used: its row 'broker:ghost'" in caplog.text
    findings = verify(log)
    assert [Kind.FLOOR] == [finding.kind for finding in findings.findings]
    assert (None, True) == (findings.floor_to, findings.from_twin)
    written(log, renewed(channel, 2))
    compacted(log, retain=KEPT)
    assert verify(log).in_order
    assert (11, [10, 11, 12]) == (floor_position(log), list(told_by(log)))


def test_a_floor_that_cannot_be_had_costs_the_past_alone(
    log: GapLog, channel: Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a right is missing on its topic, tools look back as far as the twin goes; whoever would move it says what is missing."""
    written(log, channel)
    compacted(log, retain=KEPT)

    def denied(**_: object) -> NoReturn:
        raise LogAccessDenied(log=log.name, problem="not authorized")

    monkeypatch.setattr(log.floor(), "load", denied)
    monkeypatch.setattr(log.floor(), "claim", denied)
    with caplog.at_level(logging.WARNING):
        assert 10 == earliest(log).view.offset
    assert "not authorized" in caplog.text
    written(log, renewed(channel, 9))
    with pytest.raises(LogAccessDenied):
        compacted(log, retain=KEPT)


@pytest.mark.parametrize("damage", ["UPDATE entries SET checksum = 0 WHERE offset = 1", "UPDATE entries SET checksum = 0 WHERE offset = 3"])
def test_a_damaged_record_of_the_past_is_in_nobodys_way(channel: Channel, tmp_path: Path, damage: str) -> None:
    """What only the past needs, and cannot be read, is cut off as anything else: the story is then known from the twin on."""
    with closing(open_at(tmp_path / "log.db")) as log:
        log.append([data for _, data in channel.entries], timeout_ms=TIMEOUT_MS)
        compacted(log, retain=Retention(unit="offsets", amount=100))
        edit(tmp_path / "log.db", damage)
        log.append([data for _, data in renewed(channel, 3).entries[10:]], timeout_ms=TIMEOUT_MS)
        assert 8 == compacted(log, retain=Retention(unit="offsets", amount=6)).start
        assert list(range(10, 14)) == list(told_by(log))
        assert verify(log).in_order


def test_an_audit_begins_with_the_floor(log: GapLog, channel: Channel) -> None:
    """Then the twin is compared with what the log folds to from there."""
    written(log, channel)
    compacted(log, retain=KEPT)
    findings = verify(log)
    assert (5, True, 10, False) == (findings.floor_to, findings.from_floor, findings.twin_to, findings.from_twin)
    assert (True, 5) == (findings.in_order, findings.records)


def test_an_audit_compares_twin_and_floor(log: GapLog, channel: Channel) -> None:
    """A twin that is of one view with the floor is in order; one that comes to another view than the log does is a finding."""
    written(log, channel)
    compacted(log, retain=KEPT)
    write_twin(log, fold(channel.entries[:5]), clear=True)
    assert (5, 5, True) == ((findings := verify(log)).twin_to, findings.floor_to, findings.in_order)
    other = channel_with("b:1", bundles=2)
    write_twin(log, renewed(other, 7, broker="b:1").view, clear=True)
    assert [(Kind.TWIN, 10)] == [(finding.kind, finding.first) for finding in verify(log).findings]


def test_an_audit_begins_with_the_twin_where_that_is_lower(log: GapLog, channel: Channel) -> None:
    """One that died after it had moved the floor beyond the twin leaves a log that is in order, and that of the twin too."""
    written(log, channel)
    compacted(log)
    written(log, renewed(channel, 10))
    with pytest.raises(DiedError):
        compacted(log, retain=KEPT, step=die_with_the_floor)
    findings = verify(log)
    assert (10, True, 15, True) == (findings.twin_to, findings.from_twin, findings.floor_to, findings.in_order)


class DiedError(Exception):
    """What a compactor dies of."""


def die_with_the_floor(told: str) -> None:
    """Die once the floor has been moved."""
    if told == Step.FLOOR_READ_BACK:
        raise DiedError
