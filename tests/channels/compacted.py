"""Compacted logs for tests: the snapshot of what a log says, and the log cut off, without any of
the bounds that an operator's tool has.
"""

from __future__ import annotations

from equipoise.channel.core.log import Log, SnapshotRow
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import read_on
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.snapshots.snapshot_rows import encode_marker, keys_of, marker_of, rows_of
from tests.channels.carried import soon

TIMEOUT_MS = 30_000


def compact(log: Log, *, below: int | None = None, reader: Reader | None = None) -> View:
    """Write the snapshot of all that is on `log`, and cut off what is below the physical offset
    `below` (None: all of it).

    The view is the one that the snapshot holds. Nothing is kept for audits, and nobody who lags is
    waited for. `reader` is one to begin with, where the product would refuse to.
    """
    reader = reader or restored(log)
    read_on(log, reader, deadline=soon())
    compacted_snapshot = log.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    image = compacted_snapshot.load()
    gone = [] if image is None else sorted(image.rows.keys() - keys_of(reader.view))
    rows = [*rows_of(reader.view, -1), *(SnapshotRow(key, None) for key in gone)]
    compacted_snapshot.replace(
        rows, encode_marker(marker_of(reader.view, log=log.identity)), timeout_ms=TIMEOUT_MS
    )
    log.truncate(reader.position if below is None else below, timeout_ms=TIMEOUT_MS)
    return reader.view
