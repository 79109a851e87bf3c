"""What a report shows, got out of an archive by Spark: sums, the greatest and the latest, never whole tables.

May live here: queries over the archive's tables, each of which brings to this process no more than `spark_jobs.report.figures` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median_low
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's pages call it
from pyspark.sql.window import Window

from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.report import figures
from equipoise.spark_jobs.report.figures import (
    BINS,
    BrokerMoves,
    BundleMoves,
    Death,
    Few,
    Found,
    Grid,
    Lane,
    Moves,
    Ownership,
    Period,
    Reason,
    Report,
    SplitOrMerge,
    gravity,
)
from equipoise.spark_jobs.rules.catalogue import BY_NAME
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.sequence.snapshots import unpacked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

ACCEPTED: Final = "accepted"

_NUMBERS: Final = r"0x[0-9a-fA-F]+|[0-9][0-9.,]*"
"""What differs between two reasons that are the same to a reader: figures, and the numbers in names."""


def extent(archive: Archive, spark: SparkSession) -> Period | None:
    """From the first to the last time in an archive; None if it holds nothing."""
    found: list[tuple[int, int]] = []
    for table in (Table.RECORDS, Table.FINDINGS, Table.BROKER_LOAD, Table.DECISIONS):
        days = archive.days(table)
        if days:
            # The log's time never falls, so the days between the first and the last need not be read.
            firsts = archive.frame(spark, table, first_day=days[0], last_day=days[0])
            lasts = archive.frame(spark, table, first_day=days[-1], last_day=days[-1])
            row = firsts.select("at").union(lasts.select("at")).agg(F.min(_ms("at")), F.max(_ms("at"))).first()
            if row is not None and row[0] is not None:
                found.append((row[0], row[1]))
    if not found:
        return None
    return Period(from_ms=min(first for first, _ in found), to_ms=max(last for _, last in found) + 1)


class Queries:
    """The figures of one period of an archive."""

    def __init__(self, archive: Archive, spark: SparkSession, period: Period) -> None:
        """`close` lets go of what is kept between queries."""
        self._archive = archive
        self._spark = spark
        self._period = period
        self._ownerships = self._all_ownerships().persist()

    def close(self) -> None:
        """Let go of what was kept."""
        self._ownerships.unpersist()

    def filled(self, about: Report) -> Report:
        """`about` with all figures of the period."""
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

    # --- what was found, what was written ----------------------------------------------------------------------------------------------

    def broken(self) -> tuple[figures.Broken, ...]:
        """How often which rule was broken, the gravest first."""
        rows = self._within(Table.FINDINGS).groupBy("rule").count().limit(figures.KINDS_MAX).collect()
        found = [figures.Broken(rule=row["rule"], count=row["count"]) for row in rows]
        return tuple(sorted(found, key=lambda each: (gravity(each.rule), -each.count, each.rule)))

    def findings(self) -> Few[Found]:
        """The gravest findings of the period; of equals those that came first."""
        frame = self._within(Table.FINDINGS)
        graveness = F.lit(gravity(""))
        for name in BY_NAME:
            graveness = F.when(F.col("rule") == name, gravity(name)).otherwise(graveness)
        rows, count = _first(frame.withColumn("at_ms", _ms("at")), (graveness, "offset", "ordinal", "rule"), figures.FINDINGS_MAX)
        shown = tuple(
            Found(
                rule=row["rule"],
                subject=row["subject"],
                offsets=tuple(row["offsets"] or ()),
                at_ms=row["at_ms"],
                text=row["text"],
                command=row["command"],
                publisher=row["publisher"],
            )
            for row in rows
        )
        return Few(shown=shown, count=count)

    def records(self) -> tuple[figures.Counted, ...]:
        """Records by kind and verdict, the most of them first."""
        counts = self._within(Table.RECORDS).groupBy("kind", "verdict").count()
        rows = counts.orderBy(F.desc("count"), "kind", "verdict").limit(figures.KINDS_MAX).collect()
        return tuple(figures.Counted(kind=row["kind"], verdict=row["verdict"], count=row["count"]) for row in rows)

    # --- who served what ---------------------------------------------------------------------------------------------------------------

    def lanes(self) -> Few[Lane]:
        """The ownerships of the bundles that changed hands most often."""
        ownerships = self._ownerships
        begun = (~F.col("is_older")).cast("int") + (F.col("to_ms") < self._period.to_ms).cast("int")
        of_bundles = ownerships.groupBy("namespace", "bundle").agg(F.sum(begun).alias("changes"))
        busiest, count = _first(of_bundles, (F.desc("changes"), "namespace", "bundle"), figures.LANES_MAX)
        seen = (F.col("to_ms") - F.col("from_ms")) * figures.MARKS >= self._period.length_ms
        names = [row["bundle"] for row in busiest]
        rows = ownerships.where(F.col("bundle").isin(names) & seen).select("bundle", "broker", "from_ms", "to_ms", "how").collect()
        found: dict[str, list[Ownership]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row["from_ms"], row["to_ms"])):
            found[row["bundle"]].append(Ownership(broker=row["broker"] or "?", from_ms=row["from_ms"], to_ms=row["to_ms"], how=row["how"]))
        lanes = [
            Lane(namespace=row["namespace"], bundle=row["bundle"], changes=row["changes"], ownerships=tuple(found[row["bundle"]]))
            for row in busiest
        ]
        return Few(shown=figures.by_namespace(lanes), count=count)

    def owned(self) -> Grid:
        """How many bundles each broker served on average in each column of time."""
        period = self._period
        begun = self._ownerships.select("broker", F.col("from_ms").alias("at_ms"), F.lit(1).alias("change"))
        ended = self._ownerships.select("broker", F.col("to_ms").alias("at_ms"), F.lit(-1).alias("change"))
        place = (F.col("at_ms") - period.from_ms) / period.bin_ms
        steps = begun.union(ended).withColumn("bin", F.floor(place)).withColumn("part", F.col("change") * (F.col("bin") + 1 - place))
        sums = steps.where(F.col("bin") < BINS).groupBy("broker", "bin").agg(F.sum("change").alias("change"), F.sum("part").alias("part"))
        weight = F.sum(F.col("to_ms") - F.col("from_ms"))
        brokers, left_out = self._greatest(self._ownerships, "broker", weight)
        found: dict[str, dict[int, tuple[int, float]]] = {broker: {} for broker in brokers}
        for row in sums.where(F.col("broker").isin(brokers)).collect():
            found[row["broker"]][row["bin"]] = (row["change"], row["part"])
        return Grid(brokers=tuple(brokers), rows=tuple(figures.averages(found[broker]) for broker in brokers), left_out=left_out)

    def cpu(self) -> Grid:
        """The share of its processor that each broker used, as it reported it."""
        every = self._within(Table.BROKER_LOAD).where(F.col("broker").isNotNull() & F.col("cpu").isNotNull())
        brokers, left_out = self._greatest(every, "broker", F.avg("cpu"))
        loads = every.where(F.col("broker").isin(brokers)).select("broker", "at", "cpu", _ms("at").alias("ms"))
        gap = F.col("ms") - F.lag("ms").over(Window.partitionBy("broker").orderBy("ms"))
        # Reports are due as often as they usually come. One gap in ten may be a silence, and does not count.
        usual = loads.withColumn("gap", gap).groupBy("broker").agg(F.percentile_approx("gap", 0.9).alias("gap"))
        due_ms = {row["broker"]: row["gap"] or 0 for row in usual.collect()}
        columns = figures.columns_of(self._period, median_low(due_ms.values() or [0]))
        found: dict[str, dict[int, figures.Heard]] = {broker: {} for broker in brokers}
        heard = loads.groupBy("broker", self._bin("at", columns).alias("bin")).agg(F.avg("cpu"), F.max_by("cpu", "ms"), F.max("ms"))
        for row in heard.collect():
            found[row["broker"]][row["bin"]] = figures.Heard(*row[2:])
        rows = tuple(figures.held(found[broker], self._period, columns=columns, interval_ms=due_ms[broker]) for broker in brokers)
        return Grid(brokers=tuple(brokers), rows=rows, left_out=left_out)

    def unserved_ms(self) -> int:
        """The sum, over all bundles, of the time of the period in which nobody served them."""
        steps = self._steps_until_end().select("bundle", "offset", "ordinal", "phase_after", _ms("at").alias("ms"), _served("after"))
        following = F.lead("ms").over(Window.partitionBy("bundle").orderBy("offset", "ordinal"))
        waited = F.least(F.coalesce("next_ms", F.lit(self._period.to_ms)), F.lit(self._period.to_ms)) - F.greatest(
            F.col("ms"), F.lit(self._period.from_ms)
        )
        waits = steps.withColumn("next_ms", following).where(F.col("phase_after").isNotNull() & F.col("server_after").isNull())
        row = waits.agg(F.sum(F.greatest(waited, F.lit(0))).alias("ms")).first()
        return 0 if row is None or row["ms"] is None else int(row["ms"])

    # --- moves -------------------------------------------------------------------------------------------------------------------------

    def moves(self) -> Moves:
        """What became of moves, when, and how long clients may have noticed them."""
        frame = self._within(Table.TRANSFERS)
        bins: dict[str, dict[int, int]] = defaultdict(dict)
        for row in frame.groupBy("result", self._bin("at").alias("bin")).count().collect():
            bins[row["result"] or "?"][row["bin"]] = row["count"]
        paused = frame.where(F.col("pause_ms") >= 0)
        bar = F.floor(F.log10(F.greatest(F.col("pause_ms"), F.lit(1))) * figures.PAUSE_BINS_PER_DECADE + 1e-9)
        bars = {row["bar"]: row["count"] for row in paused.groupBy(bar.alias("bar")).count().collect()}
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
            bins={name: figures.spread_counts(found) for name, found in sorted(bins.items())},
            pauses=sums["pauses"],
            pause_p50_ms=p50,
            pause_p99_ms=p99,
            pause_max_ms=sums["max"],
            pause_sum_ms=sums["sum"] or 0,
            pause_bars=bars,
        )

    def reasons(self) -> Few[Reason]:
        """The reasons for which most moves were asked for."""
        frame = self._moves_with_reason()
        groups = frame.groupBy("what_for").agg(
            F.count("*").alias("count"),
            F.sum((F.col("result") == "done").cast("int")).alias("done"),
            F.percentile_approx("pause_ms", 0.5).alias("p50"),
            F.min("reason").alias("example"),
        )
        rows, count = _first(groups, (F.desc("count"), "what_for"), figures.REASONS_MAX)
        shown = tuple(
            Reason(text=row["what_for"], example=row["example"] or "", count=row["count"], done=row["done"] or 0, pause_p50_ms=row["p50"])
            for row in rows
        )
        return Few(shown=shown, count=count)

    def bundle_moves(self) -> Few[BundleMoves]:
        """The bundles that moved most often, and why."""
        frame = self._moves_with_reason()
        groups = frame.groupBy("namespace", "bundle").agg(
            F.count("*").alias("count"),
            F.sum((F.col("result") == "done").cast("int")).alias("done"),
            F.sum("pause_ms").alias("pause"),
        )
        rows, count = _first(groups, (F.desc("count"), F.desc("pause"), "bundle"), figures.MOVERS_MAX)
        reasons = self._reasons_of([row["bundle"] for row in rows], frame)
        shown = tuple(
            BundleMoves(
                namespace=row["namespace"],
                bundle=row["bundle"],
                count=row["count"],
                done=row["done"] or 0,
                pause_sum_ms=row["pause"] or 0,
                reasons=tuple(reasons[row["bundle"]]),
            )
            for row in rows
        )
        return Few(shown=shown, count=count)

    def broker_moves(self) -> Few[BrokerMoves]:
        """The brokers that moves went to and came from most often."""
        frame = self._within(Table.TRANSFERS)
        went = F.col("result").isin("done", "unloaded")
        gave = frame.select(F.col("source").alias("broker"), F.lit("gave").alias("side"), went.alias("went"))
        got = frame.select(F.col("destination").alias("broker"), F.lit("got").alias("side"), went.alias("went"))
        each = gave.union(got).where(F.col("broker").isNotNull())

        def counted(condition: Column) -> Column:
            return F.sum(condition.cast("int"))

        groups = each.groupBy("broker").agg(
            counted((F.col("side") == "gave") & F.col("went")).alias("gave"),
            counted((F.col("side") == "got") & F.col("went")).alias("got"),
            counted(~F.col("went")).alias("failed"),
            F.count("*").alias("count"),
        )
        rows, count = _first(groups, (F.desc("count"), "broker"), figures.MOVERS_MAX)
        shown = tuple(BrokerMoves(broker=row["broker"], gave=row["gave"], got=row["got"], failed=row["failed"]) for row in rows)
        return Few(shown=shown, count=count)

    # --- deaths, splits, merges, decisions ---------------------------------------------------------------------------------------------

    def deaths(self) -> Few[Death]:
        """The latest ends of brokers, in the order in which they came, and how long their bundles waited for an owner."""
        ends = self._ends_of_brokers()
        latest, count = _first(ends, (F.desc("offset"),), figures.DEATHS_MAX)
        children = self._healing([row["offset"] for row in latest])
        shown = []
        for row in reversed(latest):
            bundles, waiting, healed_ms = children.get(row["offset"], (0, 0, None))
            at_ms = row["at_ms"]
            shown.append(
                Death(
                    broker=row["key"].partition("/")[2] or row["key"],
                    kind=row["kind"],
                    at_ms=at_ms,
                    offset=row["offset"],
                    publisher=row["publisher"],
                    bundles=bundles,
                    waiting=waiting,
                    healed_ms=None if healed_ms is None else healed_ms - at_ms,
                )
            )
        return Few(shown=tuple(shown), count=count)

    def splits_and_merges(self) -> Few[SplitOrMerge]:
        """The latest splits and merges, in the order in which they came."""
        steps = self._within(Table.TRANSITIONS).where(F.col("kind").isin("split", "merge"))
        ended, began = F.col("phase_after").isNull(), F.col("phase_before").isNull() & F.col("phase_after").isNotNull()

        def names(condition: Column) -> Column:
            return F.slice(F.sort_array(F.collect_set(F.when(condition, F.col("bundle")))), 1, figures.PARTS_MAX)

        groups = (
            steps.groupBy("offset")
            .agg(
                F.first("kind").alias("kind"),
                F.first(_ms("at")).alias("at_ms"),
                F.first("publisher").alias("publisher"),
                F.first("reason").alias("reason"),
                names(ended).alias("before"),
                F.sum(ended.cast("int")).alias("before_count"),
                names(began).alias("after"),
                F.sum(began.cast("int")).alias("after_count"),
            )
            .where((F.col("before_count") > 0) & (F.col("after_count") > 0))
        )
        rows, count = _first(groups, (F.desc("offset"),), figures.SPLITS_AND_MERGES_MAX)
        shown = tuple(
            SplitOrMerge(
                kind=row["kind"],
                at_ms=row["at_ms"],
                offset=row["offset"],
                publisher=row["publisher"],
                reason=row["reason"],
                before=tuple(row["before"]),
                before_count=row["before_count"],
                after=tuple(row["after"]),
                after_count=row["after_count"],
            )
            for row in reversed(rows)
        )
        return Few(shown=shown, count=count)

    def decisions(self) -> Few[figures.Decided]:
        """What the balancer's rounds came to, the most frequent first."""
        names = ("kind", "strategy", "result", "cause")
        groups = self._within(Table.DECISIONS).select(*(F.coalesce(name, F.lit("?")).alias(name) for name in names)).groupBy(*names)
        rows, count = _first(groups.count(), (F.desc("count"), *names), figures.DECISIONS_MAX)
        shown = tuple(figures.Decided(**{name: row[name] for name in names}, count=row["count"]) for row in rows)
        return Few(shown=shown, count=count)

    # --- what the queries stand on -----------------------------------------------------------------------------------------------------

    def _within(self, table: Table) -> DataFrame:
        """The rows of a table whose time lies in the period."""
        period = self._period
        frame = self._archive.frame(self._spark, table, first_day=_day(period.from_ms), last_day=_day(period.to_ms - 1))
        at_ms = _ms("at")
        return frame.where((at_ms >= period.from_ms) & (at_ms < period.to_ms))

    def _steps_until_end(self) -> DataFrame:
        """All transitions before the end of the period: what stands at its beginning was done before."""
        frame = self._archive.frame(self._spark, Table.TRANSITIONS, last_day=_day(self._period.to_ms - 1))
        return frame.where(_ms("at") < self._period.to_ms)

    def _all_ownerships(self) -> DataFrame:
        """Who served what in the period: namespace, bundle, broker, from_ms, to_ms (cut off at its ends), how, is_older."""
        period = self._period
        ended = self._archive.frame(self._spark, Table.OWNERSHIP_INTERVALS, first_day=_day(period.from_ms)).select(
            "namespace", "bundle", "broker", _ms("from_at").alias("begun_ms"), _ms("to_at").alias("ended_ms"), "how"
        )
        every = ended.union(self._open_ownerships())
        still = _served_at_first(self._archive)
        if still:
            every = every.union(self._still_ownerships(still))
        # One whose beginning nobody archived began when the one before it had ended, or before all that is known.
        rising = Window.partitionBy("namespace", "bundle").orderBy(F.asc_nulls_last("ended_ms"), F.asc_nulls_last("begun_ms"))
        every = every.withColumn("before_ms", F.max("ended_ms").over(rising.rowsBetween(Window.unboundedPreceding, -1)))
        begun_ms, ended_ms = F.coalesce("begun_ms", "before_ms", F.lit(0)), F.coalesce("ended_ms", F.lit(2**62))
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
        """Ownerships that had not ended when the archive did: those that the last transition of their bundle leaves."""
        steps = self._archive.frame(self._spark, Table.TRANSITIONS)
        place = F.struct("offset", "ordinal")
        served = steps.select("namespace", "bundle", place.alias("place"), _ms("at").alias("ms"), _served("before"), _served("after"))
        is_new = ~F.col("server_before").eqNullSafe(F.col("server_after"))
        last = served.groupBy("namespace", "bundle").agg(
            F.max_by("server_after", "place").alias("broker"),
            F.max_by(F.when(is_new, F.col("ms")), F.when(is_new, F.col("place"))).alias("begun_ms"),
        )
        ended_ms, how = F.lit(None).cast("bigint").alias("ended_ms"), F.lit(None).cast("string").alias("how")
        return last.where(F.col("broker").isNotNull()).select("namespace", "bundle", "broker", "begun_ms", ended_ms, how)

    def _still_ownerships(self, rows: list[tuple[str, str, str | None]]) -> DataFrame:
        """Of what was served at the first snapshot, what the archive has seen no transition of: it is served so to this day."""
        schema = "namespace STRING, bundle STRING, broker STRING, begun_ms BIGINT, ended_ms BIGINT, how STRING"
        frame = self._spark.createDataFrame([(*row, None, None, None) for row in rows], schema)
        return frame.join(self._archive.frame(self._spark, Table.TRANSITIONS).select("bundle"), "bundle", "left_anti").select(
            "namespace", "bundle", "broker", "begun_ms", "ended_ms", "how"
        )

    def _moves_with_reason(self) -> DataFrame:
        """Moves of the period; `what_for` is the reason without what differs from one move to the next."""
        reason = F.regexp_replace(F.coalesce("reason", F.lit("no reason told")), _NUMBERS, "#")
        return self._within(Table.TRANSFERS).withColumn("what_for", reason)

    def _reasons_of(self, bundles: list[str], frame: DataFrame) -> Mapping[str, list[tuple[str, int]]]:
        counts = frame.where(F.col("bundle").isin(bundles)).groupBy("bundle", "what_for").count()
        place = F.row_number().over(Window.partitionBy("bundle").orderBy(F.desc("count"), "what_for"))
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        few = counts.withColumn("place", place).where(F.col("place") <= figures.REASONS_EACH_MAX)
        for row in few.orderBy("bundle", "place").collect():
            found[row["bundle"]].append((row["what_for"], row["count"]))
        return found

    def _ends_of_brokers(self) -> DataFrame:
        """Accepted records that ended an incarnation: who is down or left, and who came back and so took its own place."""
        records = self._within(Table.RECORDS).where(F.col("verdict") == ACCEPTED)
        records = records.select("offset", _ms("at").alias("at_ms"), "key", "kind", "publisher")
        ended = self._archive.frame(self._spark, Table.OWNERSHIP_INTERVALS, first_day=_day(self._period.from_ms))
        died = ended.where(F.col("how") == "died").select("offset").distinct()
        came_back = records.where(F.col("kind") == "joined").join(died, "offset", "left_semi")
        return records.where(F.col("kind").isin("down", "left")).union(came_back)

    def _healing(self, offsets: list[int]) -> Mapping[int, tuple[int, int, int | None]]:
        """For each of these deaths: how many bundles it left without a server, how many still have none, when the last had one again."""
        steps = self._archive.frame(self._spark, Table.TRANSITIONS).select(
            "offset", "bundle", _ms("at").alias("ms"), "phase_after", _served("after"), _served("before")
        )
        is_lost = F.col("server_before").isNotNull() & F.col("server_after").isNull() & F.col("phase_after").isNotNull()
        lost = steps.where(F.col("offset").isin(offsets) & is_lost).select(F.col("offset").alias("death"), "bundle")
        later = steps.where(F.col("server_after").isNotNull() | F.col("phase_after").isNull()).select("offset", "bundle", "ms")
        healed = lost.join(later, "bundle", "left").where(F.col("offset").isNull() | (F.col("offset") > F.col("death")))
        each = healed.groupBy("death", "bundle").agg(F.min("ms").alias("ms"))
        sums = each.groupBy("death").agg(F.count("ms").alias("healed"), F.max("ms").alias("ms"))
        rows = lost.groupBy("death").agg(F.count("*").alias("bundles")).join(sums, "death", "left").collect()
        return {row["death"]: (row["bundles"], row["bundles"] - (row["healed"] or 0), row["ms"]) for row in rows}

    def _greatest(self, frame: DataFrame, name: str, weight: Column) -> tuple[list[str], int]:
        """The names with the greatest weights, in order of their names; and how many more there are."""
        groups = frame.where(F.col(name).isNotNull()).groupBy(name).agg(weight.alias("weight"))
        rows = groups.orderBy(F.desc("weight"), name).limit(figures.BROKERS_MAX + 1).collect()
        left_out = 0 if len(rows) <= figures.BROKERS_MAX else groups.count() - figures.BROKERS_MAX
        return sorted(row[name] for row in rows[: figures.BROKERS_MAX]), left_out

    def _bin(self, name: str, columns: int = BINS) -> Column:
        """The column of time in which a timestamp lies."""
        return F.least(F.floor((_ms(name) - self._period.from_ms) * columns / self._period.length_ms), F.lit(columns - 1)).cast("int")


def _first(frame: DataFrame, order: Iterable[Column | str], most: int) -> tuple[list[Row], int]:
    """The first rows of a frame, and how many it has; only where these are more than are wanted are all counted."""
    rows = frame.orderBy(*order).limit(most + 1).collect()
    return rows[:most], len(rows) if len(rows) <= most else frame.count()


def _served_at_first(archive: Archive) -> list[tuple[str, str, str | None]]:
    """Namespace, bundle and broker of what was served at the archive's first snapshot. It is one view, which all readers hold."""
    for path in archive.files(Table.SNAPSHOTS):
        for batch in archive.file_batches(path, Table.SNAPSHOTS, columns=("bytes",)):
            view = unpacked(batch.column("bytes")[0].as_py())
            brokers = {broker.incarnation: broker.broker for broker in view.live_brokers()}
            return [
                (bundle.namespace, bundle.name, brokers.get(bundle.server)) for bundle in view.bundles.values() if bundle.server is not None
            ]
    return []


def _served(side: str) -> Column:
    """The broker that serves a bundle before or after a transition, as `BundleEntry.server` has it; null if nobody does."""
    phase = F.col(f"phase_{side}")
    by_owner = F.when(phase.isin("owned", "splitting"), F.col(f"owner_{side}"))
    return by_owner.when(phase.isin("transferring", "handing_over", "unloading"), F.col(f"source_{side}")).alias(f"server_{side}")


def _ms(name: str) -> Column:
    return F.unix_millis(F.col(name))


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).date().isoformat()
