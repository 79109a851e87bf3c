"""Query an archive with SQL for the figures of a report: DuckDB on the tables' Arrow datasets.

Every query returns a bounded result: sums, or the top or latest rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any, Final

import duckdb

from equipoise.spark_jobs.report import figures
from equipoise.spark_jobs.report.figures import (
    BINS,
    Few,
    Grid,
    Moves,
    Period,
    Report,
    Row,
    gravity,
)
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.tables.reading import Tables

_NUMBERS: Final = r"0x[0-9a-fA-F]+|[0-9][0-9.,]*"
"""Differences between reasons that mean the same: figures, and numbers in names."""


@contextmanager
def opened(tables: Tables) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database in memory with the archive's tables. What does not fit into memory is in a
    temporary folder.
    """
    with (
        TemporaryDirectory(prefix="equipoise-report-") as folder,
        duckdb.connect(config={"temp_directory": folder}) as db,
    ):
        for table in (
            Table.RECORDS,
            Table.TRANSITIONS,
            Table.INTERVALS,
            Table.MOVES,
            Table.BROKER_EVENTS,
            Table.LOADS,
            Table.DECISIONS,
            Table.FINDINGS,
        ):
            db.register(f"all_{table}", tables.dataset(table))
        yield db


def extent(db: duckdb.DuckDBPyConnection) -> Period | None:
    """Return the period from the first to the last time in an archive; None if it is empty."""
    row = db.execute("""
        SELECT epoch_ms(min(logged_at)), epoch_ms(max(logged_at)) FROM (
            SELECT logged_at FROM all_records UNION ALL SELECT logged_at FROM all_findings
            UNION ALL SELECT logged_at FROM all_loads
            UNION ALL SELECT logged_at FROM all_decisions
        )
    """).fetchone()
    assert row is not None, "an aggregate over all rows has one row"
    return None if row[0] is None else Period(from_ms=row[0], to_ms=row[1] + 1)


_VIEWS: Final = r"""
CREATE MACRO within(logged_at) AS
    logged_at >= getvariable('from_at') AND logged_at < getvariable('to_at');
CREATE MACRO bin_of(ms, columns) AS least(
    floor((ms - getvariable('from_ms')) * columns / getvariable('length_ms')), columns - 1
)::INT;
-- The broker that serves a bundle, as in `BundleEntry.server`; null if there is none.
CREATE MACRO server(phase, owner, source) AS CASE
    WHEN phase IN ('owned', 'splitting') THEN owner
    WHEN phase IN ('transferring', 'handing_over', 'unloading') THEN source END;

CREATE VIEW records AS FROM all_records WHERE within(logged_at);
CREATE VIEW loads AS FROM all_loads WHERE bundle IS NULL AND within(logged_at);
CREATE VIEW decisions AS FROM all_decisions WHERE within(logged_at);
CREATE VIEW moves AS
    SELECT *, coalesce(reason, 'no reason given') AS given,
        regexp_replace(given, getvariable('numbers'), '#', 'g') AS said
    FROM all_moves WHERE within(logged_at);
CREATE VIEW findings AS FROM all_findings WHERE within(logged_at);
CREATE VIEW steps AS
    SELECT *, epoch_ms(logged_at) AS ms,
        server(phase_before, owner_before, source_before) AS server_before,
        server(phase_after, owner_after, source_after) AS server_after
    FROM all_transitions;

-- All ownerships in the period, cut to it.
CREATE TABLE ownerships AS
WITH every AS (
    SELECT *, epoch_ms(from_at) AS begun_ms, epoch_ms(to_at) AS ended_ms
    FROM all_intervals WHERE logged_at IS NULL OR logged_at >= getvariable('from_at')
), known AS (
    -- An ownership without an archived beginning began at the end of the previous one, or before
    -- all known times.
    SELECT *, coalesce(begun_ms, max(ended_ms) OVER (
        PARTITION BY namespace, bundle ORDER BY ended_ms NULLS LAST, begun_ms NULLS LAST
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS first_ms,
    FROM every
)
SELECT namespace, bundle, broker, greatest(first_ms, getvariable('from_ms')) AS from_ms,
    least(coalesce(ended_ms, getvariable('to_ms')), getvariable('to_ms')) AS to_ms,
    CASE WHEN ended_ms < getvariable('to_ms') THEN how END AS how,
    first_ms < getvariable('from_ms') AS is_older,
FROM known WHERE from_ms < to_ms;
"""


_ALL: Final[Mapping[str, str]] = {
    # Counts of the findings by rule, worst rule first.
    "broken": """
        SELECT rule, count(*) AS count FROM findings LEFT JOIN rules USING (rule)
        GROUP BY ALL ORDER BY min(coalesce(gravity, 9)), count DESC, rule LIMIT 200
    """,
    # Counts of the records of each kind by verdict, most frequent kinds first.
    "records": """
        WITH counted AS (
            SELECT kind, verdict, count(*) AS count FROM records GROUP BY ALL
        )
        SELECT kind, sum(count)::BIGINT AS count,
            coalesce(sum(count) FILTER (verdict = 'accepted'), 0)::BIGINT AS accepted,
            coalesce(list((verdict, count) ORDER BY count DESC, verdict)
                FILTER (verdict IS DISTINCT FROM 'accepted'), []) AS reasons
        FROM counted GROUP BY kind ORDER BY count DESC, kind NULLS FIRST LIMIT 200
    """,
}
"""All rows of each figure."""

_VALUES: Final[Mapping[str, str]] = {
    # The offset of the last record; 0 if there is none.
    "last_offset": "SELECT coalesce(max(log_offset), 0) AS value FROM records",
    # The time in the period without a server, summed over all bundles. Older transitions determine
    # the state at the beginning of the period.
    "unserved_ms": """
        SELECT coalesce(sum(greatest(0,
            least(coalesce(next_ms, getvariable('to_ms')), getvariable('to_ms'))
            - greatest(ms, getvariable('from_ms')))), 0)::BIGINT AS value
        FROM (
            SELECT *, lead(ms)
                OVER (PARTITION BY bundle ORDER BY log_offset, ordinal) AS next_ms
            FROM steps WHERE logged_at < getvariable('to_at')
        ) WHERE phase_after IS NOT NULL AND server_after IS NULL
    """,
}
"""Single values."""

FEW: Final[Mapping[str, str]] = {
    # The most severe findings of the period, the earliest first among equals.
    "findings": """
        SELECT rule, subject, coalesce(offsets, []) AS offsets, epoch_ms(logged_at) AS at_ms,
            text, command, publisher, count(*) OVER () AS found
        FROM findings LEFT JOIN rules USING (rule)
        ORDER BY coalesce(gravity, 9), log_offset, ordinal, rule LIMIT 100
    """,
    # The most frequent reasons for moves.
    "reasons": """
        SELECT said AS text, min(reason) AS example, count(*) AS count,
            count_if(result = 'done') AS done, quantile_disc(pause_ms, 0.5) AS pause_p50_ms,
            count(*) OVER () AS found
        FROM moves GROUP BY said ORDER BY count DESC, text LIMIT 12
    """,
    # The bundles that moved most often, with their most frequent reasons.
    "bundle_moves": """
        WITH of_reason AS (
            SELECT bundle, said, count(*) AS count, sum(pause_ms) AS pause_sum_ms
            FROM moves GROUP BY ALL
        ), ranked AS (
            SELECT *, row_number() OVER (PARTITION BY bundle ORDER BY count DESC, said) AS place
            FROM of_reason
        )
        SELECT bundle, sum(count)::BIGINT AS count,
            coalesce(sum(pause_sum_ms), 0)::BIGINT AS pause_sum_ms,
            list((said, count) ORDER BY place) FILTER (place <= 3) AS reasons,
            count(*) OVER () AS found
        FROM ranked GROUP BY bundle ORDER BY 2 DESC, 3 DESC, bundle LIMIT 15
    """,
    # The brokers with the most moves to and from them.
    "broker_moves": """
        SELECT broker, count_if(side = 'gave' AND went) AS gave,
            count_if(side = 'got' AND went) AS got, count_if(NOT went) AS failed,
            count(*) OVER () AS found
        FROM (
            SELECT broker, side, coalesce(result IN ('done', 'unloaded'), FALSE) AS went
            FROM moves UNPIVOT (broker FOR side IN (source AS gave, destination AS got))
        ) GROUP BY broker ORDER BY count(*) DESC, broker LIMIT 15
    """,
    # The latest splits and merges in log order.
    "splits_and_merges": """
        SELECT * EXCLUDE (ended, began) FROM (
            SELECT any_value(kind) AS kind, epoch_ms(any_value(logged_at)) AS at_ms,
                log_offset AS "offset", any_value(publisher) AS publisher,
                any_value(reason) AS reason,
                list(DISTINCT bundle ORDER BY bundle) FILTER (phase_after IS NULL) AS ended,
                list(DISTINCT bundle ORDER BY bundle)
                    FILTER (phase_before IS NULL AND phase_after IS NOT NULL) AS began,
                ended[:8] AS before, len(ended) AS before_count,
                began[:8] AS after, len(began) AS after_count,
                count(*) OVER () AS found
            FROM steps WHERE within(logged_at) AND kind IN ('split', 'merge')
            GROUP BY log_offset HAVING before_count > 0 AND after_count > 0
            ORDER BY log_offset DESC LIMIT 50
        ) ORDER BY "offset"
    """,
    # The ownerships of the bundles whose server changed most often.
    "lanes": """
        WITH busiest AS (
            SELECT namespace, bundle, count(*) OVER () AS found,
                sum((NOT is_older)::INT + (to_ms < getvariable('to_ms'))::INT) AS changes,
            FROM ownerships GROUP BY ALL
            ORDER BY changes DESC, namespace, bundle LIMIT getvariable('lanes_max')
        )
        SELECT busiest.*, coalesce(list({
                broker: coalesce(broker, '?'), from_ms: from_ms, to_ms: to_ms, how: how
            } ORDER BY from_ms, to_ms) FILTER (from_ms IS NOT NULL), []) AS ownerships
        FROM busiest LEFT JOIN ownerships ON ownerships.bundle = busiest.bundle
            AND (to_ms - from_ms) * getvariable('marks') >= getvariable('length_ms')
        GROUP BY ALL ORDER BY namespace, bundle
    """,
    # Counts of the results of the balancing rounds, most frequent first.
    "decisions": """
        SELECT coalesce(kind, '?') AS kind, coalesce(strategy, '?') AS strategy,
            coalesce(result, '?') AS result, coalesce(cause, '?') AS cause,
            count(*) AS count, count(*) OVER () AS found
        FROM decisions WHERE kind IS DISTINCT FROM 'outcome'
        GROUP BY ALL ORDER BY count DESC, 1, 2, 3, 4 LIMIT 40
    """,
}
"""The first rows of each figure. Their column `found` has the count of all."""

_DEATHS: Final = """
    WITH ends AS (
        SELECT log_offset, epoch_ms(logged_at) AS at_ms, event AS kind, publisher, broker,
            count(*) OVER () AS found
        FROM all_broker_events
        WHERE within(logged_at) AND event IN ('down', 'left', 'replaced')
        ORDER BY log_offset DESC LIMIT 50
    ), lost AS (
        SELECT log_offset, bundle FROM steps SEMI JOIN ends USING (log_offset)
        WHERE server_before IS NOT NULL AND server_after IS NULL
            AND phase_after IS NOT NULL
    ), healed AS (
        SELECT lost.*, min(ms) AS ms FROM lost LEFT JOIN steps
            ON steps.bundle = lost.bundle AND steps.log_offset > lost.log_offset
            AND (server_after IS NOT NULL OR phase_after IS NULL)
        GROUP BY ALL
    )
    SELECT broker, kind, at_ms, log_offset AS "offset", publisher, found,
        count(bundle) AS bundles, count(bundle) - count(ms) AS waiting,
        max(ms - at_ms) AS healed_ms
    FROM ends LEFT JOIN healed USING (log_offset) GROUP BY ALL ORDER BY log_offset
"""
"""The latest ends of brokers in log order, with the time until their bundles had owners again."""

_TAKEOVERS: Final = """
    WITH taken AS (
        SELECT broker, bundle, log_offset, epoch_ms(logged_at) AS ms
        FROM all_intervals WHERE within(logged_at) AND how = 'died'
    ), marked AS (
        SELECT *, coalesce(
            ms - lag(ms) OVER (PARTITION BY broker ORDER BY ms) >= 180_000,
            FALSE) AS is_new
        FROM taken
    ), numbered AS (
        SELECT *, count_if(is_new) OVER (PARTITION BY broker ORDER BY ms) AS number
        FROM marked
    )
    FROM (
        SELECT broker, 'down' AS kind, min(ms) AS at_ms, min(log_offset) AS "offset",
            NULL AS publisher, count(DISTINCT bundle) AS bundles, 0 AS waiting,
            max(ms) - min(ms) AS healed_ms, count(*) OVER () AS found
        FROM numbered GROUP BY broker, number ORDER BY "offset" DESC LIMIT 50
    ) ORDER BY "offset"
"""
"""The deaths in a Pulsar cluster. No record states one: the leader takes the bundles of the broker
one by one. Bundles that are taken with longer breaks were lost in different deaths: the leader
looks every minute."""


OWNED: Final = """
    WITH greatest AS (
        SELECT broker, count(*) OVER () AS found FROM ownerships
        WHERE broker IS NOT NULL GROUP BY broker
        ORDER BY sum(to_ms - from_ms) DESC, broker LIMIT getvariable('brokers_max')
    ), bins AS (
        SELECT number, number * length AS low, low + length AS high, length
        FROM range(getvariable('bins')) AS numbers(number),
            (SELECT getvariable('length_ms') / getvariable('bins') AS length)
    ), spans AS (
        SELECT broker, from_ms - getvariable('from_ms') AS first, to_ms - getvariable('from_ms')
            AS last
        FROM ownerships
    ), averages AS (
        SELECT greatest.broker, found, number, coalesce(
            sum(least(last, high) - greatest(first, low)) FILTER (first IS NOT NULL)
            / any_value(length), 0) AS average
        FROM greatest CROSS JOIN bins LEFT JOIN spans
            ON spans.broker = greatest.broker AND first < high AND last > low
        GROUP BY ALL
    )
    SELECT broker, found, list(average ORDER BY number) AS cells
    FROM averages GROUP BY ALL ORDER BY broker
"""
"""The average number of bundles that each broker served, per column of time."""

CPU: Final = """
    -- The 90th percentile of the gaps is the interval of reports. One gap in ten may be a silence.
    WITH busiest AS (
        SELECT broker, avg(cpu) AS used, coalesce(quantile_disc(gap, 0.9), 0) AS due_ms,
            count(*) OVER () AS found
        FROM (
            SELECT broker, cpu, epoch_ms(logged_at) - lag(epoch_ms(logged_at))
                OVER (PARTITION BY broker ORDER BY logged_at) AS gap,
            FROM loads WHERE broker IS NOT NULL AND cpu IS NOT NULL
        ) GROUP BY broker ORDER BY used DESC, broker LIMIT getvariable('brokers_max')
    ), columns AS (
        -- No column is shorter than the interval of most brokers.
        SELECT greatest(1, least(getvariable('bins'), getvariable('length_ms')
            // greatest(1, quantile_disc(due_ms, 0.5))))::INT AS count FROM busiest
    ), slots AS (
        SELECT unnest(range(count)) AS number, count FROM columns
    ), samples AS (
        SELECT broker, bin_of(epoch_ms(logged_at), count) AS bin, avg(cpu) AS mean,
            arg_max(cpu, logged_at) AS last, max(epoch_ms(logged_at)) AS last_ms
        FROM loads, columns WHERE cpu IS NOT NULL GROUP BY ALL
    ), cells AS (
        -- A figure holds until the next report, or until the broker has missed some.
        SELECT busiest.broker, found, number, coalesce(mean, CASE
            WHEN getvariable('from_ms') + number * getvariable('length_ms') / count
                - last_value(last_ms IGNORE NULLS) OVER earlier
                <= getvariable('missed') * due_ms
            THEN last_value(last IGNORE NULLS) OVER earlier END) AS cell
        FROM busiest CROSS JOIN slots
            LEFT JOIN samples ON samples.broker = busiest.broker AND bin = number
        WINDOW earlier AS (PARTITION BY busiest.broker ORDER BY number)
    )
    SELECT broker, found, list(cell ORDER BY number) AS cells
    FROM cells GROUP BY ALL ORDER BY broker
"""
"""Each broker's reported processor use, per column of time; null while it is silent."""


class Queries:
    """The figures of one period of an archive."""

    def __init__(self, db: duckdb.DuckDBPyConnection, period: Period) -> None:
        """Compute the ownerships of the period. `db` comes from `opened`."""
        self._db = db
        for name, value in (
            ("from_ms", period.from_ms),
            ("to_ms", period.to_ms),
            ("length_ms", period.length_ms),
            ("numbers", _NUMBERS),
            ("bins", BINS),
            ("lanes_max", figures.LANES_MAX),
            ("marks", figures.MARKS),
            ("brokers_max", figures.BROKERS_MAX),
            ("missed", figures.REPORTS_MISSED),
        ):
            db.execute(f"SET VARIABLE {name} = $1", [value])
        for end in ("from", "to"):
            db.execute(f"SET VARIABLE {end}_at = make_timestamptz(getvariable('{end}_ms') * 1000)")
        db.execute("CREATE TABLE rules (rule TEXT, gravity INT)")
        for rule in RULES:
            db.execute("INSERT INTO rules VALUES ($1, $2)", (rule, gravity(rule)))
        db.execute(_VIEWS)

    def filled(self, about: Report) -> Report:
        """Return `about` with all figures of the period."""
        found: dict[str, Any] = {
            **{name: self._rows(query)[0]["value"] for name, query in _VALUES.items()},
            **{name: self.few(query).shown for name, query in _ALL.items()},
            **{name: self.few(query) for name, query in FEW.items()},
        }
        deaths = self.few(_DEATHS)
        return replace(
            about,
            **found,
            deaths=deaths if deaths.count else self.few(_TAKEOVERS),
            owned=self.grid(OWNED),
            cpu=self.grid(CPU),
            moves=self.moves(),
        )

    def grid(self, query: str) -> Grid:
        """Return the figure of each broker per column of time: `OWNED` or `CPU`."""
        rows = self.few(query)
        return Grid(
            brokers=tuple(row.broker for row in rows.shown),
            rows=tuple(row.cells for row in rows.shown),
            left_out=rows.left_out,
        )

    def moves(self) -> Moves:
        """Return the results, times and pauses of the moves."""
        query = """
            SELECT coalesce(result, '?') AS result, bin_of(epoch_ms(logged_at), $bins) AS bin,
                count(*) AS count
            FROM moves GROUP BY ALL ORDER BY result
        """
        bins: dict[str, list[int]] = defaultdict(lambda: [0] * BINS)
        for row in self._rows(query, bins=BINS):
            bins[row["result"]][row["bin"]] = row["count"]
        query = """
            SELECT floor(log10(greatest(pause_ms, 1)) * $per_decade + 1e-9)::INT AS bar,
                count(*) AS count
            FROM moves WHERE pause_ms >= 0 GROUP BY ALL ORDER BY bar
        """
        bars = {
            row["bar"]: row["count"]
            for row in self._rows(query, per_decade=figures.PAUSE_BINS_PER_DECADE)
        }
        query = """
            SELECT count(*) AS pauses, quantile_disc(pause_ms, 0.5) AS pause_p50_ms,
                quantile_disc(pause_ms, 0.99) AS pause_p99_ms, max(pause_ms) AS pause_max_ms,
                coalesce(sum(pause_ms), 0)::BIGINT AS pause_sum_ms
            FROM moves WHERE pause_ms >= 0
        """
        return Moves(
            results={name: sum(found) for name, found in bins.items()},
            bins={name: tuple(found) for name, found in bins.items()},
            pause_bars=bars,
            **self._rows(query)[0],
        )

    def _rows(self, query: str, **parameters: object) -> list[dict[str, Any]]:
        result = self._db.execute(query, parameters)
        names = [column[0] for column in result.description]
        return [dict(zip(names, map(_cell, row), strict=True)) for row in result.fetchall()]

    def few(self, query: str) -> Few:
        """Return the rows of a query. Their column `found` has the count of all."""
        rows = self._rows(query)
        counts = [row.pop("found", 0) for row in rows]
        return Few(shown=tuple(Row(**row) for row in rows), count=max(counts, default=0))


def _cell(value: object) -> object:
    """Return what DuckDB gave, with lists as tuples and structs as rows."""
    if isinstance(value, list):
        return tuple(map(_cell, value))
    return Row(**value) if isinstance(value, dict) else value
