"""`equipoise channel compact` beyond the transcript of copies: on older logs."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from equipoise.channel.core.log import SnapshotRow
from equipoise.channel.log.open_log import open_log
from tests.channels.compacting import TIMEOUT_MS, all_of, image_of, in_an_hour, restored_to_end
from tests.unit.cli.fabricated import run


@pytest.fixture
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run as if the newest record were an hour old."""
    later_ms = in_an_hour()
    monkeypatch.setattr("equipoise.compaction.compactor.newest_ms", lambda *_, **__: later_ms)


def view_at(url: str) -> dict[str, object]:
    """The view of the log, as one document."""
    with closing(open_log(url)) as log:
        return all_of(restored_to_end(log))


def test_an_older_log_is_truncated(log: str, an_hour_later: None) -> None:
    before = view_at(log)
    would = run("channel", "compact", "--retain", "4 offsets", "--dry-run", log=log)
    assert would.stdout.endswith(
        "would write 8 rows and 0 tombstones; the log would begin at offset 6, instead of 1\n"
    )
    did = run("channel", "compact", "--retain", "4 offsets", log=log)
    assert did.stdout.endswith(
        "wrote 8 rows and 0 tombstones; the log now begins at offset 6, instead of 1\n"
    )
    assert before == view_at(log)
    verified = run("channel", "verify", log=log)
    assert (
        "snapshot up to offset 9\nhistory snapshot at offset 5, where the fold began\nall is in"
        " order\n" in verified.stdout
    )


def test_compact_prints_json(log: str, an_hour_later: None) -> None:
    document = json.loads(
        run("channel", "compact", "--retain", "0 offsets", "--json", log=log).stdout
    )
    expected = {
        "log": log,
        "horizon": 9,
        "records": 9,
        "keys": 8,
        "rows": 8,
        "tombstones": 0,
        "start_before": 1,
        "start": 10,
        "end": 9,
    }
    assert expected == {name: document[name] for name in expected}
    assert document["dry_run"] is False


def test_every_command_refuses_a_truncated_log_with_a_damaged_snapshot(
    log: str, an_hour_later: None
) -> None:
    run("channel", "compact", "--retain", "0 offsets", log=log)
    with closing(open_log(log)) as handle:
        handle.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)
        handle.compacted_snapshot().replace(
            [SnapshotRow("genesis", b"{}")], image_of(handle).marker, timeout_ms=TIMEOUT_MS
        )
    for command in (("channel", "compact"), ("channel", "tail"), ("bundles", "list")):
        result = run(*command, log=log)
        assert 4 == result.exit_code
        assert (
            "no longer has its records from offset 1 to 9, and its snapshot cannot be used"
            in result.stderr
        )
    verified = run("channel", "verify", log=log)
    assert 1 == verified.exit_code
    assert (
        "snapshot: the snapshot up to there: its row 'genesis' does not match its checksum"
        in verified.stdout
    )
    assert "offsets 1 to 9: incomplete: these records are gone" in verified.stdout
