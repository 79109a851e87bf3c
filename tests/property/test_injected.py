"""The audit names every kind of injected violation, and says nothing of honest channels, in one
process as in Spark.

`make bench BENCH=audit_injected` injects each kind at more places, and `make bench
BENCH=audit_honest` asks for a million records.
"""

from __future__ import annotations

from random import Random

import orjson
import pytest

from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot import to_bytes
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.sequence.rows import Arrival, Source
from tests.injected.forgeries import FORGERIES
from tests.injected.honest import honest, play
from tests.injected.injection import Kind
from tests.injected.kinds import KINDS, trials
from tests.injected.mutants import CONTRADICTIONS, broken_folds
from tests.injected.obedience import DISOBEDIENCES
from tests.simulation.scenario import SCENARIOS
from tests.spark.spark_host import archive_findings_of, spark_findings_of
from tests.spark.spark_pipeline import findings_of

KINDS_MIN = 30
MUTANTS_MIN = 10
PLACES = 1
SECONDS = 8
HOUR_MS = 3_600_000
pytestmark = pytest.mark.slow

SEEDS = (101,)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_injected_violation_is_named(kind: Kind) -> None:
    """A finding has one of its rules, its subject and its offset. Both hosts find the same."""
    tried = list(trials(kind, places=PLACES))
    assert PLACES == len(tried)
    assert [] == [str(trial) for trial in tried if not trial.is_named]
    assert [] == [str(trial) for trial in tried if not trial.is_same_in_spark]


def test_there_are_enough_kinds() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names)
    assert len(names) >= KINDS_MIN
    assert len(broken_folds()) + len(DISOBEDIENCES) >= MUTANTS_MIN


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_honest_brokers_break_no_rule(name: str) -> None:
    for seed in SEEDS:
        run = play(honest(name, seconds=SECONDS), seed, evidence=True)
        assert [] == findings_of(run.arrivals) == spark_findings_of(run.arrivals)
        assert [] == archive_findings_of(run.arrivals)


@pytest.mark.parametrize("name", ["calm", "compaction", "long-outages"])
def test_honest_brokers_break_no_rule_for_an_audit_that_begins_in_the_middle(name: str) -> None:
    run = play(honest(name, seconds=SECONDS), SEEDS[0], evidence=True)
    reader = Reader(log="injected")
    for arrival in run.channel[: len(run.channel) // 2]:
        reader.feed(Entry(arrival.offset, arrival.value or b""))
    left = [
        arrival
        for arrival in run.arrivals
        if arrival.source != Source.CHANNEL or arrival.offset >= reader.position
    ]
    assert [] == findings_of(left, begin=to_bytes(reader.view))


def test_clocks_that_are_an_hour_apart_blame_nobody() -> None:
    """Those of brokers on machines of their own, and that of the log once it is set back."""
    run = play(honest("moves", seconds=SECONDS), SEEDS[0], evidence=True)
    half = run.channel[len(run.channel) // 2].offset
    apart: list[Arrival] = []
    for note in run.serving:
        document = orjson.loads(note.value or b"")
        clock_ms = (0, HOUR_MS, -HOUR_MS)[int(document["broker"][-1]) % 3]
        away = {"boot": document["broker"], "at_ms": document["at_ms"] + clock_ms}
        apart.append(note._replace(value=orjson.dumps({**document, **away})))
    assert [] == findings_of([*run.channel, *apart])
    set_back = [
        each._replace(at_ms=each.at_ms - HOUR_MS * (each.offset > half)) for each in run.channel
    ]
    assert {"time_fell"} == {each.rule for each in findings_of([*set_back, *run.serving])}


@pytest.mark.parametrize("name", ["lost-directories", "moves"])
def test_a_clock_that_was_set_back_breaks_no_rule(name: str) -> None:
    channel = play(honest(name, seconds=12), 7).channel
    stands_ms = channel[len(channel) // 3].at_ms
    assert [] == findings_of(
        [arrival._replace(at_ms=min(arrival.at_ms, stands_ms)) for arrival in channel]
    )


@pytest.mark.parametrize("name", ["flips_a_byte", "takes_many_records_away"])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_damage_is_one_alarm_that_accuses_no_broker(name: str, seed: int) -> None:
    """What follows from it is folded under it."""
    kind = next(kind for kind in KINDS if kind.name == name)
    injected = kind.inject(seed, Random(seed))
    assert injected is not None
    found = findings_of(injected.arrivals)
    assert {"log:"} == {finding.subject for finding in found}
    alarms = [finding for finding in found if RULES[finding.rule].severity == "alarm"]
    assert (1, [*injected.named_by(alarms)]) == (len(alarms), alarms)
    assert {"damage_spreads"} >= {finding.rule for finding in found} - injected.rules


def test_batches_do_not_change_findings() -> None:
    kind = next(kind for kind in KINDS if kind.name == "fold_20-death-forgets-row-1")
    injected = next(iter(trials(kind, places=1))).injected
    assert findings_of(injected.arrivals, batch=7) == findings_of(injected.arrivals, batch=1_000)


def test_every_rule_of_an_injected_violation_exists() -> None:
    assert set() == CONTRADICTIONS.union(*(forgery.rules for forgery in FORGERIES)) - RULES.keys()
