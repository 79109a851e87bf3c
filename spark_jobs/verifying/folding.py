"""The folding of one segment: from the view of its first snapshot, record by record, to the digest of its last.

May live here: the fold of a segment, and what it compares. Where the rows come from is `spark_jobs.verifying.job`.

What is compared: offsets rise; the verdict that the archive holds is the fold's; the digest that each renewal says is that of the view;
and at the end the digest is that of the next snapshot. A segment ends at the first difference, since what follows it means nothing;
but what a renewal says is one broker's word, which anybody may forge: after it the segment is read on.
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
from equipoise.spark_jobs.sequence.sequence import NOT_FOLDED
from equipoise.spark_jobs.sequence.telling import ACCEPTED
from equipoise.spark_jobs.verifying.segments import Mark, Segment

Kind = Literal["damaged", "gone", "missing", "order", "verdict", "renewal", "digest"]


class Rows(NamedTuple):
    """Some records in order: their logical offsets, their bytes as they stood on the log, and their verdicts, each as long."""

    offsets: Sequence[int]
    bodies: Sequence[bytes | None]
    verdicts: Sequence[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where an archive is not what it should be: the records from `first` to `last`, one of which is to blame, and `text`.

    Of a `file` that cannot be read (`damaged`, `gone`) it is not known which records are in it, and none is to blame.
    """

    kind: Kind
    text: str
    first: int | None = None
    last: int | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the folding of one segment came to. `agreements` counts renewals whose digest is the view's.

    `trusted` is how many records could not be folded, because the archive begins with them and not with the log's own beginning.
    """

    number: int
    records: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    agreements: int = 0
    trusted: int = 0
    last: int | None = None
    differences: tuple[Difference, ...] = ()


class Folding:
    """Folds one segment, batch by batch; `checked` is what it came to."""

    def __init__(self, segment: Segment, view: View | None) -> None:
        """Fold on from `view`, that of the segment's opening snapshot; None where it has none."""
        self._segment = segment
        self._view = view
        self._verdicts: Counter[str] = Counter()
        self._agreements = 0
        self._agreed_at = segment.first - 1
        self._trusted = 0
        self._last = segment.first - 1
        self._difference: Difference | None = None
        self._claim: Difference | None = None  # The first renewal whose digest is not the view's.

    @property
    def goes_on(self) -> bool:
        """Whether the next rows are wanted."""
        return self._difference is None

    def feed(self, rows: Rows) -> None:
        """Fold some rows."""
        if not rows.offsets or not self.goes_on:
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
        """The file with rows of this segment, or with its snapshot, cannot be read: it is damaged, or gone."""
        if self.goes_on:
            self._difference = Difference(kind=kind, file=file, text=text)

    def checked(self) -> Checked:
        """What it came to, after the last rows."""
        if self.goes_on:
            self._difference = self._at_the_end()
        return Checked(
            number=self._segment.number,
            records=self._verdicts.total() + self._trusted,
            verdicts=dict(self._verdicts),
            agreements=self._agreements,
            trusted=self._trusted,
            last=self._last if self._last >= self._segment.first else None,
            # What ended the folding is told beside a renewal: it may follow from the same record, or be of another, further on.
            differences=tuple(each for each in (self._claim, self._difference) if each is not None),
        )

    def _begin(self, rows: Rows) -> None:
        """The archive's first records: they can be folded if they are the log's first, too."""
        first = decode(rows.bodies[0] or b"")
        if rows.offsets[0] == FIRST_OFFSET or (isinstance(first, Genesis) and first.base == 0):
            self._view = View()

    def _fold(self, view: View, rows: Rows) -> Difference | None:
        """The hot loop: nine tenths of a log are renewals that agree, and pay for one comparison each of verdict and digest."""
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
                    agreed_at = max(agreed_at, record.based_on)
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
            return Difference(kind="missing", first=self._segment.first, last=closing.offset, text=text)
        if self._last != closing.offset:
            text = f"the snapshot at offset {closing.offset} is that of a record which is not there; the last before it is at {self._last}"
            return Difference(kind="missing", first=self._last + 1, last=closing.offset, text=text)
        found = str(self._view.digest())
        if found == closing.digest:
            return None
        text = (
            f"folded to offset {closing.offset} the view has digest {found}, and its snapshot {closing.digest}: one of these records is "
            "not what stood on the log, or some between them were lost before they were archived"
        )
        return Difference(kind="digest", first=self._agreed_at + 1, last=closing.offset, text=text)


def check_opening(mark: Mark, view: View) -> None:
    """Raise `SnapshotDamaged` unless a view is what its row of the archive says."""
    if (view.offset, str(view.digest())) != (mark.offset, mark.digest):
        problem = f"its row promises digest {mark.digest} at offset {mark.offset}, and it holds {view.digest()} at {view.offset}"
        raise SnapshotDamaged(problem=problem)


def _folded_ones(rows: Rows) -> Rows:
    """Without those that the archive's reader did not fold."""
    if NOT_FOLDED not in rows.verdicts:
        return rows
    kept = [row for row in zip(*rows, strict=True) if row[2] != NOT_FOLDED]
    return Rows([row[0] for row in kept], [row[1] for row in kept], [row[2] for row in kept])


def _out_of_order(offset: int, last: int) -> Difference:
    text = f"it stands in the archive after offset {last}: a record is there twice, or out of order"
    return Difference(kind="order", first=offset, last=offset, text=text)


def _past_the_end(offset: int, view: View) -> Difference:
    text = f"the channel was closed, or raised to level {view.level}, at offset {view.level_last}: nothing after it can have a verdict"
    return Difference(kind="verdict", first=offset, last=offset, text=text)


def _other_verdict(offset: int, archived: str | None, found: str) -> Difference:
    text = f"the archive says that it was {archived}, and folded again it is {found}"
    return Difference(kind="verdict", first=offset, last=offset, text=text)


def _other_digest(offset: int, record: Renewed, agreed_at: int) -> Difference:
    """A renewal says the digest that its author's view had just after the record that it is based on."""
    at = record.based_on
    first = agreed_at + 1 if agreed_at < at else offset
    text = (
        f"the renewal of {record.publisher} at offset {offset} says another digest than the view had at {at}: one of the records "
        f"from {first} on, or that renewal itself, is not what stood on the log, or that broker's view was another"
    )
    return Difference(kind="renewal", first=first, last=offset, text=text)
