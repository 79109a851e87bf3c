"""Recorded channels: SQLite files that former versions wrote, opened and folded again by today's
code.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from equipoise.brokers import decision_log
from equipoise.brokers.load.bus import LOADS
from equipoise.brokers.load.documents import decode_load, encode_load
from equipoise.brokers.runtime.observations.writer import Served
from equipoise.brokers.side_topics import DECISIONS, SERVING
from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import BrokerChanged
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import LevelRecord
from equipoise.channel.core.side_log import SideTopic, read_on
from equipoise.channel.log.open_log import open_side_log
from equipoise.channel.snapshots.restore import earliest, restored
from equipoise.channel.sqlite.log import SqliteLog
from tests.channels.carried import digest_at_end, entries_of, outcome_of

FOLDER = Path(__file__).resolve().parent / "level_1"
OUTCOMES = json.loads((FOLDER / "recorded.json").read_text())


def decision_again(data: bytes) -> bytes:
    """A decision, decoded and encoded."""
    decision = decision_log.decode(data)
    assert decision is not None
    return decision_log.encode(decision)


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


@pytest.mark.parametrize(
    ("topic", "again"),
    [
        (DECISIONS, decision_again),
        (LOADS, lambda data: encode_load(decode_load(data))),
        (SERVING, lambda data: orjson.dumps(asdict(Served(**orjson.loads(data))))),
    ],
    ids=lambda value: value.name if isinstance(value, SideTopic) else "",
)
def test_what_brokers_wrote_beside_the_log_keeps_its_meaning(
    topic: SideTopic, again: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Decoded and encoded, each document has all that it had, and perhaps new fields."""
    file_of("up", tmp_path).close()
    beside = tmp_path / "up.db.observations"
    beside.write_bytes(gzip.decompress((FOLDER / f"{beside.name}.gz").read_bytes()))
    with closing(open_side_log(f"sqlite:{tmp_path}/up.db", topic)) as side_log:
        documents = [each.value for each in read_on(side_log, side_log.bounds()[0]) if each.value]
    assert documents
    for document in documents:
        stored, now = orjson.loads(document), orjson.loads(again(document))
        assert {**now, **stored} == now
