"""Restore: where a reader of a channel begins, so that it folds as little as it can and never guesses.

May live here: the choice between a snapshot of one's own, the channel's snapshot, its history snapshot, and the log's beginning; and the
refusal where none of them leads to what the log says today.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import ChannelIncomplete, CompactedSnapshotDamaged
from equipoise.channel.core.log import FIRST_OFFSET, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot_store import LOADS_MAX, Check, CompactedSnapshot, Progress, unchecked, unwatched
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.history_snapshot import history_snapshot_of
from equipoise.channel.snapshots.snapshot_rows import Marker, check_log, decode_marker, view_of
from equipoise.channel.snapshots.whole import base_of, is_told_from_zero, is_whole

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """Where a reader begins. `marker` is that of the snapshot or history snapshot, or None for one that begins at the log's first record.

    `rows` are what the snapshot holds, also one that cannot be used: whoever replaces it has to know its keys.
    """

    reader: Reader
    marker: Marker | None
    rows: Mapping[str, bytes]


def restored(
    log: Log, *, cluster: str | None = None, own: View | None = None, check: Check = unchecked, progress: Progress = unwatched
) -> Reader:
    """A reader from which the rest of `log` can be folded, which has read nothing of that rest yet.

    It goes on from `own` (a view restored from a snapshot) if the log still has its position; else as `restoration` says,
    which also tells what is raised.
    """
    if own is not None and own.offset >= 0 and own.offset - own.base + 1 >= log.start():
        return Reader(log=log.name, cluster=cluster, view=own)
    return restoration(log, cluster=cluster, check=check, progress=progress).reader


def earliest(log: Log, *, cluster: str | None = None, check: Check = unchecked, progress: Progress = unwatched) -> Reader:
    """As `restored`, but for those who ask about the past: see `beginning`."""
    return beginning(log, cluster=cluster, check=check, progress=progress).reader


def beginning(log: Log, *, cluster: str | None = None, check: Check = unchecked, progress: Progress = unwatched) -> Restoration:
    """Where all that is left of `log` can be told from, however long it takes: zero, else the history snapshot, else as `restoration`.

    A history snapshot that is damaged is not needed to go on, only to look back: it is left out, with a warning. Raises what
    `restoration` raises.
    """
    if is_told_from_zero(log):
        return Restoration(reader=Reader(log=log.name, cluster=cluster), marker=None, rows={})
    history_snapshot = history_snapshot_of(log, check=check, progress=progress)
    if history_snapshot.view is not None:
        return Restoration(
            reader=Reader(log=log.name, cluster=cluster, view=history_snapshot.view),
            marker=history_snapshot.marker,
            rows=history_snapshot.rows,
        )
    if history_snapshot.problem is not None:
        _logger.warning(
            "the log %s is told from its snapshot on, because its history snapshot cannot be used: %s", log.name, history_snapshot.problem
        )
    return restoration(log, cluster=cluster, check=check, progress=progress)


def restoration(log: Log, *, cluster: str | None = None, check: Check = unchecked, progress: Progress = unwatched) -> Restoration:
    """The view of the snapshot, if the log still has the position after its horizon; else from zero, if the log is whole.

    A log is whole if it still has its beginning, and is no copy: the beginning of a copy is its snapshot. A log that has a snapshot and
    no genesis is whole only if the snapshot is another log's: it may be a copy of which no more is left.

    Raises `ChannelIncomplete` if neither leads on; `ForeignLog` if `cluster` is given and the snapshot is another's;
    `LevelTooNew`; what `check` raises; and what `Log.read` and `SnapshotStore.load` raise.
    """
    image: CompactedSnapshot | None = None
    problem: str | None = None
    for _ in range(LOADS_MAX):
        image, problem = None, None
        try:
            image = log.compacted_snapshot().load(check=check, progress=progress)
            if image is None:
                break
            marker = _marker(log, image)
            view = view_of(image, check=check)
        except CompactedSnapshotDamaged as error:
            problem = f"its snapshot cannot be used: {error.problem}"
            continue
        return Restoration(reader=Reader(log=log.name, cluster=cluster, view=view), marker=marker, rows=image.rows)
    if not is_whole(log) or (problem is not None and base_of(log) is None and not _is_foreign(log, image)):
        raise _incomplete(log, problem or "it has no snapshot")
    if problem is not None:
        _logger.warning("the log %s is folded from its beginning: %s", log.name, problem)
    return Restoration(reader=Reader(log=log.name, cluster=cluster), marker=None, rows={} if image is None else image.rows)


def _marker(log: Log, image: CompactedSnapshot) -> Marker:
    """The marker, if it is one of this log from which the log leads on. Raises `CompactedSnapshotDamaged`."""
    marker = decode_marker(image.marker)
    check_log(marker, log.identity)
    start = log.start()
    if marker.position < start:
        raise CompactedSnapshotDamaged(problem=f"it covers what is below offset {marker.position}, and the log begins only at {start}")
    return marker


def _is_foreign(log: Log, image: CompactedSnapshot | None) -> bool:
    """Whether a snapshot, if it could be loaded, is surely that of another log."""
    try:
        return image is not None and decode_marker(image.marker).log != log.identity
    except CompactedSnapshotDamaged:
        return False


def _incomplete(log: Log, problem: str) -> ChannelIncomplete:
    start = log.start()
    if start == FIRST_OFFSET:
        return ChannelIncomplete(log=log.name, first=FIRST_OFFSET, last=base_of(log), copied=True, compacted_snapshot=problem)
    return ChannelIncomplete(log=log.name, first=FIRST_OFFSET, last=start - 1, compacted_snapshot=problem)
