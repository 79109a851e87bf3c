"""Records the golden channels of the newest level: `python -m tests.golden.record`. It never writes
over one that is there.

A channel is recorded as simulated brokers wrote it, with crashes, races, splits and merges, and as
it is then compacted, closed and copied. Of each there is the SQLite file (`NAME.db.gz`), and in
`recorded.json` what it comes to.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.view import View
from equipoise.channel.sqlite.log import SqliteLog
from equipoise.channel.system.deadline import Deadline
from equipoise.compaction.copying import copy
from equipoise.compaction.retention import Retention
from tests.channels.carried import TIMEOUT_MS, cut_off, leave_out, outcome_of
from tests.channels.compacting import compacted, restored_to_end
from tests.channels.folding import joined
from tests.simulation.clock import MICROSECONDS_PER_SECOND
from tests.simulation.scenario import SCENARIOS
from tests.simulation.world import World

FOLDER: Final = Path(__file__).resolve().parent / "level_1"
SCENARIO: Final = "heavy"
SEED: Final = 3
SECONDS: Final = 30
GARBAGE: Final = (
    b"",
    b"\xff\x00",
    b'{"kind":"bundle"}',
    b'{"kind": "renewed", "publisher": "broker-1"}',
    b"[]",
)
COPY_MS_MAX: Final = 60_000


def played() -> list[Entry]:
    """What simulated brokers and admins wrote, but for rejected records that settle nothing, which
    are made garbage.
    """
    world = World(replace(SCENARIOS[SCENARIO], seconds=SECONDS), SEED, on_line=None)
    world.begin()
    world.parts.schedule.run_until(SECONDS * MICROSECONDS_PER_SECOND)
    reader = Reader(log="simulated")
    entries: list[Entry] = []
    for entry in world.log.entries:
        folded = reader.feed(entry)
        settles_nothing = not folded.verdict.accepted and folded.record.incarnation is None
        entries.append(
            Entry(entry.offset, GARBAGE[len(entries) % len(GARBAGE)]) if settles_nothing else entry
        )
    return entries


def write(log: SqliteLog, entries: list[Entry]) -> None:
    """Append entries at the offsets that they have."""
    for entry in entries:
        leave_out(log, entry.offset)
        log.append([entry.data], timeout_ms=TIMEOUT_MS)


def keep(name: str, path: Path) -> None:
    """Put a log that nobody has open into the folder, and note what it comes to."""
    log = SqliteLog(str(path), name=f"sqlite:{name}.db", create=False)
    outcome = outcome_of(log)
    log.close()
    target, notes = FOLDER / f"{name}.db.gz", FOLDER / "recorded.json"
    if not target.exists():
        target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        outcomes = json.loads(notes.read_text()) | {name: outcome}
        notes.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n")


def go_on(log: SqliteLog, view: View) -> None:
    """Let a broker join, and take all that is free; one record of another cluster, and a second
    genesis, come in between.
    """
    reader = Reader(log=log.name, view=view)

    def put(data: bytes) -> View:
        log.append([data], timeout_ms=TIMEOUT_MS)
        for entry in log.read(reader.position, limit=10):
            reader.feed(entry)
        return reader.view

    incarnation = (
        put(encode(joined("broker-9", view, instance_id="in the copy")))
        .brokers["broker-9"]
        .incarnation
    )
    for cluster, base in (
        ("another", view.base),
        (str(view.cluster), 0),
        (str(view.cluster), view.base),
    ):
        put(encode(propose.genesis(Author(publisher="broker-9"), cluster=cluster, base=base)))
    sequence = 0
    for bundle in [bundle for bundle in view.unsettled() if bundle.phase == "free"][:20]:
        author = Author(
            publisher="broker-9", incarnation=incarnation, sequence=(sequence := sequence + 1)
        )
        assigned = put(encode(propose.assign(author, bundle, owner=incarnation))).bundles[
            bundle.name
        ]
        put(encode(propose.opened(replace(author, sequence=(sequence := sequence + 1)), assigned)))


def record() -> None:
    """Make the channels, one of the other, and keep each."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            name: Path(folder) / f"{name}.db"
            for name in ("recorded", "compacted", "closed", "copied", "closed_for", "floored")
        }
        logs = {name: SqliteLog(str(path), name=f"sqlite:{path}") for name, path in paths.items()}
        entries = played()
        for name in ("recorded", "compacted", "closed", "closed_for", "floored"):
            write(logs[name], entries)
        cut_off(
            logs["compacted"],
            horizon=entries[len(entries) * 2 // 3].offset,
            below=entries[len(entries) // 3].offset,
        )
        copy(
            logs["closed"],
            logs["copied"],
            publisher="admin:golden",
            deadline=Deadline.after(timeout_ms=COPY_MS_MAX),
        )
        with closing(SqliteLog(f"{folder}/new.db", name="sqlite:new.db")) as new:
            copy(
                logs["closed_for"],
                new,
                publisher="admin:golden",
                deadline=Deadline.after(timeout_ms=COPY_MS_MAX),
            )
        compacted(logs["floored"], retain=Retention(unit="offsets", amount=len(entries) // 2))
        go_on(logs["copied"], restored_to_end(logs["copied"]))
        for log in logs.values():
            log.close()
        for name, path in paths.items():
            keep(name, path)


if __name__ == "__main__":
    record()
