"""Archive a day of three brokers: renewals, moves, deaths, load reports and decisions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from equipoise.brokers.decision_log import encode
from equipoise.brokers.load.documents import encode_load
from equipoise.channel.core import propose
from equipoise.shedder.loads import BundleTraffic, Load, Resources, Traffic, Use, averaged
from equipoise.spark_jobs.sequence.rows import Arrival, Source
from tests.channels.busy_channel import BusyChannel
from tests.channels.folding import joined
from tests.decisions import idle, outcome, shed
from tests.spark.archived import archived

BEGAN_MS = 1_763_769_600_000
"""2025-11-22, at midnight (UTC)."""

DAY_MS = 86_400_000
BROKERS = 3
BUNDLES = 64
RENEWALS = 0.98
BATCH = 10_000
REPORT_EVERY_MS = 30_000
ROUND_EVERY_MS = 60_000
DEATH_EVERY_MS = 2 * 3_600_000


class Day(BusyChannel):
    """The channel of the day. `die_and_return` is what happens now and then."""

    def __init__(self) -> None:
        super().__init__(brokers=BROKERS, bundles=BUNDLES, renewals=RENEWALS)

    def die_and_return(self) -> None:
        """A broker dies, the others take its bundles, and it joins again."""
        broker = self._random.choice(self._brokers)
        self.die(broker)
        self._moving = None
        for name in self.names:
            bundle = self.view.bundles[name]
            if bundle.phase == "free":
                other = self._random.choice([each for each in self._brokers if each != broker])
                owner = self.incarnation(other)
                self.accept(propose.assign(self.author(other), bundle, owner=owner))
                self.accept(propose.opened(self.author(other), self.view.bundles[name]))
        self.accept(joined(broker, self.view, instance_id=f"{broker} again {self.view.offset}"))


def arrivals(records: int) -> Iterator[Arrival]:
    """Yield what the sources give in about so many records."""
    channel, step_ms = Day(), DAY_MS / records
    entries = channel.steps()
    chance = random.Random(1)
    due = {"report": 0, "round": 0, "death": DEATH_EVERY_MS}
    counts = dict.fromkeys((Source.LOADS, Source.DECISIONS), 0)
    for number, (offset, data) in enumerate(islice(entries, records)):
        passed_ms = int(number * step_ms)
        at_ms = BEGAN_MS + passed_ms
        yield Arrival(Source.CHANNEL, offset, at_ms, data)
        notes: list[tuple[Source, bytes]] = []
        if passed_ms >= due["death"]:
            due["death"] += DEATH_EVERY_MS
            channel.die_and_return()
        if passed_ms >= due["report"]:
            due["report"] += REPORT_EVERY_MS
            notes += [(Source.LOADS, data) for data in _reports(channel, at_ms, chance)]
        if passed_ms >= due["round"]:
            due["round"] += ROUND_EVERY_MS
            make = chance.choice((idle, idle, shed, outcome))
            notes.append((Source.DECISIONS, encode(make(at_ms))))
        for source, document in notes:
            yield Arrival(source, counts[source], at_ms, document)
            counts[source] += 1


def _reports(channel: Day, at_ms: int, chance: random.Random) -> Iterator[bytes]:
    for incarnation, broker in sorted(channel.view.live.items()):
        bundles = tuple(
            BundleTraffic(
                bundle=bundle.name,
                traffic=Traffic(messages_in_per_second=chance.random() * 1_000),
                cost=chance.random(),
            )
            for bundle in channel.view.bundles.values()
            if bundle.server == incarnation
        )
        load = Load(
            broker=broker.broker,
            at_ms=at_ms,
            resources=Resources(cpu=Use(used=chance.random() * 100, limit=100)),
            bundle_count=len(bundles),
            cost=sum(bundle.cost for bundle in bundles),
            bundles=bundles,
        )
        yield encode_load(averaged(None, load))


def archive_day(path: Path, *, records: int) -> None:
    """Archive the day in batches as a running archive writes them."""
    left = arrivals(records)
    batches = iter(lambda: list(islice(left, BATCH)), [])
    archived(path, list(batches), snapshot_records=100_000)
