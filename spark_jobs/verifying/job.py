"""Run the verify job: read the archive, replay its segments in parallel on Spark's cores, report
progress, and sum up the results.

Each segment is one task. It reads its own rows in batches and returns a few numbers. So memory is
bounded by the view, which every reader of the channel has to hold, for archives of any length.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from shlex import quote
from typing import Any, Final

import orjson
import pyarrow as pa

from equipoise.channel.core.errors import SnapshotDamaged
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.rule import ACCEPTED, NOT_FOLDED
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.sequence.snapshots import unpacked
from equipoise.spark_jobs.streams.options import Screen, VerifyOptions
from equipoise.spark_jobs.streams.session import side_by_side, spark_session
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.reading import Tables, file_batches
from equipoise.spark_jobs.verifying.replay import Checked, Difference, Replay, Rows, check_opening
from equipoise.spark_jobs.verifying.segments import Mark, RecordFile, Segment, plan

DIFFERENCES_MAX: Final = 20
"""Differences shown; the rest are only counted. One lost file may affect a hundred segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of verifying an archive.

    `differences` are in log order. Unreadable files come first, because they may explain the rest.
    `seconds` is the time of the replay.
    """

    segments: int
    records: int
    accepted: int
    rejected: Mapping[str, int]
    not_folded: int
    agreements: int
    trusted: int
    first: int | None
    last: int | None
    differences: tuple[Difference, ...]
    differences_count: int
    seconds: float

    @property
    def in_order(self) -> bool:
        """Whether nothing differs."""
        return not self.differences_count

    @property
    def document(self) -> Mapping[str, Any]:
        """The result as one JSON document."""
        return {**asdict(self), "in_order": self.in_order}


def verification(
    segments: Sequence[Segment],
    checked: Sequence[Checked],
    *,
    unreadable: Sequence[Difference] = (),
    seconds: float,
) -> Verification:
    """Sum up the results of the segments. `unreadable` are files that could not be planned."""
    verdicts: Counter[str] = Counter()
    for each in checked:
        verdicts.update(each.verdicts)
    by_number = sorted(checked, key=lambda each: each.number)
    found = tuple(
        _once([*unreadable, *(difference for each in by_number for difference in each.differences)])
    )
    accepted, not_folded = verdicts.pop(ACCEPTED, 0), verdicts.pop(NOT_FOLDED, 0)
    return Verification(
        segments=len(segments),
        records=sum(each.records for each in checked),
        accepted=accepted,
        rejected=dict(sorted(verdicts.items())),
        not_folded=not_folded,
        agreements=sum(each.agreements for each in checked),
        trusted=sum(each.trusted for each in checked),
        first=segments[0].first if segments else None,
        last=max((each.last for each in checked if each.last is not None), default=None),
        differences=found[:DIFFERENCES_MAX],
        differences_count=len(found),
        seconds=round(seconds, 3),
    )


def _once(differences: Sequence[Difference]) -> Iterator[Difference]:
    """Yield each file's difference once, even if several segments need the file."""
    files: set[str] = set()
    for each in differences:
        if each.file is None:
            yield each
        elif each.file not in files:
            files.add(each.file)
            yield each


def lines(result: Verification, *, url: str) -> Iterator[str]:
    """Format the result for people, as `equipoise channel verify` does. `url` is the archived
    log.
    """
    if not result.records and result.in_order:
        yield "nothing to verify: the archive has no record of that period"
        return
    rejected = ", ".join(f"{count} {reason}" for reason, count in result.rejected.items()) or "none"
    reached = "" if result.last is None else f" up to offset {result.last}"
    yield f"{result.records} records{reached}: {result.accepted} accepted; rejected: {rejected}"
    pace = f", {round(result.records / result.seconds)} records/s" if result.seconds else ""
    yield (
        f"{result.segments} segments in {result.seconds} s{pace}; matching digests of brokers:"
        f" {result.agreements}"
    )
    if result.trusted:
        yield (
            f"the first {result.trusted} records cannot be replayed: no snapshot has the state"
            " before them"
        )
    if result.not_folded:
        yield f"{result.not_folded} entries were skipped: they follow the end of the channel"
    for found in result.differences:
        if found.file is not None:
            yield f"{found.kind}: {found.text}"
            continue
        where = (
            f"offset {found.first}"
            if found.first == found.last
            else f"offsets {found.first} to {found.last}"
        )
        yield f"{where}: {found.kind}: {found.text}"
        yield f"  equipoise channel show {found.last} --log {quote(url)}"
    if result.in_order:
        yield "no differences"
    else:
        yield f"differences: {result.differences_count}"


_RECORD_COLUMNS: Final = ("log_offset", "bytes", "verdict")
_MARK_COLUMNS: Final = ("log_offset", "logged_at", "digest")


def run_verify(options: VerifyOptions, screen: Screen) -> int:
    """Verify an archive. Return the number of differences. Raises `NotFound`, and what
    `spark_session` raises.
    """
    tables = Tables(options.archive)
    marks, files, unreadable = contents(tables)
    segments = plan(marks, files, from_ms=options.from_ms, to_ms=options.to_ms)
    spark = spark_session("equipoise-verify", options, note=screen.note)
    began = time.monotonic()
    checked = side_by_side(
        spark.sparkContext,
        "verify",
        segments,
        partial(check_segment, tables.place),
        screen,
        records_of=attrgetter("rows"),
    )
    result = verification(
        segments, checked, unreadable=unreadable, seconds=time.monotonic() - began
    )
    _print(result, tables, options, screen)
    return result.differences_count


def _print(result: Verification, tables: Tables, options: VerifyOptions, screen: Screen) -> None:
    if options.as_json:
        screen.result(orjson.dumps(result.document).decode())
        return
    for line in lines(result, url=tables.url or "URL"):
        screen.result(line)


# --- reading the archive ---


def contents(tables: Tables) -> tuple[list[Mark], list[RecordFile], list[Difference]]:
    """Return an archive's snapshots without their bytes, its record files by the table's log, and
    its unreadable files of snapshots.
    """
    marks: list[Mark] = []
    unreadable: list[Difference] = []
    # Read before the files, so that the files include everything it promises.
    promised = tables.position(Table.RECORDS) - 1
    for file in tables.files(Table.SNAPSHOTS):
        with _damage_noted(file.path, unreadable):
            marks += _marks(tables.place, file.path)
    files = [
        RecordFile(path=file.path, first=file.first, last=file.last, rows=file.rows)
        for file in tables.files(Table.RECORDS)
        if file.first is not None and file.last is not None
    ]
    return marks, files, [*unreadable, *_cut_short(promised, files)]


@contextmanager
def _damage_noted(path: str, unreadable: list[Difference]) -> Iterator[None]:
    """Add a file that cannot be read to `unreadable`."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        unreadable.append(
            Difference(kind="damaged", file=path, text=f"the file {path} cannot be read: {error}")
        )


def _cut_short(promised: int, files: Sequence[RecordFile]) -> Iterator[Difference]:
    """Yield a difference if records are missing from the end of an archive. No snapshot or later
    record reveals this loss.
    """
    last = max((file.last for file in files), default=-1)
    if last < promised:
        text = f"the table promises records up to offset {promised}, but the last one is at {last}"
        yield Difference(kind="missing", first=last + 1, last=promised, text=text)


def _marks(place: Place, path: str) -> list[Mark]:
    return [
        Mark(offset=offset, at_ms=_milliseconds(at), digest=digest, file=path)
        for batch in file_batches(place, Table.SNAPSHOTS, path, columns=_MARK_COLUMNS)
        for offset, at, digest in zip(
            *(batch.column(name).to_pylist() for name in _MARK_COLUMNS), strict=True
        )
    ]


def _milliseconds(at: Any) -> int:  # noqa: ANN401 - a timestamp as pyarrow gives it
    return int(at.timestamp() * 1_000)


# --- one segment, in a task ---


def check_segment(place: Place, segment: Segment) -> Checked:
    """Read and replay one segment. A file that cannot be read becomes a difference; nothing is
    raised.
    """
    replay = Replay(segment, None)
    reading = "" if segment.opening is None else segment.opening.file
    try:
        replay = Replay(
            segment, None if segment.opening is None else _opening(place, segment.opening)
        )
        with _rare_collections():
            for reading in segment.files:
                for rows in _rows(place, reading, segment):
                    replay.feed(rows)
                    if not replay.continues:
                        return replay.checked()
    except (SnapshotDamaged, OSError, pa.ArrowException) as error:
        replay.unreadable(
            "damaged", file=reading, text=f"the file {reading} cannot be read: {error}"
        )
    return replay.checked()


def _opening(place: Place, mark: Mark) -> View:
    for batch in file_batches(
        place,
        Table.SNAPSHOTS,
        mark.file,
        columns=("log_offset", "bytes"),
        first=mark.offset,
        last=mark.offset,
    ):
        view = unpacked(batch.column("bytes")[0].as_py() or b"")
        check_opening(mark, view)
        return view
    raise SnapshotDamaged(problem=f"its row for offset {mark.offset} is missing in {mark.file}")


def _rows(place: Place, path: str, segment: Segment) -> Iterator[Rows]:
    # Convert whole columns: a Python object per pyarrow cell would cost as much as the fold.
    for batch in file_batches(
        place, Table.RECORDS, path, columns=_RECORD_COLUMNS, first=segment.first, last=segment.last
    ):
        yield Rows(*(batch.column(name).to_pylist() for name in _RECORD_COLUMNS))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Run the garbage collector less often. A fold makes no cycles, and scanning a view takes
    time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
