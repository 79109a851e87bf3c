"""Choose where a reader begins, so that it folds as little as possible and never guesses.

It begins with its own snapshot, the channel's compacted or history snapshot, or the log's first
record. If none of them leads to the log's present end, `ChannelIncomplete` is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import ChannelIncomplete, CompactedSnapshotDamaged
from equipoise.channel.core.log import (
    FIRST_OFFSET,
    LOADS_MAX,
    Check,
    CompactedSnapshot,
    Log,
    Progress,
    unchecked,
    unwatched,
)
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import (
    Marker,
    base_of,
    check_log,
    decode_marker,
    has_whole_channel,
    history_snapshot_of,
    is_whole,
    view_of,
)

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """Where a reader begins. `marker` is the snapshot's; None for the log's first record.

    `rows` are the snapshot's rows, even if it cannot be used: a replacement needs its keys.
    """

    reader: Reader
    marker: Marker | None
    rows: Mapping[str, bytes]


def restored(
    log: Log,
    *,
    cluster: str | None = None,
    own: View | None = None,
    check: Check = unchecked,
    progress: Progress = unwatched,
) -> Reader:
    """Return a reader that can fold the rest of `log` and has read nothing of it yet.

    It goes on from `own` (a view restored from a snapshot) if the log leads on from it, else as
    `restoration`. Raises what that raises, and `LogWentBack`.
    """
    if own is not None and own.offset >= 0 and _leads_on(log, own.offset - own.base):
        return Reader(log=log.name, cluster=cluster, view=own)
    return restoration(log, cluster=cluster, check=check, progress=progress).reader


def _leads_on(log: Log, last: int) -> bool:
    """Return whether the log still has the entries above `last`, and the one at `last`, which a
    power failure may have undone.
    """
    start = log.start()
    if last + 1 <= start:
        return last + 1 == start
    entries = log.read(last, limit=1)
    return bool(entries) and entries[0].offset == last


def earliest(
    log: Log,
    *,
    cluster: str | None = None,
    check: Check = unchecked,
    progress: Progress = unwatched,
) -> Reader:
    """As `restored`, but for questions about the past: see `beginning`."""
    return beginning(log, cluster=cluster, check=check, progress=progress).reader


def beginning(
    log: Log,
    *,
    cluster: str | None = None,
    check: Check = unchecked,
    progress: Progress = unwatched,
) -> Restoration:
    """Return the earliest start for what is left of `log`: zero, else the history snapshot, else
    `restoration`.

    A damaged history snapshot is left out with a warning: only the past needs it. Raises what
    `restoration` raises.
    """
    if has_whole_channel(log):
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
            "the history of the log %s begins at its snapshot, because its history snapshot cannot"
            " be used: %s",
            log.name,
            history_snapshot.problem,
        )
    return restoration(log, cluster=cluster, check=check, progress=progress)


def restoration(
    log: Log,
    *,
    cluster: str | None = None,
    check: Check = unchecked,
    progress: Progress = unwatched,
) -> Restoration:
    """Return the compacted snapshot's view if the log still has the next position, else a start
    from zero if the log is whole.

    A log is whole if it has its beginning and is not a copy: a copy begins with its snapshot. A log
    with a snapshot and no genesis may be the rest of a copy, so it is whole only if the snapshot is
    another log's.

    Raises `ChannelIncomplete` if neither leads on; `OperatorError` if `cluster` is given and the
    snapshot is another's; `LevelTooNew`; and what `check`, `Log.read` and `SnapshotStore.load`
    raise.
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
        return Restoration(
            reader=Reader(log=log.name, cluster=cluster, view=view), marker=marker, rows=image.rows
        )
    if not is_whole(log) or (
        problem is not None and base_of(log) is None and not _is_foreign(log, image)
    ):
        raise _incomplete(log, problem or "it has no snapshot")
    if problem is not None:
        _logger.warning("the log %s is folded from its beginning: %s", log.name, problem)
    return Restoration(
        reader=Reader(log=log.name, cluster=cluster),
        marker=None,
        rows={} if image is None else image.rows,
    )


def _marker(log: Log, image: CompactedSnapshot) -> Marker:
    """Return the marker, if it belongs to this log and the log leads on from it. Raises
    `CompactedSnapshotDamaged`.
    """
    marker = decode_marker(image.marker)
    check_log(marker, log.identity)
    start = log.start()
    if marker.position < start:
        raise CompactedSnapshotDamaged(
            problem=(
                f"it covers the records below offset {marker.position}, but the log begins at"
                f" {start}"
            )
        )
    return marker


def _is_foreign(log: Log, image: CompactedSnapshot | None) -> bool:
    """Return whether a snapshot, if loaded, is certainly another log's."""
    try:
        return image is not None and decode_marker(image.marker).log != log.identity
    except CompactedSnapshotDamaged:
        return False


def _incomplete(log: Log, problem: str) -> ChannelIncomplete:
    start = log.start()
    if start == FIRST_OFFSET:
        return ChannelIncomplete(
            log=log.name,
            first=FIRST_OFFSET,
            last=base_of(log),
            copied=True,
            compacted_snapshot=problem,
        )
    return ChannelIncomplete(
        log=log.name, first=FIRST_OFFSET, last=start - 1, compacted_snapshot=problem
    )
