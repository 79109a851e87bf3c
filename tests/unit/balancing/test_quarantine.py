"""Quarantine: which deaths and failed opens accuse a bundle, and which do not."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.intents import SetClusterPolicy, SetSettings
from equipoise.brokers.balancing.policies import parse_policy, quarantine_document, quarantine_key
from equipoise.brokers.balancing.quarantine import is_quarantined, quarantined_in
from equipoise.brokers.errors import InvalidPolicy
from equipoise.channel.core.codec import decode
from equipoise.channel.core.records import PolicyRecord
from tests.scenarios.language import perform, play
from tests.scenarios.stage import Stage
from tests.scenarios.words import full_name

BUNDLE = full_name("00_ff")
LONE = "t/n with 1 bundle by admin"
THREE = ("brokers a b c d", f"namespace {LONE}", "namespace t/m with 16 bundles by admin")


def quarantined(stage: Stage) -> list[str]:
    """Return the bundles in quarantine."""
    return [policy.subject for policy in quarantined_in(stage.view)]


def owner(stage: Stage, bundle: str = BUNDLE) -> str:
    """Return the id of the owner of a bundle."""
    incarnation = stage.view.bundles[bundle].owner
    assert incarnation is not None
    return stage.view.live[incarnation].broker


def kill(stage: Stage, broker: str) -> None:
    """End a process without farewell, and wait until the others know."""
    perform(stage, f"crash {broker}")
    perform(stage, "advance 6s")


def moved_by_death(stage: Stage, *, alone: bool = True) -> None:
    """Kill the owner of `BUNDLE`, after its other bundles have moved away if it is to be `alone` at risk."""
    name = owner(stage)
    if alone:
        spare = next(broker.broker for broker in stage.view.live_brokers() if broker.broker != name)
        for bundle in list(stage.view.held_by(stage.view.brokers[name].incarnation)):
            if bundle.name != BUNDLE:
                namespace, _, range_ = bundle.name.rpartition("/")
                short = f"{range_[2:4]}_{'ff' if range_.endswith('ffffffff') else range_[13:15]}"
                perform(stage, f"transfer {namespace}/{short} to {spare} by admin")
    kill(stage, name)


def test_two_deaths_in_a_row_are_a_quarantine() -> None:
    """Nobody is assigned the bundle, until an operator releases it: then at once, and the counts start at 0."""
    stage = play(*THREE)
    moved_by_death(stage)
    assert "owned" == stage.view.bundles[BUNDLE].phase
    assert [] == quarantined(stage)
    moved_by_death(stage)
    assert [BUNDLE] == quarantined(stage)
    perform(stage, "advance 120s")
    assert "free" == stage.view.bundles[BUNDLE].phase
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles_of("t/m")}
    (policy,) = quarantined_in(stage.view)
    assert "2 owners in a row died within 30 s" == policy.reason
    assert 2 == len(policy.evidence)
    left = next(broker.broker for broker in stage.view.live_brokers())
    stage.ask(left, SetClusterPolicy(policy=quarantine_key(BUNDLE), document=None))
    perform(stage, "advance 1ms")
    assert "owned" == stage.view.bundles[BUNDLE].phase
    perform(stage, "restart a with directory")
    moved_by_death(stage)
    assert [] == quarantined(stage)


def test_the_evidence_is_of_the_deaths_and_a_broker_says_it_once() -> None:
    stage = play(*THREE)
    for _ in range(2):
        moved_by_death(stage)
    (policy,) = quarantined_in(stage.view)
    deaths = [decode(dict(stage.log.entries)[offset]) for offset in policy.evidence]
    assert ["down", "down"] == [getattr(record, "status", None) for record in deaths]
    about = [record for _, data in stage.log.entries if isinstance(record := decode(data), PolicyRecord)]
    assert [quarantine_key(BUNDLE)] == [record.key for record in about]


@pytest.mark.parametrize("between", ["advance 40s", "transfer 00_ff to {other} by admin", "unload 00_ff by admin"])
def test_a_row_of_deaths_ends(between: str) -> None:
    """By time, or because a live owner gave the bundle away."""
    stage = play(*THREE)
    moved_by_death(stage)
    other = next(broker.broker for broker in stage.view.live_brokers() if broker.broker != owner(stage))
    perform(stage, between.format(other=other))
    moved_by_death(stage)
    assert [] == quarantined(stage)
    assert "owned" == stage.view.bundles[BUNDLE].phase


def test_brokers_that_die_together_are_no_quarantine() -> None:
    """Half of a cluster without power: bundles that are assigned to a broker that is already dead accuse nobody."""
    stage = play("brokers a b c d", "namespace t/n with 64 bundles by admin", "crash a", "advance 900ms", "crash b", "advance 60s")
    assert [] == quarantined(stage)
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles.values()}


def test_many_suspects_are_no_quarantine() -> None:
    """The deaths that follow tell them apart."""
    stage = play("brokers a b c d", "namespace t/n with 16 bundles by admin", "crash a", "advance 6s", "crash b", "advance 6s")
    assert [] == quarantined(stage)
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles.values()}


def test_the_only_bundle_is_no_quarantine() -> None:
    stage = play("brokers a b c", f"namespace {LONE}")
    for _ in range(2):
        kill(stage, owner(stage))
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_deaths_say_too_little_in_a_small_cluster() -> None:
    stage = play("brokers a b c d", f"namespace {LONE}", "namespace t/m with 8 bundles by admin")
    for _ in range(2):
        moved_by_death(stage)
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_a_broker_that_leaves_accuses_nobody() -> None:
    stage = play(*THREE)
    for _ in range(2):
        perform(stage, f"leave {owner(stage)}")
        perform(stage, "advance 12s")
    assert [] == quarantined(stage)


def test_three_failed_opens_in_a_row_are_a_quarantine() -> None:
    """A store that is away fails all bundles, and quarantines none."""
    stage = play("brokers a b", "namespace t/m with 8 bundles by admin")
    for name in "ab":
        perform(stage, f"service {name} refuses prepare")
    perform(stage, f"namespace {LONE}")
    perform(stage, "advance 30s")
    assert [BUNDLE] == quarantined(stage)
    assert "3 opens in a row failed" == next(quarantined_in(stage.view)).reason
    away = play("brokers a b", "service a refuses open", "service b refuses open", "namespace t/n with 8 bundles by admin", "advance 60s")
    assert [] == quarantined(away)


def test_0_turns_a_cause_off() -> None:
    stage = play(*THREE)
    stage.ask("d", SetSettings(changes={"quarantine.deaths": 0, "quarantine.failed_opens": 0}, changed_by="admin:ops"))
    for _ in range(2):
        moved_by_death(stage)
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_a_new_leader_knows_the_count() -> None:
    """Both deaths are those of the leader."""
    stage = play("brokers a b c d", "namespace t/m with 16 bundles by admin", f"namespace {LONE}")
    for name in "ab":
        if owner(stage) != name:
            perform(stage, f"transfer 00_ff to {name} by admin")
        break
    moved_by_death(stage)
    leader = next(broker.broker for broker in sorted(stage.view.live_brokers(), key=lambda each: each.incarnation))
    assert leader == "b"
    moved_by_death(stage)
    assert [BUNDLE] == quarantined(stage)


def test_the_quarantine_of_a_deleted_bundle_ends() -> None:
    stage = play("brokers a", f"namespace {LONE}", "namespace t/m with 2 bundles by admin", "unload 00_ff by admin")
    stage.ask("a", SetClusterPolicy(policy=quarantine_key(BUNDLE), document=quarantine_document("test", evidence=())))
    perform(stage, "unload 00_ff by admin") if stage.view.bundles[BUNDLE].phase == "owned" else None
    assert ("free", True) == (stage.view.bundles[BUNDLE].phase, is_quarantined(stage.view, BUNDLE))
    perform(stage, "deleting t/n by admin")
    perform(stage, "delete t/n by admin")
    perform(stage, "advance 1s")
    assert {} == stage.view.policies


@pytest.mark.parametrize(
    ("key", "document", "problem"),
    [
        ("quarantine/t/n", {"reason": "x"}, "t/n"),
        (f"quarantine/{BUNDLE}", {}, "reason is ''"),
        (f"quarantine/{BUNDLE}", {"reason": "x", "evidence.0": "7"}, "evidence.0 is '7', and must be an integer"),
        (f"quarantine/{BUNDLE}", {"reason": "x", "until_ms": 1}, "it has no field 'until_ms'"),
    ],
)
def test_a_wrong_record_is_named(key: str, document: dict[str, str | int], problem: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(key, document)
    assert problem in str(caught.value)
