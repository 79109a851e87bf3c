"""Query an archive with Spark for the figures of a report.

Every query returns a bounded result: sums, or the top or latest rows. The bounds are in
`spark_jobs.report.figures`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from statistics import median_low
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark's documentation
from pyspark.sql.window import Window

from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.report import figures
from equipoise.spark_jobs.report.figures import (
    BINS,
    Broken,
    BrokerMoves,
    BundleMoves,
    Counted,
    Death,
    Decided,
    Few,
    Found,
    Grid,
    Lane,
    Moves,
    Period,
    Reason,
    Report,
    ServedTime,
    SplitOrMerge,
    gravity,
)
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import ACCEPTED
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.sequence.snapshots import unpacked

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pyspark.sql import Column, DataFrame, Row, SparkSession

Shown = TypeVar("Shown", bound="DataclassInstance")

_NUMBERS: Final = r"0x[0-9a-fA-F]+|[0-9][0-9.,]*"
"""Differences between reasons that mean the same: figures, and numbers in names."""

_TAKEOVER: Final = "3 minutes"
"""Bundles of one broker that are taken with longer breaks were lost in different deaths. Pulsar's
leader looks every minute."""


def extent(archive: Archive, spark: SparkSession) -> Period | None:
    """Return the period from the first to the last time in an archive; None if it is empty."""
    found: list[tuple[int, int]] = []
    for table in (Table.RECORDS, Table.FINDINGS, Table.BROKER_LOAD, Table.DECISIONS):
        days = archive.days(table)
        if days:
            # The log's time never falls, so only the first and the last day are read.
            firsts = archive.frame(spark, table, first_day=days[0], last_day=days[0])
            lasts = archive.frame(spark, table, first_day=days[-1], last_day=days[-1])
            row = (
                firsts.select("at")
                .union(lasts.select("at"))
                .agg(F.min(_ms("at")), F.max(_ms("at")))
                .first()
            )
            if row is not None and row[0] is not None:
                found.append((row[0], row[1]))
    if not found:
        return None
    return Period(
        from_ms=min(first for first, _ in found), to_ms=max(last for _, last in found) + 1
    )


class Queries:
    """The figures of one period of an archive."""

    def __init__(self, archive: Archive, spark: SparkSession, period: Period) -> None:
        """Cache the ownerships of the period until `close`."""
        self._archive = archive
        self._spark = spark
        self._period = period
        self._ownerships = self._all_ownerships().persist()

    def close(self) -> None:
        """Release the cached ownerships."""
        self._ownerships.unpersist()

    def filled(self, about: Report) -> Report:
        """Return `about` with all figures of the period."""
        return replace(
            about,
            broken=self.broken(),
            findings=self.findings(),
            records=self.records(),
            lanes=self.lanes(),
            owned=self.owned(),
            cpu=self.cpu(),
            moves=self.moves(),
            reasons=self.reasons(),
            bundle_moves=self.bundle_moves(),
            broker_moves=self.broker_moves(),
            deaths=self.deaths(),
            splits_and_merges=self.splits_and_merges(),
            decisions=self.decisions(),
            unserved_ms=self.unserved_ms(),
        )

    # --- findings, records
    # ----------------------------------------------------------------------------------------------

    def broken(self) -> tuple[Broken, ...]:
        """Count the findings by rule, worst rule first."""
        rows = (
            self._within(Table.FINDINGS).groupBy("rule").count().limit(figures.KINDS_MAX).collect()
        )
        return tuple(
            sorted(
                (_made(Broken, row) for row in rows),
                key=lambda each: (gravity(each.rule), -each.count, each.rule),
            )
        )

    def findings(self) -> Few[Found]:
        """Return the most severe findings of the period, the earliest first among equals."""
        graveness = F.lit(gravity(""))
        for name in RULES:
            graveness = F.when(F.col("rule") == name, gravity(name)).otherwise(graveness)
        frame = self._within(Table.FINDINGS).withColumns(
            {"at_ms": _ms("at"), "offsets": F.coalesce("offsets", F.lit([]).cast("array<bigint>"))}
        )
        return _few(Found, frame, (graveness, "offset", "ordinal", "rule"), figures.FINDINGS_MAX)

    def records(self) -> tuple[Counted, ...]:
        """Count the records by kind and verdict, most frequent first."""
        counts = self._within(Table.RECORDS).groupBy("kind", "verdict").count()
        rows = counts.orderBy(F.desc("count"), "kind", "verdict").limit(figures.KINDS_MAX).collect()
        return tuple(_made(Counted, row) for row in rows)

    # --- ownerships, brokers
    # ----------------------------------------------------------------------------------------------

    def lanes(self) -> Few[Lane]:
        """Return the ownerships of the bundles whose server changed most often."""
        ownerships = self._ownerships
        begun = (~F.col("is_older")).cast("int") + (F.col("to_ms") < self._period.to_ms).cast("int")
        of_bundles = ownerships.groupBy("namespace", "bundle").agg(F.sum(begun).alias("changes"))
        busiest, count = _first(
            of_bundles, (F.desc("changes"), "namespace", "bundle"), figures.LANES_MAX
        )
        seen = (F.col("to_ms") - F.col("from_ms")) * figures.MARKS >= self._period.length_ms
        names = [row["bundle"] for row in busiest]
        rows = (
            ownerships.where(F.col("bundle").isin(names) & seen)
            .select("bundle", "broker", "from_ms", "to_ms", "how")
            .collect()
        )
        found: dict[str, list[ServedTime]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row["from_ms"], row["to_ms"])):
            found[row["bundle"]].append(
                ServedTime(
                    broker=row["broker"] or "?",
                    from_ms=row["from_ms"],
                    to_ms=row["to_ms"],
                    how=row["how"],
                )
            )
        lanes = [
            Lane(
                namespace=row["namespace"],
                bundle=row["bundle"],
                changes=row["changes"],
                ownerships=tuple(found[row["bundle"]]),
            )
            for row in busiest
        ]
        return Few(
            shown=tuple(sorted(lanes, key=lambda lane: (lane.namespace, lane.bundle))), count=count
        )

    def owned(self) -> Grid:
        """Return the average number of bundles that each broker served, per column of time."""
        period = self._period
        begun = self._ownerships.select(
            "broker", F.col("from_ms").alias("at_ms"), F.lit(1).alias("change")
        )
        ended = self._ownerships.select(
            "broker", F.col("to_ms").alias("at_ms"), F.lit(-1).alias("change")
        )
        place = (F.col("at_ms") - period.from_ms) / period.bin_ms
        steps = (
            begun.union(ended)
            .withColumn("bin", F.floor(place))
            .withColumn("part", F.col("change") * (F.col("bin") + 1 - place))
        )
        sums = (
            steps.where(F.col("bin") < BINS)
            .groupBy("broker", "bin")
            .agg(F.sum("change").alias("change"), F.sum("part").alias("part"))
        )
        weight = F.sum(F.col("to_ms") - F.col("from_ms"))
        brokers, left_out = self._greatest(self._ownerships, "broker", weight)
        found: dict[str, dict[int, tuple[int, float]]] = {broker: {} for broker in brokers}
        for row in sums.where(F.col("broker").isin(brokers)).collect():
            found[row["broker"]][row["bin"]] = (row["change"], row["part"])
        return Grid(
            brokers=tuple(brokers),
            rows=tuple(figures.averages(found[broker]) for broker in brokers),
            left_out=left_out,
        )

    def cpu(self) -> Grid:
        """Return each broker's reported processor use, per column of time."""
        every = self._within(Table.BROKER_LOAD).where(
            F.col("broker").isNotNull() & F.col("cpu").isNotNull()
        )
        brokers, left_out = self._greatest(every, "broker", F.avg("cpu"))
        loads = every.where(F.col("broker").isin(brokers)).select(
            "broker", "at", "cpu", _ms("at").alias("ms")
        )
        gap = F.col("ms") - F.lag("ms").over(Window.partitionBy("broker").orderBy("ms"))
        # The 90th percentile of the gaps is the report interval. One gap in ten may be a silence.
        usual = (
            loads.withColumn("gap", gap)
            .groupBy("broker")
            .agg(F.percentile_approx("gap", 0.9).alias("gap"))
        )
        due_ms = {row["broker"]: row["gap"] or 0 for row in usual.collect()}
        columns = figures.columns_of(self._period, median_low(due_ms.values() or [0]))
        found: dict[str, dict[int, figures.LoadSample]] = {broker: {} for broker in brokers}
        samples = loads.groupBy("broker", self._bin("at", columns).alias("bin")).agg(
            F.avg("cpu"), F.max_by("cpu", "ms"), F.max("ms")
        )
        for row in samples.collect():
            found[row["broker"]][row["bin"]] = figures.LoadSample(*row[2:])
        rows = tuple(
            figures.held(found[broker], self._period, columns=columns, interval_ms=due_ms[broker])
            for broker in brokers
        )
        return Grid(brokers=tuple(brokers), rows=rows, left_out=left_out)

    def unserved_ms(self) -> int:
        """Return the time in the period without a server, summed over all bundles."""
        steps = self._steps_until_end().select(
            "bundle", "offset", "ordinal", "phase_after", _ms("at").alias("ms"), _served("after")
        )
        following = F.lead("ms").over(Window.partitionBy("bundle").orderBy("offset", "ordinal"))
        waited = F.least(
            F.coalesce("next_ms", F.lit(self._period.to_ms)), F.lit(self._period.to_ms)
        ) - F.greatest(F.col("ms"), F.lit(self._period.from_ms))
        waits = steps.withColumn("next_ms", following).where(
            F.col("phase_after").isNotNull() & F.col("server_after").isNull()
        )
        row = waits.agg(F.sum(F.greatest(waited, F.lit(0))).alias("ms")).first()
        return 0 if row is None or row["ms"] is None else int(row["ms"])

    # --- moves
    # ----------------------------------------------------------------------------------------------

    def moves(self) -> Moves:
        """Return the results, times and pauses of the moves."""
        frame = self._within(Table.TRANSFERS)
        bins: dict[str, dict[int, int]] = defaultdict(dict)
        for row in frame.groupBy("result", self._bin("at").alias("bin")).count().collect():
            bins[row["result"] or "?"][row["bin"]] = row["count"]
        paused = frame.where(F.col("pause_ms") >= 0)
        bar = F.floor(
            F.log10(F.greatest(F.col("pause_ms"), F.lit(1))) * figures.PAUSE_BINS_PER_DECADE + 1e-9
        )
        bars = {
            row["bar"]: row["count"] for row in paused.groupBy(bar.alias("bar")).count().collect()
        }
        sums = paused.agg(
            F.count("*").alias("pauses"),
            F.percentile_approx("pause_ms", [0.5, 0.99], 10_000).alias("quantiles"),
            F.max("pause_ms").alias("max"),
            F.sum("pause_ms").alias("sum"),
        ).first()
        assert sums is not None, "an aggregate over all rows has one row"
        p50, p99 = sums["quantiles"] or (None, None)
        return Moves(
            results={name: sum(found.values()) for name, found in sorted(bins.items())},
            bins={
                name: tuple(found.get(number, 0) for number in range(BINS))
                for name, found in sorted(bins.items())
            },
            pauses=sums["pauses"],
            pause_p50_ms=p50,
            pause_p99_ms=p99,
            pause_max_ms=sums["max"],
            pause_sum_ms=sums["sum"] or 0,
            pause_bars=bars,
        )

    def reasons(self) -> Few[Reason]:
        """Return the most frequent reasons for moves."""
        groups = (
            self._moves_with_reason()
            .groupBy("text")
            .agg(
                F.count("*").alias("count"),
                F.count_if(F.col("result") == "done").alias("done"),
                F.percentile_approx("pause_ms", 0.5).alias("pause_p50_ms"),
                F.min("reason").alias("example"),
            )
        )
        return _few(Reason, groups, (F.desc("count"), "text"), figures.REASONS_MAX)

    def bundle_moves(self) -> Few[BundleMoves]:
        """Return the bundles that moved most often, with their reasons."""
        frame = self._moves_with_reason()
        pause = F.coalesce(F.sum("pause_ms"), F.lit(0))
        groups = frame.groupBy("bundle").agg(
            F.count("*").alias("count"), pause.alias("pause_sum_ms")
        )
        rows, count = _first(
            groups, (F.desc("count"), F.desc("pause_sum_ms"), "bundle"), figures.MOVERS_MAX
        )
        reasons = self._reasons_of([row["bundle"] for row in rows], frame)
        return Few(
            shown=tuple(
                BundleMoves(**row.asDict(), reasons=tuple(reasons[row["bundle"]])) for row in rows
            ),
            count=count,
        )

    def broker_moves(self) -> Few[BrokerMoves]:
        """Return the brokers with the most moves to and from them."""
        frame = self._within(Table.TRANSFERS)
        went = F.col("result").isin("done", "unloaded")
        gave = frame.select(
            F.col("source").alias("broker"), F.lit("gave").alias("side"), went.alias("went")
        )
        got = frame.select(
            F.col("destination").alias("broker"), F.lit("got").alias("side"), went.alias("went")
        )
        groups = (
            gave.union(got)
            .where(F.col("broker").isNotNull())
            .groupBy("broker")
            .agg(
                F.count_if((F.col("side") == "gave") & F.col("went")).alias("gave"),
                F.count_if((F.col("side") == "got") & F.col("went")).alias("got"),
                F.count_if(~F.col("went")).alias("failed"),
                F.count("*").alias("count"),
            )
        )
        return _few(BrokerMoves, groups, (F.desc("count"), "broker"), figures.MOVERS_MAX)

    # --- deaths, splits, merges, decisions
    # ---------------------------------------------------------------------------------------------

    def deaths(self) -> Few[Death]:
        """Return the latest ends of brokers in log order, with the time until their bundles had
        owners again.
        """
        latest, count = _first(self._ends_of_brokers(), (F.desc("offset"),), figures.DEATHS_MAX)
        if not latest:
            return self._takeovers()
        healing = self._healing([row["offset"] for row in latest])
        shown = []
        for row in reversed(latest):
            bundles, waiting, healed_at_ms = healing.get(row["offset"], (0, 0, None))
            healed_ms = None if healed_at_ms is None else healed_at_ms - row["at_ms"]
            shown.append(
                Death(**row.asDict(), bundles=bundles, waiting=waiting, healed_ms=healed_ms)
            )
        return Few(shown=tuple(shown), count=count)

    def splits_and_merges(self) -> Few[SplitOrMerge]:
        """Return the latest splits and merges in log order."""
        steps = self._within(Table.TRANSITIONS).where(F.col("kind").isin("split", "merge"))
        ended, began = (
            F.col("phase_after").isNull(),
            F.col("phase_before").isNull() & F.col("phase_after").isNotNull(),
        )

        def names(condition: Column) -> Column:
            return F.slice(
                F.sort_array(F.collect_set(F.when(condition, F.col("bundle")))),
                1,
                figures.PARTS_MAX,
            )

        groups = (
            steps.groupBy("offset")
            .agg(
                F.first("kind").alias("kind"),
                F.first(_ms("at")).alias("at_ms"),
                F.first("publisher").alias("publisher"),
                F.first("reason").alias("reason"),
                names(ended).alias("before"),
                F.count_if(ended).alias("before_count"),
                names(began).alias("after"),
                F.count_if(began).alias("after_count"),
            )
            .where((F.col("before_count") > 0) & (F.col("after_count") > 0))
        )
        found = _few(SplitOrMerge, groups, (F.desc("offset"),), figures.SPLITS_AND_MERGES_MAX)
        return replace(found, shown=found.shown[::-1])

    def decisions(self) -> Few[Decided]:
        """Count the results of the balancing rounds, most frequent first."""
        names = ("kind", "strategy", "result", "cause")
        rounds = self._within(Table.DECISIONS).where(~F.col("kind").eqNullSafe("outcome"))
        groups = rounds.select(
            *(F.coalesce(name, F.lit("?")).alias(name) for name in names)
        ).groupBy(*names)
        return _few(Decided, groups.count(), (F.desc("count"), *names), figures.DECISIONS_MAX)

    # --- shared frames
    # ----------------------------------------------------------------------------------------------

    def _within(self, table: Table) -> DataFrame:
        """Return the rows of a table whose time lies in the period."""
        period = self._period
        frame = self._archive.frame(
            self._spark, table, first_day=_day(period.from_ms), last_day=_day(period.to_ms - 1)
        )
        at_ms = _ms("at")
        return frame.where((at_ms >= period.from_ms) & (at_ms < period.to_ms))

    def _steps_until_end(self) -> DataFrame:
        """Return all transitions before the end of the period. Older ones determine the state at
        its beginning.
        """
        frame = self._archive.frame(
            self._spark, Table.TRANSITIONS, last_day=_day(self._period.to_ms - 1)
        )
        return frame.where(_ms("at") < self._period.to_ms)

    def _all_ownerships(self) -> DataFrame:
        """Return all ownerships in the period: namespace, bundle, broker, from_ms, to_ms (cut to
        the period), how, is_older.
        """
        period = self._period
        ended = self._archive.frame(
            self._spark, Table.OWNERSHIP_INTERVALS, first_day=_day(period.from_ms)
        ).select(
            "namespace",
            "bundle",
            "broker",
            _ms("from_at").alias("begun_ms"),
            _ms("to_at").alias("ended_ms"),
            "how",
        )
        every = ended.union(self._open_ownerships())
        still = _served_at_first(self._archive)
        if still:
            every = every.union(self._still_ownerships(still))
        # An ownership without an archived beginning began at the end of the previous one, or before
        # all known times.
        rising = Window.partitionBy("namespace", "bundle").orderBy(
            F.asc_nulls_last("ended_ms"), F.asc_nulls_last("begun_ms")
        )
        every = every.withColumn(
            "before_ms", F.max("ended_ms").over(rising.rowsBetween(Window.unboundedPreceding, -1))
        )
        begun_ms, ended_ms = (
            F.coalesce("begun_ms", "before_ms", F.lit(0)),
            F.coalesce("ended_ms", F.lit(2**62)),
        )
        cut = every.select(
            "namespace",
            "bundle",
            "broker",
            F.greatest(begun_ms, F.lit(period.from_ms)).alias("from_ms"),
            F.least(ended_ms, F.lit(period.to_ms)).alias("to_ms"),
            F.when(ended_ms < period.to_ms, F.col("how")).alias("how"),
            (begun_ms < period.from_ms).alias("is_older"),
        )
        return cut.where(F.col("from_ms") < F.col("to_ms"))

    def _open_ownerships(self) -> DataFrame:
        """Return the ownerships open at the end of the archive: those after each bundle's last
        transition.
        """
        steps = self._archive.frame(self._spark, Table.TRANSITIONS)
        place = F.struct("offset", "ordinal")
        served = steps.select(
            "namespace",
            "bundle",
            place.alias("place"),
            _ms("at").alias("ms"),
            _served("before"),
            _served("after"),
        )
        is_new = ~F.col("server_before").eqNullSafe(F.col("server_after"))
        last = served.groupBy("namespace", "bundle").agg(
            F.max_by("server_after", "place").alias("broker"),
            F.max_by(F.when(is_new, F.col("ms")), F.when(is_new, F.col("place"))).alias("begun_ms"),
        )
        ended_ms, how = (
            F.lit(None).cast("bigint").alias("ended_ms"),
            F.lit(None).cast("string").alias("how"),
        )
        return last.where(F.col("broker").isNotNull()).select(
            "namespace", "bundle", "broker", "begun_ms", ended_ms, how
        )

    def _still_ownerships(self, rows: list[tuple[str, str, str | None]]) -> DataFrame:
        """Return the ownerships in the first snapshot whose bundles have no archived transition:
        they are still open.
        """
        schema = (
            "namespace STRING, bundle STRING, broker STRING, begun_ms BIGINT, ended_ms BIGINT, how"
            " STRING"
        )
        frame = self._spark.createDataFrame([(*row, None, None, None) for row in rows], schema)
        return frame.join(
            self._archive.frame(self._spark, Table.TRANSITIONS).select("bundle"),
            "bundle",
            "left_anti",
        ).select("namespace", "bundle", "broker", "begun_ms", "ended_ms", "how")

    def _moves_with_reason(self) -> DataFrame:
        """Return the moves of the period. `text` is the reason with its numbers replaced."""
        reason = F.regexp_replace(F.coalesce("reason", F.lit("no reason given")), _NUMBERS, "#")
        return self._within(Table.TRANSFERS).withColumn("text", reason)

    def _reasons_of(
        self, bundles: list[str], frame: DataFrame
    ) -> Mapping[str, list[tuple[str, int]]]:
        counts = frame.where(F.col("bundle").isin(bundles)).groupBy("bundle", "text").count()
        place = F.row_number().over(Window.partitionBy("bundle").orderBy(F.desc("count"), "text"))
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        few = counts.withColumn("place", place).where(F.col("place") <= figures.REASONS_EACH_MAX)
        for row in few.orderBy("bundle", "place").collect():
            found[row["bundle"]].append((row["text"], row["count"]))
        return found

    def _ends_of_brokers(self) -> DataFrame:
        """Return the accepted records that ended an incarnation: `down`, `left`, and each `joined`
        that replaced one.
        """
        records = self._within(Table.RECORDS).where(F.col("verdict") == ACCEPTED)
        broker = F.regexp_replace("key", "^[^/]*/(?=.)", "")
        records = records.select(
            "offset", _ms("at").alias("at_ms"), broker.alias("broker"), "kind", "publisher"
        )
        ended = self._archive.frame(
            self._spark, Table.OWNERSHIP_INTERVALS, first_day=_day(self._period.from_ms)
        )
        died = ended.where(F.col("how") == "died").select("offset").distinct()
        came_back = records.where(F.col("kind") == "joined").join(died, "offset", "left_semi")
        return records.where(F.col("kind").isin("down", "left")).union(came_back)

    def _healing(self, offsets: list[int]) -> Mapping[int, tuple[int, int, int | None]]:
        """Return for each death: the bundles left without a server, how many still have none, and
        when the last of the others got one.
        """
        steps = self._archive.frame(self._spark, Table.TRANSITIONS).select(
            "offset",
            "bundle",
            _ms("at").alias("ms"),
            "phase_after",
            _served("after"),
            _served("before"),
        )
        is_lost = (
            F.col("server_before").isNotNull()
            & F.col("server_after").isNull()
            & F.col("phase_after").isNotNull()
        )
        lost = steps.where(F.col("offset").isin(offsets) & is_lost).select(
            F.col("offset").alias("death"), "bundle"
        )
        later = steps.where(
            F.col("server_after").isNotNull() | F.col("phase_after").isNull()
        ).select("offset", "bundle", "ms")
        healed = lost.join(later, "bundle", "left").where(
            F.col("offset").isNull() | (F.col("offset") > F.col("death"))
        )
        each = healed.groupBy("death", "bundle").agg(F.min("ms").alias("ms"))
        sums = each.groupBy("death").agg(F.count("ms").alias("healed"), F.max("ms").alias("ms"))
        rows = (
            lost.groupBy("death")
            .agg(F.count("*").alias("bundles"))
            .join(sums, "death", "left")
            .collect()
        )
        return {
            row["death"]: (row["bundles"], row["bundles"] - (row["healed"] or 0), row["ms"])
            for row in rows
        }

    def _takeovers(self) -> Few[Death]:
        """Return the deaths in a Pulsar cluster. No record states one: the leader takes the bundles
        of the broker one by one.
        """
        taken = self._within(Table.OWNERSHIP_INTERVALS).where(F.col("how") == "died")
        groups = taken.groupBy("broker", F.session_window("at", _TAKEOVER)).agg(
            F.lit("down").alias("kind"),
            F.min(_ms("at")).alias("at_ms"),
            F.min("offset").alias("offset"),
            F.lit(None).cast("string").alias("publisher"),
            F.count_distinct("bundle").alias("bundles"),
            F.lit(0).alias("waiting"),
            (F.max(_ms("at")) - F.min(_ms("at"))).alias("healed_ms"),
        )
        found = _few(Death, groups, (F.desc("offset"),), figures.DEATHS_MAX)
        return replace(found, shown=found.shown[::-1])

    def _greatest(self, frame: DataFrame, name: str, weight: Column) -> tuple[list[str], int]:
        """Return the names with the greatest weights, sorted by name, and the number of further
        names.
        """
        groups = frame.where(F.col(name).isNotNull()).groupBy(name).agg(weight.alias("weight"))
        rows = groups.orderBy(F.desc("weight"), name).limit(figures.BROKERS_MAX + 1).collect()
        left_out = 0 if len(rows) <= figures.BROKERS_MAX else groups.count() - figures.BROKERS_MAX
        return sorted(row[name] for row in rows[: figures.BROKERS_MAX]), left_out

    def _bin(self, name: str, columns: int = BINS) -> Column:
        """Return the time column of a timestamp."""
        return F.least(
            F.floor((_ms(name) - self._period.from_ms) * columns / self._period.length_ms),
            F.lit(columns - 1),
        ).cast("int")


def _few(
    kind: type[Shown], frame: DataFrame, order: Iterable[Column | str], most: int
) -> Few[Shown]:
    """Return the first rows of a frame. Its columns have the names of the fields of `kind`."""
    rows, count = _first(frame, order, most)
    return Few(shown=tuple(_made(kind, row) for row in rows), count=count)


def _made(kind: type[Shown], row: Row) -> Shown:
    cells = {field.name: row[field.name] for field in fields(kind)}
    return kind(
        **{name: tuple(cell) if isinstance(cell, list) else cell for name, cell in cells.items()}
    )


def _first(frame: DataFrame, order: Iterable[Column | str], most: int) -> tuple[list[Row], int]:
    """Return the first rows of a frame and its row count. The full count runs only if there are
    more than `most` rows.
    """
    rows = frame.orderBy(*order).limit(most + 1).collect()
    return rows[:most], len(rows) if len(rows) <= most else frame.count()


def _served_at_first(archive: Archive) -> list[tuple[str, str, str | None]]:
    """Return namespace, bundle and broker of all bundles served at the archive's first snapshot.
    Memory: one view.
    """
    for path in archive.files(Table.SNAPSHOTS):
        for batch in archive.file_batches(path, Table.SNAPSHOTS, columns=("bytes",)):
            view = unpacked(batch.column("bytes")[0].as_py())
            brokers = {broker.incarnation: broker.broker for broker in view.live_brokers()}
            return [
                (bundle.namespace, bundle.name, brokers.get(bundle.server))
                for bundle in view.bundles.values()
                if bundle.server is not None
            ]
    return []


def _served(side: str) -> Column:
    """Return the broker that serves a bundle before or after a transition, as in
    `BundleEntry.server`; null if there is none.
    """
    phase = F.col(f"phase_{side}")
    by_owner = F.when(phase.isin("owned", "splitting"), F.col(f"owner_{side}"))
    return by_owner.when(
        phase.isin("transferring", "handing_over", "unloading"), F.col(f"source_{side}")
    ).alias(f"server_{side}")


def _ms(name: str) -> Column:
    return F.unix_millis(F.col(name))


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).date().isoformat()
