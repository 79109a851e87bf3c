"""Define the figures that a report shows, and format times, durations and counts for people.

`queries` computes them from an archive, `plots` draws them and `page` writes them. Their size is
bounded for any length of the archive, because one process holds them all and one page shows them
all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timezone, tzinfo
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import Severity

if TYPE_CHECKING:
    from equipoise.spark_jobs.audit.reporting import Reach

_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_TIME_MS_MAX: Final = 253_402_214_400_000
"""The last midnight (UTC) of the year 9999. The margin of a day keeps the year at four digits in
every time zone."""

NONE: Final = "\N{EN DASH}"


def format_count(count: int, one: str = "", many: str = "") -> str:
    """Format a count with thousands separators and its noun: `1,204 moves`. `many` defaults to
    `one` plus "s".
    """
    if not one:
        return f"{count:,}"
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def format_duration(duration_ms: float | None) -> str:
    """Format a duration in fitting units: `87 ms`, `1.4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4
    h`.
    """
    if duration_ms is None:
        return NONE
    if duration_ms < _SECOND_MS:
        return f"{duration_ms:.0f} ms"
    if duration_ms < _MINUTE_MS:
        return f"{duration_ms / _SECOND_MS:.1f} s"
    for unit_ms, unit, next_ms, next_unit in (
        (_DAY_MS, "d", _HOUR_MS, "h"),
        (_HOUR_MS, "h", _MINUTE_MS, "min"),
        (_MINUTE_MS, "min", _SECOND_MS, "s"),
    ):
        if duration_ms >= unit_ms:
            whole, rest = divmod(int(duration_ms), unit_ms)
            part = rest // next_ms
            return f"{whole:,} {unit} {part} {next_unit}" if part else f"{whole:,} {unit}"
    raise AssertionError(duration_ms)


def format_time(at_ms: int, zone: tzinfo) -> str:
    """Format a Unix time in a zone, to the second."""
    return datetime.fromtimestamp(within_year_9999(at_ms) / _SECOND_MS, zone).strftime(
        "%Y-%m-%d %H:%M:%S"
    )


def within_year_9999(at_ms: int) -> int:
    """Return the Unix time, capped at the end of 9999 (UTC). A damaged row may hold any number."""
    return min(at_ms, _TIME_MS_MAX)


def local_zone(at_ms: int) -> tzinfo:
    """Return the local zone at a Unix time as a fixed offset from UTC, so that no clock time occurs
    twice.
    """
    zone = datetime.fromtimestamp(within_year_9999(at_ms) / _SECOND_MS, UTC).astimezone().tzinfo
    assert zone is not None, "astimezone gives a zone"
    return zone


def format_zone(zone: tzinfo) -> str:
    """Format a fixed zone as `UTC` or `UTC+02:00`."""
    offset = datetime.fromtimestamp(0, zone).utcoffset()
    return "UTC" if not offset else str(timezone(offset))


def format_share(part: int, whole: int) -> str:
    """Format a share in percent. A share above zero is never shown as zero."""
    if whole == 0:
        return NONE
    percent = 100 * part / whole
    # The last digit shown.
    return "below 0.1 %" if 0 < percent < 0.1 else f"{percent:.1f} %"  # noqa: PLR2004


BINS: Final = 120
"""Columns of a chart over time: ten pixels each on a wide screen."""

REPORTS_MISSED: Final = 3
"""A broker counts as silent after this many missing load reports in a row. The balancer ignores it
after the same number."""

MARKS: Final = 2_000
"""Time resolution of the strip chart: an ownership shorter than period / MARKS is narrower than a
pixel."""

LANES_MAX: Final = 40
"""Bundles in the strip chart. Ownerships of a bundle do not overlap, so at most LANES_MAX * MARKS
ownerships are drawn."""

BROKERS_MAX: Final = 40

PAUSE_BINS_PER_DECADE: Final = 8
"""Histogram bars per power of ten of milliseconds: neighbouring bars differ by a third."""

SEVERITIES: Final[tuple[Severity, ...]] = ("alarm", "warning", "notice")
"""Severities, worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A period from Unix time `from_ms` (inclusive) to `to_ms` (exclusive). Charts over time divide
    it into `BINS` columns.
    """

    from_ms: int
    to_ms: int

    @property
    def length_ms(self) -> int:
        """Length of the period; at least 1."""
        return max(1, self.to_ms - self.from_ms)

    @property
    def bin_ms(self) -> float:
        """Length of one column."""
        return self.length_ms / BINS


class Row(SimpleNamespace):
    """One row of a query of `spark_jobs.report.queries`, with the columns as attributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A figure per broker (row) and column of time; None means unknown.

    The columns have equal length and fill the period; there are at most `BINS`. `left_out` counts
    the brokers without a row.
    """

    brokers: tuple[str, ...] = ()
    rows: tuple[tuple[float | None, ...], ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The results and pauses of the moves in the period.

    * `bins`: for each result, a count for each of the `BINS` columns.
    * `pause_*_ms`: milliseconds; None if there were no pauses.
    * `pause_bars`: the count of pauses for each bar of the histogram (see `pause_bar_ms`).
    """

    results: Mapping[str, int] = field(default_factory=dict)
    bins: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pauses: int = 0
    pause_p50_ms: float | None = None
    pause_p99_ms: float | None = None
    pause_max_ms: float | None = None
    pause_sum_ms: int = 0
    pause_bars: Mapping[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of all moves."""
        return sum(self.results.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Few:
    """The rows that fit on the page, and the count of all of them."""

    shown: tuple[Row, ...] = ()
    count: int = 0

    @property
    def left_out(self) -> int:
        """The number of items not shown."""
        return max(0, self.count - len(self.shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a page shows.

    * `held`: the period that the archive covers; None if it is empty.
    * `period`: the period shown; None if there is nothing to show.
    * `is_archived`, `is_audited`: whether the job of that name has ever written to the archive.
    * `reach`: how far the audit has come; None if it is not known.
    * `last_offset`: of the last record in the period; 0 if there is none.
    * `unserved_ms`: the time without a server, summed over all bundles.
    """

    archive: str
    url: str
    held: Period | None
    period: Period | None
    is_archived: bool = True
    is_audited: bool = True
    reach: Reach | None = None
    last_offset: int = 0
    broken: tuple[Row, ...] = ()
    findings: Few = Few()
    records: tuple[Row, ...] = ()
    lanes: Few = Few()
    owned: Grid = Grid()
    cpu: Grid = Grid()
    moves: Moves = Moves()
    reasons: Few = Few()
    bundle_moves: Few = Few()
    broker_moves: Few = Few()
    deaths: Few = Few()
    splits_and_merges: Few = Few()
    decisions: Few = Few()
    unserved_ms: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the audit has checked all records in the period."""
        return self.is_audited and self.reach is not None and self.reach.audited >= self.last_offset


def pause_bar_ms(bar: int) -> tuple[float, float]:
    """Return the lower (inclusive) and upper (exclusive) bound of a pause histogram bar in
    milliseconds. Bar 0 begins at 0.
    """
    low, high = (10 ** (number / PAUSE_BINS_PER_DECADE) for number in (bar, bar + 1))
    return (0.0 if bar == 0 else low), high


def period_shown(held: Period | None, from_ms: int | None, to_ms: int | None) -> Period | None:
    """Return the part of the requested period that the archive covers; None if there is none."""
    if held is None:
        return None
    first = held.from_ms if from_ms is None else max(held.from_ms, from_ms)
    last = held.to_ms if to_ms is None else min(held.to_ms, to_ms)
    return Period(from_ms=first, to_ms=last) if first < last else None


def gravity(rule: str) -> int:
    """Return the rank of a rule's severity: 0 is the worst. Unknown rules rank last."""
    known = RULES.get(rule)
    return len(SEVERITIES) if known is None else SEVERITIES.index(known.severity)
