"""Replay one segment from the view of its first snapshot to the digest of its last.

What is compared:

* Offsets rise.
* The archived verdict of each record equals the fold's.
* The digest in each renewal equals the view's.
* At the end, the digest equals the next snapshot's.

A segment ends at its first difference, because later results mean nothing. A renewal is the
exception: one broker wrote its digest and may have forged it, so the replay goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import SnapshotDamaged
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.core.records import LEVEL_SUPPORTED, Genesis, Renewed
from equipoise.channel.core.view import View, apply
from equipoise.spark_jobs.rules.rule import ACCEPTED, NOT_FOLDED
from equipoise.spark_jobs.verifying.segments import Mark, Segment

Kind = Literal["damaged", "missing", "order", "verdict", "renewal", "digest"]


class Rows(NamedTuple):
    """Records in order: their logical offsets, bytes and verdicts, in columns of equal length."""

    offsets: Sequence[int]
    bodies: Sequence[bytes | None]
    verdicts: Sequence[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A defect of an archive, somewhere in the records from `first` to `last`.

    For an unreadable `file` (`damaged`) its records are unknown, so there are no offsets.
    """

    kind: Kind
    text: str
    first: int | None = None
    last: int | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of replaying one segment.

    * `agreements`: the number of renewals whose digest equals the view's.
    * `trusted`: the number of records that could not be replayed, because the archive begins after
      the log's beginning.
    """

    number: int
    records: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    agreements: int = 0
    trusted: int = 0
    last: int | None = None
    differences: tuple[Difference, ...] = ()


class Replay:
    """Replay one segment, batch by batch."""

    def __init__(self, segment: Segment, view: View | None) -> None:
        """Start from `view`, the view of the segment's first snapshot; None if it has none."""
        self._segment = segment
        self._view = view
        self._verdicts: Counter[str] = Counter()
        self._agreements = 0
        self._agreed_at = segment.first - 1
        self._trusted = 0
        self._last = segment.first - 1
        self._difference: Difference | None = None
        # The first renewal whose digest differs from the view's.
        self._claim: Difference | None = None

    @property
    def continues(self) -> bool:
        """Whether the replay needs further rows."""
        return self._difference is None

    def feed(self, rows: Rows) -> None:
        """Replay some rows."""
        if not rows.offsets or not self.continues:
            return
        if self._view is None:
            self._begin(rows)
        if self._view is None:
            self._trusted += len(rows.offsets)
            self._last = rows.offsets[-1]
            return
        self._difference = self._fold(self._view, _folded_ones(rows))
        self._verdicts.update(str(verdict) for verdict in rows.verdicts)

    def unreadable(self, kind: Kind, *, file: str, text: str) -> None:
        """Record that a file with the segment's rows or snapshot cannot be read."""
        if self.continues:
            self._difference = Difference(kind=kind, file=file, text=text)

    def checked(self) -> Checked:
        """Return the result, after the last rows."""
        if self.continues:
            self._difference = self._at_the_end()
        return Checked(
            number=self._segment.number,
            records=self._verdicts.total() + self._trusted,
            verdicts=dict(self._verdicts),
            agreements=self._agreements,
            trusted=self._trusted,
            last=self._last if self._last >= self._segment.first else None,
            # Report this next to the renewal: it may follow from the same record, or be a different
            # defect further on.
            differences=tuple(each for each in (self._claim, self._difference) if each is not None),
        )

    def _begin(self, rows: Rows) -> None:
        """Start from an empty view if the archive's first records are also the log's first."""
        first = decode(rows.bodies[0] or b"")
        if rows.offsets[0] == FIRST_OFFSET or (isinstance(first, Genesis) and first.base == 0):
            self._view = View()

    def _fold(self, view: View, rows: Rows) -> Difference | None:
        """Replay rows until the first difference. The hot loop: nine tenths of a log are matching
        renewals, at two comparisons each.
        """
        last, agreed_at, agreements = self._last, self._agreed_at, 0
        try:
            for offset, body, archived in zip(*rows, strict=True):
                if offset <= last:
                    return _out_of_order(offset, last)
                if view.level > LEVEL_SUPPORTED:
                    return _past_the_end(offset, view)
                record = decode(body or b"")
                verdict = apply(view, offset, record)
                last = offset
                reason = verdict.reason
                if archived != (ACCEPTED if reason is None else reason):
                    return _other_verdict(offset, archived, ACCEPTED if reason is None else reason)
                if type(record) is Renewed and reason is None:
                    if verdict.diverged:
                        self._claim = self._claim or _other_digest(offset, record, agreed_at)
                        continue
                    agreements += 1
                    agreed_at = max(agreed_at, record.expected_offset)
        finally:
            self._last, self._agreed_at = last, agreed_at
            self._agreements += agreements
        return None

    def _at_the_end(self) -> Difference | None:
        closing = self._segment.closing
        if closing is None or self._trusted:
            return None
        if self._view is None:
            text = f"no record leads to the snapshot at offset {closing.offset}"
            return Difference(
                kind="missing", first=self._segment.first, last=closing.offset, text=text
            )
        if self._last != closing.offset:
            text = (
                f"the record of the snapshot at offset {closing.offset} is missing; the last record"
                f" before it is at {self._last}"
            )
            return Difference(kind="missing", first=self._last + 1, last=closing.offset, text=text)
        found = str(self._view.digest())
        if found == closing.digest:
            return None
        text = (
            f"the replay to offset {closing.offset} has digest {found}, but the snapshot"
            f" {closing.digest}: one of these records differs from the log's, or some of them were"
            " lost before they were archived"
        )
        return Difference(kind="digest", first=self._agreed_at + 1, last=closing.offset, text=text)


def check_opening(mark: Mark, view: View) -> None:
    """Raise `SnapshotDamaged` unless the view matches its row in the archive."""
    if (view.offset, str(view.digest())) != (mark.offset, mark.digest):
        problem = (
            f"its row promises digest {mark.digest} at offset {mark.offset}, but it has"
            f" {view.digest()} at {view.offset}"
        )
        raise SnapshotDamaged(problem=problem)


def _folded_ones(rows: Rows) -> Rows:
    """Return the rows that the archive's reader folded."""
    if NOT_FOLDED not in rows.verdicts:
        return rows
    kept = [row for row in zip(*rows, strict=True) if row[2] != NOT_FOLDED]
    return Rows([row[0] for row in kept], [row[1] for row in kept], [row[2] for row in kept])


def _out_of_order(offset: int, last: int) -> Difference:
    text = f"it follows offset {last} in the archive: a record is duplicate, or out of order"
    return Difference(kind="order", first=offset, last=offset, text=text)


def _past_the_end(offset: int, view: View) -> Difference:
    text = (
        f"the channel was closed, or raised to format version {view.level}, at offset"
        f" {view.level_last}: later records can have no verdict"
    )
    return Difference(kind="verdict", first=offset, last=offset, text=text)


def _other_verdict(offset: int, archived: str | None, found: str) -> Difference:
    text = f"its verdict in the archive is {archived}, but {found} in the replay"
    return Difference(kind="verdict", first=offset, last=offset, text=text)


def _other_digest(offset: int, record: Renewed, agreed_at: int) -> Difference:
    """Describe a renewal whose digest differs. The digest is that of its author's view just after
    the record at its expected offset.
    """
    at = record.expected_offset
    first = agreed_at + 1 if agreed_at < at else offset
    text = (
        f"the renewal of {record.publisher} at offset {offset} has another digest than the view at"
        f" {at}: one of the records from {first} on, or that renewal itself, differs from the"
        " log's, or that broker had another view"
    )
    return Difference(kind="renewal", first=first, last=offset, text=text)
