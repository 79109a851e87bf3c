"""Resume an archive in a new generation: build the view of its contents from the newest snapshot
and the records after it.
"""

from __future__ import annotations

from contextlib import suppress

from equipoise.channel.core.errors import LevelTooNew, LogClosed, LogWentBack, SnapshotDamaged
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.core.view import View
from equipoise.spark_jobs.archive.tables.manifest import Manifest
from equipoise.spark_jobs.archive.tables.reading import Archive, read_again
from equipoise.spark_jobs.rules.rule import NOT_FOLDED
from equipoise.spark_jobs.sequence.rows import Source, Table
from equipoise.spark_jobs.sequence.snapshots import unpacked
from equipoise.spark_jobs.sources.beginnings import Beginning
from equipoise.spark_jobs.streams.errors import ArchiveDamaged


def resumed(archive: Archive, manifest: Manifest) -> Beginning | None:
    """Return where the archive continues; None if it holds nothing of the channel yet.

    Raises `ArchiveDamaged` if a file cannot be read, or if the snapshot and the records do not fit
    together.
    """
    if Source.CHANNEL not in manifest.positions:
        return None
    try:
        view, last = read_again(lambda: _read(archive))
    except LogWentBack as error:
        raise ArchiveDamaged(
            archive=str(archive.path),
            problem=f"its records are not in order of their offsets: {error}",
        ) from error
    if last + 1 != manifest.positions[Source.CHANNEL]:
        problem = (
            f"its records lead to position {last}, but its description continues at"
            f" {manifest.positions[Source.CHANNEL]}"
        )
        raise ArchiveDamaged(archive=str(archive.path), problem=problem)
    return Beginning(
        positions=dict(manifest.positions),
        snapshot=to_bytes(view) if view.offset >= FIRST_OFFSET else None,
    )


def _read(archive: Archive) -> tuple[View, int]:
    """Return the view, and the position of the last archived entry. Entries that were archived
    without folding are skipped.
    """
    view = _newest_snapshot(archive)
    last = view.offset - view.base
    reader: Reader | None = None
    for batch in archive.batches(
        Table.RECORDS, columns=("position", "bytes", "verdict"), first=view.offset + 1
    ):
        for position, data, verdict in zip(
            *(batch[name].to_pylist() for name in ("position", "bytes", "verdict")), strict=True
        ):
            last = position
            if verdict == NOT_FOLDED:
                continue
            # The record that raises the format version is the last one that can be folded.
            with suppress(LevelTooNew, LogClosed):
                reader = reader or Reader(log=str(archive.path), view=view)
                reader.feed(Entry(position, data or b""))
    return view, last


def _newest_snapshot(archive: Archive) -> View:
    for path in reversed(archive.files(Table.SNAPSHOTS)):
        rows = [
            row
            for batch in archive.file_batches(path, Table.SNAPSHOTS, columns=("bytes",))
            for row in batch["bytes"].to_pylist()
        ]
        if rows:
            try:
                return unpacked(rows[-1] or b"")
            except SnapshotDamaged as error:
                problem = f"the newest snapshot in its file {path}: {error.problem}"
                raise ArchiveDamaged(archive=str(archive.path), problem=problem) from error
    return View()
