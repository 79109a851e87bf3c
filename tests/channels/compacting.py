"""Channels that are compacted in tests: what they hold, folded from zero and restored, laid side by
side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.log import READ_ENTRIES_MAX, CompactedSnapshot, Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.view import View, apply
from equipoise.channel.log.blocking_view import read_on
from equipoise.channel.snapshots.restore import earliest, restored
from equipoise.channel.snapshots.snapshot_rows import (
    Marker,
    decode_marker,
    encode_marker,
    keys_of,
    marker_of,
    rows_of,
)
from equipoise.compaction.compactor import Compacted, compact
from equipoise.compaction.retention import Retention
from tests.channels.carried import soon
from tests.channels.folding import CLUSTER, Channel
from tests.channels.gap_log import GapLog

TIMEOUT_MS = 10_000
NOTHING = Retention(unit="offsets", amount=0)

# All that a view holds, spelled out so that a field that is forgotten on both ways is missed here.
FIELDS = (
    "offset",
    "cluster",
    "base",
    "genesis",
    "level",
    "level_last",
    "removed_at",
    "bundles",
    "brokers",
    "namespaces",
    "policies",
    "live",
)

Entries = Sequence[tuple[int, bytes]]


def written(log: GapLog, channel: Channel) -> Channel:
    """Write a channel to a log, on from where it stands."""
    log.put(*(entry for entry in channel.entries if entry[0] > log.end()))
    return channel


def renewed(channel: Channel, times: int, *, broker: str = "a:1") -> Channel:
    """Let a broker renew."""
    for _ in range(times):
        channel.accept(propose.renewed(channel.author(broker), channel.broker(broker)))
    return channel


def in_an_hour() -> int:
    """The time at which all that was written just now is no longer of the newest ten minutes."""
    return time.time_ns() // 1_000_000 + 3_600_000


def compacted(
    log: Log,
    *,
    retain: Retention = NOTHING,
    step: Callable[[str], None] = lambda _: None,
    dry_run: bool = False,
) -> Compacted:
    """Compact a log as one that has been quiet for an hour."""
    return compact(
        log, retain=retain, timeout_ms=TIMEOUT_MS, step=step, dry_run=dry_run, now_ms=in_an_hour
    )


def fold(entries: Iterable[tuple[int, bytes]]) -> View:
    """The fold from zero."""
    view = View()
    for offset, data in entries:
        apply(view, offset, decode(data))
    return view


def reader_at_end(log: Log, *, own: View | None = None) -> Reader:
    """A reader that begins now, at the end of a log."""
    reader = restored(log, own=own)
    read_on(log, reader, deadline=soon())
    return reader


def restored_to_end(log: Log, *, own: View | None = None) -> View:
    """What a reader that begins now comes to at the end of a log."""
    return reader_at_end(log, own=own).view


def all_of(view: View) -> dict[str, object]:
    """All that a view holds, its digest, and what its indexes say."""
    return {name: getattr(view, name) for name in FIELDS} | {
        "digest": view.digest(),
        "ranges": {
            name: [bundle.name for bundle in view.bundles_of(name)] for name in view.namespaces
        },
        "held": {incarnation: view.held_by(incarnation) for incarnation in view.live},
        "unsettled": view.unsettled(),
    }


def image_of(log: Log) -> CompactedSnapshot:
    """What a log's snapshot holds, which was written."""
    image = log.compacted_snapshot().load()
    assert image is not None
    return image


def marker_in(log: Log) -> Marker:
    """The marker of a log's snapshot."""
    return decode_marker(image_of(log).marker)


def all_rows(view: View) -> dict[str, bytes]:
    """The rows of a snapshot that is written at once and whole."""
    return {key: data for key, data in rows_of(view, -1) if data is not None}


def write_snapshot(log: Log, view: View, *, copied: bool = False, clear: bool = False) -> None:
    """Write the snapshot of a view at once and whole, whatever stands on the log; with `clear` in
    place of another one.
    """
    log.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)
    gone = image_of(log).rows.keys() - keys_of(view) if clear else ()
    log.compacted_snapshot().replace(
        rows_of(view, -1, gone),
        encode_marker(marker_of(view, log=log.identity, copied=copied)),
        timeout_ms=TIMEOUT_MS,
    )


def begin_copy(log: Log, channel: Channel, *, base: int) -> Log:
    """Make a new log the copy of a channel, which goes on above `base`; the channel's view becomes
    the copy's.
    """
    view = channel.view
    view.go_on_above(base, level=view.level, level_last=view.level_last)
    write_snapshot(log, view, copied=True)
    log.append(
        [
            encode(
                propose.genesis(
                    Author(publisher="admin:ops"), cluster=CLUSTER, base=base, level=view.level
                )
            )
        ],
        timeout_ms=TIMEOUT_MS,
    )
    return log


def digests_of(entries: Iterable[tuple[int, bytes]]) -> dict[int, int]:
    """The digest of the view after each record, folded from zero."""
    view = View()
    digests: dict[int, int] = {}
    for offset, data in entries:
        apply(view, offset, decode(data))
        digests[view.offset] = view.digest()
    return digests


def told_by(log: Log) -> dict[int, int]:
    """The digests of all views that can still be told: of that from which the story is known, and
    after each record from there on.
    """
    reader = earliest(log)
    digests = {} if reader.view.offset < 0 else {reader.view.offset: reader.view.digest()}
    while entries := log.read(reader.position, limit=READ_ENTRIES_MAX):
        for entry in entries:
            reader.feed(entry)
            digests[reader.view.offset] = reader.view.digest()
    return digests


def untold(log: Log) -> list[int]:
    """The positions of the records that stand on the log below that from which it can be told."""
    known_from, position = earliest(log).position, log.start()
    offsets: list[int] = []
    while position < known_from and (entries := log.read(position, limit=READ_ENTRIES_MAX)):
        offsets += [entry.offset for entry in entries if entry.offset < known_from]
        position = entries[-1].offset + 1
    return offsets
