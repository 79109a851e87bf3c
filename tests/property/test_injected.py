"""The audit names every kind of injected violation, and says nothing of honest channels.

`make bench BENCH=audit_injected` injects each kind at more places, and `make bench BENCH=audit_honest` asks for a million records.
"""

from __future__ import annotations

import pytest

from equipoise.brokers.testing.simulation.scenario import SCENARIOS
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot import to_bytes
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.sequence.arrivals import Source
from tests.injected.honest import honest, play
from tests.injected.injection import Kind
from tests.injected.kinds import KINDS, trials
from tests.injected.mutants import broken_folds
from tests.injected.obedience import DISOBEDIENCES
from tests.spark.spark_pipeline import findings_of

KINDS_MIN = 30
MUTANTS_MIN = 10
PLACES = 2
SECONDS = 8
pytestmark = pytest.mark.slow

SEEDS = (101, 102)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_injected_violation_is_named(kind: Kind) -> None:
    """Wherever it is injected, a finding has one of its rules, its subject and its offset."""
    tried = list(trials(kind, places=PLACES))
    assert PLACES == len(tried)
    assert [] == [str(trial) for trial in tried if not trial.is_named]


def test_there_are_enough_kinds() -> None:
    """At least thirty kinds are injected, ten of them by taking a rule out of the fold or of a broker; each under a name of its own."""
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names)
    assert len(names) >= KINDS_MIN
    assert len(broken_folds()) + len(DISOBEDIENCES) >= MUTANTS_MIN


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_nothing_is_found_in_what_honest_brokers_write(name: str) -> None:
    """Whatever befalls an honest cluster, its channel and its evidence break no rule."""
    for seed in SEEDS:
        run = play(honest(name, seconds=SECONDS), seed, evidence=True)
        assert [] == findings_of(run.arrivals)


@pytest.mark.parametrize("name", ["calm", "compaction", "long-outages"])
def test_nothing_is_found_by_an_audit_that_begins_in_the_middle(name: str) -> None:
    """Where the head of the log is gone, what was going on before is held against nobody."""
    run = play(honest(name, seconds=SECONDS), SEEDS[0], evidence=True)
    reader = Reader(log="injected")
    for arrival in run.channel[: len(run.channel) // 2]:
        reader.feed(Entry(arrival.offset, arrival.value or b""))
    left = [arrival for arrival in run.arrivals if arrival.source != Source.CHANNEL or arrival.offset >= reader.position]
    assert [] == findings_of(left, begin=to_bytes(reader.view))


@pytest.mark.parametrize("name", ["lost-directories", "moves"])
def test_a_clock_that_was_set_back_accuses_nobody(name: str) -> None:
    """A storage whose clock went back lets its time stand still: of leases that go on meanwhile nothing can be told."""
    channel = play(honest(name, seconds=12), 7).channel
    stands_ms = channel[len(channel) // 3].at_ms
    assert [] == findings_of([arrival._replace(at_ms=min(arrival.at_ms, stands_ms)) for arrival in channel])


def test_batches_make_no_difference() -> None:
    """The same findings come of the same arrivals, in batches of any size."""
    kind = next(kind for kind in KINDS if kind.name == "fold_20-death-forgets-row-1")
    injected = next(iter(trials(kind, places=1))).injected
    assert findings_of(injected.arrivals, batch=7) == findings_of(injected.arrivals, batch=1_000)


def test_what_is_injected_is_named_by_rules_of_the_catalogue() -> None:
    """No kind waits for a rule that nobody wrote."""
    known = RULES.keys()
    wanted = {kind.name: next(iter(trials(kind, places=1))).injected.rules for kind in KINDS if kind.name.startswith("fold_0")}
    assert {} == {name: rules - known for name, rules in wanted.items() if rules - known}
