"""Compact a log: shorten it without changing the view that it folds to.

`channel.snapshots.snapshot_rows` decides what is written, and `retention` what may be cut. A
snapshot is written in one transaction and read back, before the log or rows that it replaces are
removed.

How a log is compacted
1. Claim the compacted snapshot: no older compactor can write from here on.
2. Restore the view from the snapshot, or from the log's beginning if there is no usable one.
3. Fold the log to its present end: the horizon.
4. Compare the digests that brokers wrote with the view's. Stop if a broker disagrees.
5. Choose the cut from the new marker, the retention, and the holds of archives.
6. Move the history snapshot, the view from which the retained records are folded, to the cut. Read
   it back. It may need rows that step 8 replaces, and step 10 needs it.
7. Encode the rows changed since the snapshot's horizon, and tombstones for removed keys.
8. Write rows and marker in one transaction.
9. Read the snapshot back: it must be equal byte for byte. From here on the log's beginning is not
   needed.
10. Compare the cut with the marker that was read back.
11. Truncate the log. It must then begin at the cut.

The compactor may die at any point. Before step 8 the only change is a history snapshot above the
log's beginning. After it the next compactor finds nothing to write and goes on with step 10.

The history snapshot is the view just below the log's beginning, from which the retained records are
folded, so that they keep their verdicts. `channel.snapshots.restore` is the reader's side.

Its invariants
* The log begins at the history snapshot's position or below: nobody cuts above it or moves it down.
  So every record from it on exists. A history snapshot below the log's beginning is obsolete: the
  compacted snapshot covers all that is left.
* A log that has its beginning and is not a copy needs none: it is folded from zero. If the cut is
  at the compacted snapshot's horizon, that snapshot replaces it.
* A log without a kept past (a copy, or a log that was cut without it) takes its compacted snapshot,
  before that is replaced. So does a log with a damaged record that only the past needs.

How it is moved
1. Look at the history snapshot. If it stands at the cut or above, leave it: another compactor moved
   it and died.
2. Claim it and look again: another compactor may have moved it meanwhile.
3. Fold the view at the cut, from the highest view below: the compacted snapshot's, the history
   snapshot's, or zero.
4. Write the rows that differ, tombstones for removed keys, and the marker in one transaction.
5. Read it back: it must be equal byte for byte.

If no record stands just below the cut, the history snapshot's position is lower and becomes the
cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from equipoise.channel.core.errors import LogDamaged, SnapshotFenced, compaction_refused
from equipoise.channel.core.log import (
    FIRST_OFFSET,
    LOADS_MAX,
    READ_ENTRIES_MAX,
    Check,
    CompactedSnapshot,
    Log,
    Progress,
    SnapshotRow,
    SnapshotStore,
    replaced,
    unchecked,
    unwatched,
)
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import Renewed
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.restore import Restoration, restoration
from equipoise.channel.snapshots.snapshot_rows import (
    CHECKPOINTS_MAX,
    FoundSnapshot,
    Marker,
    decode_marker,
    encode_marker,
    has_whole_channel,
    history_snapshot_of,
    keys_of,
    marker_of,
    rows_of,
    view_of,
)
from equipoise.compaction.retention import Retention, check_cut, cut_position, holds_in, newest_ms


class Step(StrEnum):
    """The last completed step of a compaction, in this order. Tests let it die at each."""

    BEGUN = "begun"
    CLAIMED = "claimed"
    LOADED = "loaded"
    FOLDED = "folded"
    AGREED = "agreed"
    CUT_CHOSEN = "cut_chosen"
    HISTORY_CLAIMED = "history_claimed"
    HISTORY_FOLDED = "history_folded"
    HISTORY_FIRST_ROW = "history_first_row"
    HISTORY_LAST_ROW = "history_last_row"
    HISTORY_REPLACED = "history_replaced"
    HISTORY_READ_BACK = "history_read_back"
    ENCODED = "encoded"
    FIRST_ROW = "first_row"
    LAST_ROW = "last_row"
    REPLACED = "replaced"
    READ_BACK = "read_back"
    CUT_CHECKED = "cut_checked"
    TRUNCATED = "truncated"
    START_VERIFIED = "start_verified"


class Writing(NamedTuple):
    """The name of what is written, and the steps of the write."""

    what: str
    first_row: Step
    last_row: Step
    replaced: Step
    read_back: Step


SNAPSHOT: Final = Writing("snapshot", Step.FIRST_ROW, Step.LAST_ROW, Step.REPLACED, Step.READ_BACK)
HISTORY: Final = Writing(
    "history snapshot",
    Step.HISTORY_FIRST_ROW,
    Step.HISTORY_LAST_ROW,
    Step.HISTORY_REPLACED,
    Step.HISTORY_READ_BACK,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scribe:
    """Writes for one compaction of `log`. `timeout_ms` bounds each wait for other writers; `step`
    is called after each step.
    """

    log: Log
    timeout_ms: int
    step: Callable[[str], None]
    check: Check

    def write(
        self,
        store: SnapshotStore,
        rows: Iterable[SnapshotRow],
        meant: CompactedSnapshot,
        *,
        writing: Writing,
    ) -> None:
        """Write these rows and the marker of `meant` to the claimed snapshot. Check that it then
        equals `meant`.

        Raises `SnapshotFenced`, also if another compactor has written since; `OperatorError`;
        and what `SnapshotStore` raises.
        """
        store.replace(self._announced(rows, writing), meant.marker, timeout_ms=self.timeout_ms)
        self.step(writing.replaced)
        self._read_back(store, meant, writing)

    def _announced(self, rows: Iterable[SnapshotRow], writing: Writing) -> Iterator[SnapshotRow]:
        """Yield the rows, and report the steps while the store asks for them."""
        is_first = True
        for row in rows:
            yield row
            if is_first:
                self.step(writing.first_row)
                is_first = False
        self.step(writing.last_row)

    def _read_back(self, store: SnapshotStore, meant: CompactedSnapshot, writing: Writing) -> None:
        found: CompactedSnapshot | None = None
        for _ in range(LOADS_MAX):
            found = store.load(check=self.check)
            if found == meant:
                # As any reader would, so that an encoding error is found before it is too late.
                view_of(meant, check=self.check)
                self.step(writing.read_back)
                return
        if (
            found is not None
            and decode_marker(found.marker).horizon > decode_marker(meant.marker).horizon
        ):
            raise SnapshotFenced(log=self.log.name)
        raise compaction_refused(
            log=self.log.name,
            problem=f"what its {writing.what} holds is not what was written to it just now",
            remedy=f"nothing was removed; look at the {writing.what}'s storage, then run it again",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshotMove:
    """One move of the history snapshot of the log that `scribe` writes for. `begun` is the
    compacted snapshot as found.
    """

    scribe: Scribe
    cluster: str | None
    begun: Restoration
    dry_run: bool

    def up_to(self, cut: int, marker: Marker) -> int:
        """Move the history snapshot to position `cut`, if needed. Return the position below which
        the log may be cut.

        `marker` is the next compacted snapshot's. Raises what `Scribe.write`, `Reader.feed` and the
        ports raise, and `LogTruncated` if another compactor cut the log meanwhile.
        """
        log = self.scribe.log
        from_zero = has_whole_channel(log)
        if cut == marker.position or (from_zero and cut == FIRST_OFFSET):
            return cut
        history_snapshot = self._look()  # 1.
        if _reaches(history_snapshot, cut) or (
            history_snapshot.marker is None and not from_zero and self.begun.marker == marker
        ):
            return cut
        if not self.dry_run:
            log.history_snapshot().claim(timeout_ms=self.scribe.timeout_ms)  # 2.
            self.scribe.step(Step.HISTORY_CLAIMED)
            history_snapshot = self._look()
            if _reaches(history_snapshot, cut):
                return cut
        view = self._view_at(cut, history_snapshot, from_zero=from_zero)  # 3.
        self.scribe.step(Step.HISTORY_FOLDED)
        if view.genesis is None:  # Nothing of the channel stands below the cut.
            return log.start()
        if not self.dry_run:
            self._write(history_snapshot, view)
        return min(cut, _position_after(view))

    def _look(self) -> FoundSnapshot:
        return history_snapshot_of(self.scribe.log, check=self.scribe.check)

    def _view_at(self, cut: int, history_snapshot: FoundSnapshot, *, from_zero: bool) -> View:
        """Return the view from which a reader goes on at `cut`. If a record below is damaged,
        return the compacted snapshot's view.
        """
        try:
            return self._folded_to(cut, history_snapshot, from_zero=from_zero)
        except LogDamaged:
            present = self._present()
            if present is None:
                raise
            return present

    def _folded_to(self, cut: int, history_snapshot: FoundSnapshot, *, from_zero: bool) -> View:
        log = self.scribe.log
        reader = Reader(
            log=log.name,
            cluster=self.cluster,
            view=self._highest_below(cut, history_snapshot, from_zero=from_zero),
        )
        while reader.position < cut and (
            entries := log.read(reader.position, limit=READ_ENTRIES_MAX)
        ):
            self.scribe.check()
            for entry in entries:
                if entry.offset >= cut:
                    return reader.view
                reader.feed(entry)
        return reader.view

    def _highest_below(
        self, cut: int, history_snapshot: FoundSnapshot, *, from_zero: bool
    ) -> View | None:
        """Return the view to begin with, or None for zero."""
        marker = self.begun.marker
        lowest = history_snapshot.view is None and not from_zero
        return (
            self._present()
            if marker is not None and (lowest or marker.position <= cut)
            else history_snapshot.view
        )

    def _present(self) -> View | None:
        """Return the view of the compacted snapshot as found, if usable."""
        marker, rows = self.begun.marker, self.begun.rows
        return (
            None
            if marker is None
            else view_of(
                CompactedSnapshot(marker=encode_marker(marker), rows=rows), check=self.scribe.check
            )
        )

    def _write(self, history_snapshot: FoundSnapshot, view: View) -> None:
        """Run steps 4 and 5."""
        log = self.scribe.log
        rows = {key: data for key, data in rows_of(view, -1) if data is not None}
        changed = [
            SnapshotRow(key, data)
            for key, data in rows.items()
            if history_snapshot.rows.get(key) != data
        ]
        gone = [
            SnapshotRow(key, None) for key in sorted(history_snapshot.rows.keys() - rows.keys())
        ]
        meant = CompactedSnapshot(
            marker=encode_marker(marker_of(view, log=log.identity)), rows=rows
        )
        self.scribe.write(log.history_snapshot(), [*changed, *gone], meant, writing=HISTORY)


def _reaches(history_snapshot: FoundSnapshot, cut: int) -> bool:
    return history_snapshot.marker is not None and history_snapshot.marker.position >= cut


def _position_after(view: View) -> int:
    return view.offset - view.base + 1


RECORDS_BETWEEN: Final = 8_000
"""Records between two checkpoints, at most. Up to this much more than requested is kept: 2 MB."""

Checkpoint = tuple[int, int]
"""A logical offset, and the size in bytes of all records up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a compaction, or of a `dry_run`.

    * `horizon`: the logical offset up to which the snapshot now holds everything, as a view of
      `digest` in `keys` rows. `horizon` and `digest` are None if no broker has begun the log.
    * `records` were folded; `rows` and `tombstones` were written.
    * `start_before`, `start`: the log's start before and after. `end`: the position of its last
      record.
    * `held_by`: the archive whose hold prevents a further cut. `lapsed`: the archives with outdated
      holds (`compaction.retention`).
    * `ahead`: the logical offset of the first folded record whose time is ahead of this machine's
      clock (`Log.ahead`).
    """

    horizon: int | None = None
    digest: int | None = None
    records: int
    keys: int = 0
    rows: int = 0
    tombstones: int = 0
    start_before: int
    start: int
    end: int
    dry_run: bool
    held_by: str | None = None
    lapsed: tuple[str, ...] = ()
    ahead: int | None = None


def compact(
    log: Log,
    *,
    retain: Retention,
    timeout_ms: int,
    cluster: str | None = None,
    dry_run: bool = False,
    step: Callable[[str], None] = lambda _: None,
    check: Check = unchecked,
    progress: Progress = unwatched,
    now_ms: Callable[[], int] | None = None,
) -> Compacted:
    """Compact `log`: fold it to its end, write the changes to its snapshot, and truncate it to what
    `retain` keeps.

    * `timeout_ms` bounds each wait for other writers, `check` the whole.
    * `progress` counts folded records.
    * `now_ms` is the time by the entries' clock, by default an estimate (`newest_ms`).
    * A `dry_run` changes nothing.
    * Of several compactions at once, all but one raise `SnapshotFenced` or find nothing to do.

    Raises `OperatorError`, `SnapshotFenced`, what `channel.snapshots.restore.restoration` and
    `Reader.feed` raise, and what `Log.append` raises for a log that cannot be written.
    """
    return _Compaction(
        scribe=Scribe(log=log, timeout_ms=timeout_ms, step=step, check=check),
        retain=retain,
        cluster=cluster,
        dry_run=dry_run,
        progress=progress,
        now_ms=now_ms,
    ).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fold:
    """The view at the horizon, and the counts of the fold."""

    view: View
    records: int
    bytes_below: int
    checkpoints: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The position of the cut, the archive whose hold prevents a further cut, and the archives
    whose holds have lapsed.
    """

    position: int
    held_by: str | None
    lapsed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compaction:
    """One compaction with its parameters."""

    scribe: Scribe
    retain: Retention
    cluster: str | None
    dry_run: bool
    progress: Progress
    now_ms: Callable[[], int] | None

    def run(self) -> Compacted:
        log = self.scribe.log
        start_before = log.start()
        self.scribe.step(Step.BEGUN)
        if not self.dry_run:
            log.compacted_snapshot().claim(timeout_ms=self.scribe.timeout_ms)
            self.scribe.step(Step.CLAIMED)
        begun = restoration(log, cluster=self.cluster, check=self.scribe.check)
        self.scribe.step(Step.LOADED)
        first, end = begun.reader.position, log.end()
        folded = self._fold(begun, end)
        done = Compacted(
            records=folded.records,
            start_before=start_before,
            start=start_before,
            end=end,
            dry_run=self.dry_run,
        )
        if folded.view.genesis is None:
            return done
        ahead = log.ahead(first)
        ahead = None if ahead is None else ahead + folded.view.base
        marker = self._marker(begun, folded)
        move = HistorySnapshotMove(
            scribe=self.scribe, cluster=self.cluster, begun=begun, dry_run=self.dry_run
        )
        chosen = self._chosen_cut(marker, folded.view)
        cut = move.up_to(chosen.position, marker)
        keys, rows, tombstones = self._write(begun, folded.view, marker)
        start = self._cut(marker, cut)
        return replace(
            done,
            horizon=marker.horizon,
            digest=marker.digest,
            keys=keys,
            rows=rows,
            tombstones=tombstones,
            start=start,
            held_by=chosen.held_by,
            lapsed=chosen.lapsed,
            ahead=ahead,
        )

    def _fold(self, begun: Restoration, end: int) -> _Fold:
        """Run steps 3 and 4."""
        log, reader, marker = self.scribe.log, begun.reader, begun.marker
        agreement = _Agreement(reader.view)
        records, bytes_below = 0, 0 if marker is None else marker.bytes_below
        checkpoints: dict[int, int] = (
            {}
            if marker is None
            else {**dict(marker.checkpoints), marker.horizon: marker.bytes_below}
        )
        total = max(0, end - reader.position + 1)
        # Read at least once: this detects a log that went back.
        entries = log.read(reader.position, limit=RECORDS_BETWEEN)
        while entries:
            for entry in entries:
                agreement.see(reader.feed(entry))
            records += len(entries)
            bytes_below += sum([len(entry.data) for entry in entries])
            checkpoints[reader.view.offset] = bytes_below
            self.progress(records, total)
            self.scribe.check()
            entries = (
                log.read(reader.position, limit=RECORDS_BETWEEN) if reader.position <= end else ()
            )
        self.scribe.step(Step.FOLDED)
        if agreement.problem is not None:
            remedy = (
                "find out which of them is wrong (equipoise channel verify), and stop that broker"
            )
            raise compaction_refused(log=log.name, problem=agreement.problem, remedy=remedy)
        self.scribe.step(Step.AGREED)
        return _Fold(
            view=reader.view,
            records=records,
            bytes_below=bytes_below,
            checkpoints=tuple(checkpoints.items()),
        )

    def _marker(self, begun: Restoration, folded: _Fold) -> Marker:
        """Return the snapshot's next marker, or the present one if it is up to date."""
        view, before, log = folded.view, begun.marker, self.scribe.log
        if before is not None and before.horizon == view.offset:
            return before
        checkpoints = kept_checkpoints(folded.checkpoints, first=log.start() + view.base - 1)
        return marker_of(
            view, log=log.identity, bytes_below=folded.bytes_below, checkpoints=checkpoints
        )

    def _chosen_cut(self, marker: Marker, view: View) -> _Cut:
        """Run step 5."""
        log, start = self.scribe.log, self.scribe.log.start()
        now_ms = (
            self.now_ms()
            if self.now_ms
            else newest_ms(log.position_at, end=log.end(), now_ms=time.time_ns() // 1_000_000)
        )
        cut = partial(
            cut_position,
            marker,
            start=start,
            retain=self.retain,
            position_at=log.position_at,
            now_ms=now_ms,
        )
        held = holds_in(view.policies, now_ms=now_ms)
        position = cut(held=held.position(view.base))
        is_held = held.by is not None and position < cut()
        self.scribe.step(Step.CUT_CHOSEN)
        return _Cut(position=position, held_by=held.by if is_held else None, lapsed=held.lapsed)

    def _write(self, begun: Restoration, view: View, marker: Marker) -> tuple[int, int, int]:
        """Run steps 7, 8 and 9, unless the snapshot is up to date. Return the counts of its keys,
        and of written rows and tombstones.
        """
        before = begun.marker
        if before == marker:
            return len(begun.rows), 0, 0
        gone = sorted(begun.rows.keys() - keys_of(view))
        rows = list(rows_of(view, -1 if before is None else before.horizon, gone))
        self.scribe.step(Step.ENCODED)
        meant = CompactedSnapshot(marker=encode_marker(marker), rows=replaced(begun.rows, rows))
        if not self.dry_run:
            self.scribe.write(self.scribe.log.compacted_snapshot(), rows, meant, writing=SNAPSHOT)
        return len(meant.rows), len(rows) - len(gone), len(gone)

    def _cut(self, marker: Marker, cut: int) -> int:
        """Run steps 10 and 11. Return the position at which the log then begins."""
        log = self.scribe.log
        # Otherwise the cut removes nothing. Another compactor may have cut further than this
        # snapshot reaches.
        if cut > log.start():
            check_cut(marker, cut, log=log.name)
        self.scribe.step(Step.CUT_CHECKED)
        if self.dry_run:
            return cut
        # Also if the log begins there already: a compactor that died while truncating may have left
        # entries below.
        log.truncate(cut, timeout_ms=self.scribe.timeout_ms)
        self.scribe.step(Step.TRUNCATED)
        found = log.start()
        if found < cut:
            problem = f"it was to begin at offset {cut} and begins at {found}"
            raise compaction_refused(
                log=log.name, problem=problem, remedy="nothing is lost; run it again"
            )
        self.scribe.step(Step.START_VERIFIED)
        return found


class _Agreement:
    """Compares the digests in renewals with the view that folds them.

    A broker disagrees from its first differing renewal until one that agrees again. If it dies
    meanwhile, its view is gone. Only another broker's agreement then shows that its view was the
    wrong one.
    """

    def __init__(self, view: View) -> None:
        """`view` is the view that folds the records passed to `see`."""
        self._view = view
        self._disagreeing: dict[int, tuple[str, int]] = {}  # By incarnation: broker and offset.

    def see(self, folded: Folded) -> None:
        """Check one record that was just folded."""
        record = folded.record
        if (
            type(record) is not Renewed
            or folded.verdict.reason is not None
            or record.incarnation is None
        ):
            return
        if folded.verdict.diverged:
            self._disagreeing[record.incarnation] = record.publisher, folded.offset
        elif self._disagreeing:
            live = self._view.live
            known = self._disagreeing.items()
            self._disagreeing = {
                incarnation: who
                for incarnation, who in known
                if incarnation in live and incarnation != record.incarnation
            }

    @property
    def problem(self) -> str | None:
        """Which broker disagrees; None if none does."""
        if not self._disagreeing:
            return None
        broker, offset = min(self._disagreeing.values(), key=lambda who: who[1])
        return (
            f"broker {broker} reported at offset {offset} a view that differs from the fold of"
            " the log"
        )


def kept_checkpoints(checkpoints: Iterable[Checkpoint], *, first: int) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that a marker keeps: those from logical offset `first`, the log's
    start, on.

    If there are too many, keep every second and the newest.
    """
    left = [checkpoint for checkpoint in checkpoints if checkpoint[0] >= first]
    while len(left) > CHECKPOINTS_MAX:
        left = left[::-1][::2][::-1]
    return tuple(left)
