"""Recorded channels: SQLite files that former versions wrote, opened and folded again by today's
code.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import BrokerChanged
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import LevelRecord
from equipoise.channel.snapshots.restore import earliest, restored
from equipoise.channel.sqlite.log import SqliteLog
from tests.channels.carried import digest_at_end, entries_of, outcome_of

FOLDER = Path(__file__).resolve().parent / "level_1"
OUTCOMES = json.loads((FOLDER / "recorded.json").read_text())


def file_of(name: str, folder: Path) -> SqliteLog:
    """A log as it was recorded, in a folder of its own."""
    path = folder / f"{name}.db"
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.db.gz").read_bytes()))
    return SqliteLog(str(path), name=f"sqlite:{path}", create=False)


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_file_comes_to_what_it_was(name: str, tmp_path: Path) -> None:
    """From its snapshot or from its beginning, it comes to the noted verdicts and digest."""
    log = file_of(name, tmp_path)
    assert OUTCOMES[name] == outcome_of(log)
    assert OUTCOMES[name]["digest"] == digest_at_end(log, restored(log))
    log.close()


def test_the_recorded_channel_is_worth_keeping(tmp_path: Path) -> None:
    """It holds deaths, drains, splits, merges, lost races and garbage; the others what was made of
    it.
    """
    reader = Reader(log="recorded")
    found: Counter[str] = Counter()
    for entry in entries_of(file_of("recorded", tmp_path)):
        folded = reader.feed(entry)
        found[f"{type(folded.record).__name__} {folded.verdict.reason or 'accepted'}"] += 1
        found["death"] += sum(
            isinstance(change, BrokerChanged) and change.dead is not None
            for change in folded.verdict.changes
        )
    wanted = {
        "Split accepted",
        "Merge accepted",
        "BrokerRecord accepted",
        "NamespaceRecord accepted",
        "PolicyRecord accepted",
        "death",
    }
    assert set() == (
        wanted | {"Unreadable malformed", "BundleTransition stale", "Renewed late"}
    ) - {*found}
    starts = {name: file_of(name, tmp_path) for name in ("copied", "compacted", "floored")}
    assert starts["copied"].compacted_snapshot().load() is not None
    begun = {name: (log.start(), earliest(log).position) for name, log in starts.items()}
    assert (FIRST_OFFSET, FIRST_OFFSET) == begun["copied"]
    assert FIRST_OFFSET < begun["compacted"][0] < begun["compacted"][1]
    assert FIRST_OFFSET < begun["floored"][0] == begun["floored"][1]
    *_, last = entries_of(file_of("closed_for", tmp_path))
    record = decode(last.data)
    assert isinstance(record, LevelRecord)
    assert ("sqlite:new.db", 32) == (record.copied_to, len(record.copied_to_identity or ""))
