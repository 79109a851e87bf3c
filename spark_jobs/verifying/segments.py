"""The plan of a verification: an archive cut at its snapshots into segments, which are folded independently of one another.

May live here: the values that the plan is made of, and how it is made.

A segment begins with the view of one snapshot, and must come to the digest of the next. The snapshot itself is proved by the segment
before it: so if every segment holds, then so does the whole, from the first snapshot to the last. Records before the first snapshot are
folded from an empty view, if they begin where the log began; those after the last one are held against the digests of renewals alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One snapshot of the archive: the view after the record at `offset`, whose digest is `digest` (decimal digits).

    `at_ms` is the log's time there, and `file` where the snapshot itself is to be read.
    """

    offset: int
    at_ms: int
    digest: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile:
    """One file of records: `rows` of them, of offsets from `first` to `last`."""

    path: str
    first: int
    last: int
    rows: int


def with_unreadable(files: Sequence[RecordFile | str], *, last: int) -> list[RecordFile]:
    """Files in the order of the log, some of which cannot be read, and are given by their path alone.

    Of such a one it is known where it stands: it may hold all that its neighbours leave out, or, at the end, what is there up to `last`.
    So the segments that need it fail by it, and those beside it are folded. One that nothing is missing for is left out.
    """
    found: list[RecordFile] = []
    below = 0
    for place, file in enumerate(files):
        if isinstance(file, RecordFile):
            found.append(file)
            below = file.last + 1
            continue
        end = next((after.first - 1 for after in files[place:] if isinstance(after, RecordFile)), max(last, below))
        if below <= end:
            found.append(RecordFile(path=file, first=below, last=end, rows=end - below + 1))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The records above `opening` up to `closing`, both included in neither or the other: `(opening.offset, closing.offset]`.

    Without `opening` it begins with the archive's first record, without `closing` it ends with the last. `files` are those in which
    its records are, in the order of the log. `rows` is how many there are at most.
    """

    number: int
    opening: Mark | None
    closing: Mark | None
    files: tuple[str, ...]
    rows: int

    @property
    def first(self) -> int:
        """The least offset that a record of it may have."""
        return 0 if self.opening is None else self.opening.offset + 1

    @property
    def last(self) -> int | None:
        """The greatest offset that a record of it may have; None for whatever comes."""
        return None if self.closing is None else self.closing.offset


def plan(
    marks: Sequence[Mark], files: Sequence[RecordFile], *, from_ms: int | None = None, to_ms: int | None = None
) -> tuple[Segment, ...]:
    """The segments of an archive, in order; of those that lie between two times (Unix, `to_ms` not included) all that are touched."""
    distinct = {mark.offset: mark for mark in marks}
    ordered = [distinct[offset] for offset in sorted(distinct)]
    times = [mark.at_ms for mark in ordered]
    # A record of exactly this time may stand on either side of a snapshot of this time: so both sides are taken.
    first = 0 if from_ms is None else bisect_left(times, from_ms)
    last = len(ordered) if to_ms is None else bisect_right(times, to_ms - 1)
    edges: list[Mark | None] = [None, *ordered, None]
    chosen = list(pairwise(edges))[first : last + 1]
    holders = _Holders(files)
    segments: list[Segment] = []
    for opening, closing in chosen:
        touched = holders.between(opening, closing)
        if touched or closing is not None:
            segments.append(_segment(len(segments), opening, closing, touched))
    return tuple(segments)


def placed_anew(segments: Sequence[Segment], marks: Sequence[Mark], files: Sequence[RecordFile]) -> tuple[Segment, ...]:
    """The same segments, as their records and snapshots lie now: somebody has joined files into others."""
    now, holders = {mark.offset: mark for mark in marks}, _Holders(files)
    placed = []
    for segment in segments:
        opening = None if segment.opening is None else now.get(segment.opening.offset, segment.opening)
        placed.append(_segment(segment.number, opening, segment.closing, holders.between(opening, segment.closing)))
    return tuple(placed)


class _Holders:
    """Which files hold the records between two snapshots, found without a look at all of them."""

    def __init__(self, files: Sequence[RecordFile]) -> None:
        self._files = sorted(files, key=lambda file: (file.first, file.last))
        self._starts = [file.first for file in self._files]
        self._ends = list(accumulate((file.last for file in self._files), max))

    def between(self, opening: Mark | None, closing: Mark | None) -> list[RecordFile]:
        """Those that hold a record above the one and up to the other, in the order of the log."""
        low = -1 if opening is None else opening.offset
        begin = bisect_right(self._ends, low)
        end = len(self._files) if closing is None else bisect_right(self._starts, closing.offset)
        return [file for file in self._files[begin:end] if file.last > low]


def _segment(number: int, opening: Mark | None, closing: Mark | None, files: Sequence[RecordFile]) -> Segment:
    low, high = -1 if opening is None else opening.offset, None if closing is None else closing.offset
    rows = sum(_rows_within(file, low, high) for file in files)
    return Segment(number=number, opening=opening, closing=closing, files=tuple(file.path for file in files), rows=rows)


def _rows_within(file: RecordFile, low: int, high: int | None) -> int:
    """About how many rows of a file lie above `low` and up to `high`: offsets have gaps, so this is for a progress bar."""
    first, last = max(file.first, low + 1), file.last if high is None else min(file.last, high)
    return max(1, file.rows * (last - first + 1) // (file.last - file.first + 1))
