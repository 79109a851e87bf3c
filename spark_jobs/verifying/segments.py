"""Plan a verification: cut an archive at its snapshots into independent segments.

A segment begins with the view of one snapshot and must reach the digest of the next. The segment
before a snapshot proves it. So if every segment holds, the whole archive holds from the first
snapshot to the last.

* Records before the first snapshot are replayed from an empty view, if they begin where the log
  began.
* Records after the last snapshot are checked against the digests of renewals only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One archived snapshot: the view after the record at `offset`.

    * `digest`: the digest of the view, in decimal digits.
    * `at_ms`: the log's time at the snapshot.
    * `file`: the file that holds the snapshot.
    """

    offset: int
    at_ms: int
    digest: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile:
    """One file of `rows` records with offsets from `first` to `last`."""

    path: str
    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The records with offsets in `(opening.offset, closing.offset]`.

    * `opening`: None if the segment begins with the archive's first record.
    * `closing`: None if it ends with the last record.
    * `files`: the files that hold its records, in log order.
    * `rows`: an upper bound on its number of records.
    """

    number: int
    opening: Mark | None
    closing: Mark | None
    files: tuple[str, ...]
    rows: int

    @property
    def first(self) -> int:
        """The lowest possible offset of its records."""
        return 0 if self.opening is None else self.opening.offset + 1

    @property
    def last(self) -> int | None:
        """The highest possible offset of its records; None for no bound."""
        return None if self.closing is None else self.closing.offset


def plan(
    marks: Sequence[Mark],
    files: Sequence[RecordFile],
    *,
    from_ms: int | None = None,
    to_ms: int | None = None,
) -> tuple[Segment, ...]:
    """Return the segments of an archive in order. With times (Unix ms, `to_ms` exclusive) return
    those that touch the period.
    """
    distinct = {mark.offset: mark for mark in marks}
    ordered = [distinct[offset] for offset in sorted(distinct)]
    times = [mark.at_ms for mark in ordered]
    # Records with exactly this time may be on either side of a snapshot with this time, so take
    # both sides.
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


class _Holders:
    """An index of the files that hold the records between two snapshots."""

    def __init__(self, files: Sequence[RecordFile]) -> None:
        self._files = sorted(files, key=lambda file: (file.first, file.last))
        self._starts = [file.first for file in self._files]
        self._ends = list(accumulate((file.last for file in self._files), max))

    def between(self, opening: Mark | None, closing: Mark | None) -> list[RecordFile]:
        """Return the files with records above the opening and up to the closing snapshot, in log
        order.
        """
        low = -1 if opening is None else opening.offset
        begin = bisect_right(self._ends, low)
        end = len(self._files) if closing is None else bisect_right(self._starts, closing.offset)
        return [file for file in self._files[begin:end] if file.last > low]


def _segment(
    number: int, opening: Mark | None, closing: Mark | None, files: Sequence[RecordFile]
) -> Segment:
    low, high = (
        -1 if opening is None else opening.offset,
        None if closing is None else closing.offset,
    )
    rows = sum(_rows_within(file, low, high) for file in files)
    return Segment(
        number=number,
        opening=opening,
        closing=closing,
        files=tuple(file.path for file in files),
        rows=rows,
    )


def _rows_within(file: RecordFile, low: int, high: int | None) -> int:
    """Estimate how many rows of a file lie above `low` and up to `high`, for a progress bar.
    Offsets have gaps.
    """
    first, last = max(file.first, low + 1), file.last if high is None else min(file.last, high)
    return max(1, file.rows * (last - first + 1) // (file.last - file.first + 1))
