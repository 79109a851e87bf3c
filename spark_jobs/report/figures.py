"""What a report shows, as numbers: made from an archive by `spark_jobs.report.queries`, drawn by `plots`, told by `page`.

May live here: these values, how many of each a page takes, and what follows from them by arithmetic. All of it is bounded, whatever
the length of the archive, because all of it comes to one process and onto one page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from equipoise.spark_jobs.rules.catalogue import BY_NAME, Severity

BINS: Final = 120
"""Columns of what is drawn over time: ten pixels each on a wide screen."""

REPORTS_MISSED: Final = 3
"""A broker is silent once so many of its load reports in a row are missing. The balancer leaves it out after the same number."""

MARKS: Final = 2_000
"""How finely the strip chart tells times apart: an ownership shorter than this part of the period is less than a pixel."""

LANES_MAX: Final = 40
"""Bundles in the strip chart. The ownerships of a bundle do not overlap, so at most LANES_MAX * MARKS of them can be seen."""

BROKERS_MAX: Final = 40
FINDINGS_MAX: Final = 100
MOVERS_MAX: Final = 15
REASONS_MAX: Final = 12
REASONS_EACH_MAX: Final = 3
DEATHS_MAX: Final = 50
SPLITS_AND_MERGES_MAX: Final = 50
PARTS_MAX: Final = 8
"""Children of one split that are named."""
DECISIONS_MAX: Final = 40
KINDS_MAX: Final = 200

PAUSE_BINS_PER_DECADE: Final = 8
"""Bars of the histogram for each power of ten of milliseconds: neighbours differ by a third."""

SEVERITIES: Final[tuple[Severity, ...]] = ("alarm", "warning", "notice")
"""The gravest first."""

Each = TypeVar("Each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From Unix time `from_ms` (included) to `to_ms` (not included); what is drawn over time has `BINS` columns."""

    from_ms: int
    to_ms: int

    @property
    def length_ms(self) -> int:
        """How long it is; at least 1."""
        return max(1, self.to_ms - self.from_ms)

    @property
    def bin_ms(self) -> float:
        """How long one column is."""
        return self.length_ms / BINS


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """How often a rule was found broken in the period."""

    rule: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One finding, as the table `findings` has it."""

    rule: str
    subject: str
    offsets: tuple[int, ...]
    at_ms: int
    text: str
    command: str
    publisher: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many records of one kind came to one verdict. `kind` is None for what is no record."""

    kind: str | None
    verdict: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """One broker serves one bundle. `how` it ended, None if it had not when the archive ended. Times lie within the period."""

    broker: str
    from_ms: int
    to_ms: int
    how: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of the strip chart. `changes` is how often the bundle got or lost its server in the period, drawn or not."""

    namespace: str
    bundle: str
    changes: int
    ownerships: tuple[Ownership, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A row for each broker, with a figure for each column of time, None where nothing is known. `left_out` counts the rest.

    The columns are alike and fill the period; there are `BINS` of them at most.
    """

    brokers: tuple[str, ...] = ()
    rows: tuple[tuple[float | None, ...], ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What became of moves in the period. `bins` has for each result a count for each of the `BINS` columns.

    Pauses are in milliseconds, None if there were none; `pause_bars` counts pauses by the bar of the histogram (`pause_bar_ms`).
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
        """All of them."""
        return sum(self.results.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Moves for one reason; `example` is one of them in full, where `text` has its numbers left out. `pause_p50_ms` as in `Moves`."""

    text: str
    example: str
    count: int
    done: int
    pause_p50_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleMoves:
    """How often one bundle moved, for how long it paused in all, and for what reasons most."""

    namespace: str
    bundle: str
    count: int
    done: int
    pause_sum_ms: int
    reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMoves:
    """How many moves took bundles away from a broker and how many brought it some; `failed` are those of both that came to nothing."""

    broker: str
    gave: int
    got: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of an incarnation. `kind` is that of its record: `down`, `left`, or `joined` if it came back under a new incarnation.

    `bundles` is how many it left without an owner, `waiting` how many of them had none when the archive ended, and `healed_ms` how
    long it took until the last of the others had one again.
    """

    broker: str
    kind: str
    at_ms: int
    offset: int
    publisher: str | None
    bundles: int
    waiting: int
    healed_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOrMerge:
    """One split or merge: which bundles it ended and which it began, at most `PARTS_MAX` of each, and how many there were."""

    kind: str
    at_ms: int
    offset: int
    publisher: str | None
    reason: str | None
    before: tuple[str, ...]
    before_count: int
    after: tuple[str, ...]
    after_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """How many decisions of one strategy came to one result for one cause."""

    kind: str
    strategy: str
    result: str
    cause: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Few(Generic[Each]):
    """Some of many: those that a page has room for, and how many there are in all."""

    shown: tuple[Each, ...] = ()
    count: int = 0

    @property
    def left_out(self) -> int:
        """How many are not shown."""
        return max(0, self.count - len(self.shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a page shows. `held` is what the archive holds, None if it is empty; `period` is what of it is told, None if nothing is.

    `asked` are the ends that were asked for, None where none was. `is_archived` and `is_audited` say whether the job of that
    name has ever written to the archive. `unserved_ms` is the sum, over all bundles, of the time in which nobody served them.
    """

    archive: str
    url: str
    asked: tuple[int | None, int | None]
    held: Period | None
    period: Period | None
    is_archived: bool = True
    is_audited: bool = True
    broken: tuple[Broken, ...] = ()
    findings: Few[Found] = Few()
    records: tuple[Counted, ...] = ()
    lanes: Few[Lane] = Few()
    owned: Grid = Grid()
    cpu: Grid = Grid()
    moves: Moves = Moves()
    reasons: Few[Reason] = Few()
    bundle_moves: Few[BundleMoves] = Few()
    broker_moves: Few[BrokerMoves] = Few()
    deaths: Few[Death] = Few()
    splits_and_merges: Few[SplitOrMerge] = Few()
    decisions: Few[Decided] = Few()
    unserved_ms: int = 0


def pause_bar_ms(bar: int) -> tuple[float, float]:
    """From how many milliseconds (included) to how many (not included) a bar of the histogram of pauses goes; bar 0 begins at 0."""
    low, high = (10 ** (number / PAUSE_BINS_PER_DECADE) for number in (bar, bar + 1))
    return (0.0 if bar == 0 else low), high


def period_told(held: Period | None, from_ms: int | None, to_ms: int | None) -> Period | None:
    """What of the period that was asked for the archive holds; None if it holds nothing of it."""
    if held is None:
        return None
    first = held.from_ms if from_ms is None else max(held.from_ms, from_ms)
    last = held.to_ms if to_ms is None else min(held.to_ms, to_ms)
    return Period(from_ms=first, to_ms=last) if first < last else None


def spread_counts(found: Mapping[int, int]) -> tuple[int, ...]:
    """Counts by column as one for each of the `BINS` columns."""
    return tuple(found.get(number, 0) for number in range(BINS))


def averages(steps: Mapping[int, tuple[int, float]]) -> tuple[float, ...]:
    """How many there were on average in each column, given how that number changes.

    `steps` has for a column the sum of the changes in it, and the sum of each change times the part of the column that comes after it.
    """
    found: list[float] = []
    before = 0
    for number in range(BINS):
        change, part = steps.get(number, (0, 0.0))
        found.append(max(0.0, before + part))
        before += change
    return tuple(found)


def columns_of(period: Period, interval_ms: int) -> int:
    """Return how many columns show what comes every `interval_ms`: no column is shorter than that."""
    return max(1, min(BINS, period.length_ms // max(1, interval_ms)))


class Heard(NamedTuple):
    """What one broker reported in one column: the average, the last figure, and when that came."""

    mean: float
    last: float
    last_ms: int


def held(reports: Mapping[int, Heard], period: Period, *, columns: int, interval_ms: int) -> tuple[float | None, ...]:
    """Return the figure of each column, given what a broker reported in some of them.

    A figure holds until the next one. It ends where the broker has missed `REPORTS_MISSED` reports that were due every `interval_ms`.
    """
    row: list[float | None] = []
    before: Heard | None = None
    for number in range(columns):
        begin_ms = period.from_ms + number * period.length_ms / columns
        heard = reports.get(number)
        if heard is not None:
            row.append(heard.mean)
            before = heard
        else:
            holds = before is not None and begin_ms - before.last_ms <= REPORTS_MISSED * interval_ms
            row.append(before.last if before is not None and holds else None)
    return tuple(row)


def by_namespace(lanes: Sequence[Lane]) -> tuple[Lane, ...]:
    """Rows of the strip chart in the order in which they are drawn: by namespace, and within it by the hash range."""
    return tuple(sorted(lanes, key=lambda lane: (lane.namespace, lane.bundle)))


def gravity(rule: str) -> int:
    """How grave it is that a rule was broken: 0 for the gravest. A rule that this version does not know comes last."""
    known = BY_NAME.get(rule)
    return len(SEVERITIES) if known is None else SEVERITIES.index(known.severity)
