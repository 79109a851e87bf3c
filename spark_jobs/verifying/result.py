"""Sum up the results of all segments and format them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any, Final

from equipoise.spark_jobs.rules.rule import ACCEPTED, NOT_FOLDED
from equipoise.spark_jobs.verifying.replay import Checked, Difference
from equipoise.spark_jobs.verifying.segments import Segment

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
