"""Quarantine: which deaths and failed opens accuse a bundle, and which do not."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.intents import SetClusterPolicy, SetSettings
from equipoise.brokers.balancing.policies import parse_policy, quarantine_document, quarantine_key
from equipoise.brokers.balancing.quarantine import is_quarantined, quarantined_in
from equipoise.brokers.errors import InvalidPolicy
from equipoise.channel.core.codec import decode
from tests.scenarios.language import perform, play
from tests.scenarios.stage import Stage
from tests.scenarios.words import full_name

BUNDLE = full_name("00_ff")
LONE = "t/n with 1 bundle by admin"
FIVE = ("brokers a b c d e", f"namespace {LONE}", "namespace t/m with 16 bundles by admin")


HELD: dict[str, str | int] = {"reason": "x", "until_ms": 60_000, "hold_ms": 30_000}


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


def renamed(bundle: str) -> str:
    """Return a bundle as a story writes it."""
    namespace, _, range_ = bundle.rpartition("/")
    return f"{namespace}/{range_[2:4]}_{'ff' if range_.endswith('ffffffff') else range_[13:15]}"


def kill_owner(stage: Stage, *, alone: bool = True) -> None:
    """Kill the owner of `BUNDLE`, after its other bundles have moved away if it is to be `alone` at
    risk.
    """
    name = owner(stage)
    if alone:
        spare = next(broker.broker for broker in stage.view.live_brokers() if broker.broker != name)
        for bundle in list(stage.view.held_by(stage.view.brokers[name].incarnation)):
            if bundle.name != BUNDLE:
                perform(stage, f"transfer {renamed(bundle.name)} to {spare} by admin")
    kill(stage, name)


def broken(stage: Stage, owners: int = 2) -> None:
    """Let so many owners of `BUNDLE` die soon after they got it. The one before them had it for
    long.
    """
    perform(stage, "advance 15s")
    for _ in range(1 + owners):
        kill_owner(stage)


def test_owners_in_a_row_that_die_soon_are_a_quarantine() -> None:
    """Nobody is assigned the bundle until the quarantine ends. An operator may end it before. An
    owner that stays clears the bundle.
    """
    stage = play(*FIVE)
    broken(stage, 1)
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)
    kill_owner(stage)
    assert [BUNDLE] == quarantined(stage)
    perform(stage, "advance 20s")
    assert "free" == stage.view.bundles[BUNDLE].phase
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles_of("t/m")}
    (policy,) = quarantined_in(stage.view)
    assert ("2 owners in a row died soon after they got it", 30_000) == (
        policy.reason,
        policy.hold_ms,
    )
    deaths = [decode(dict(stage.log.entries)[offset]) for offset in policy.evidence]
    assert ["down", "down"] == [getattr(record, "status", None) for record in deaths]
    left = next(broker.broker for broker in stage.view.live_brokers())
    stage.ask(left, SetClusterPolicy(policy=quarantine_key(BUNDLE), document=None))
    perform(stage, "advance 1ms")
    assert "owned" == stage.view.bundles[BUNDLE].phase
    perform(stage, "advance 15s")
    perform(stage, "restart a with directory")
    kill_owner(stage)
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_a_quarantine_ends_by_itself_and_comes_back_for_twice_as_long() -> None:
    """Until the bundle is mended: a live owner clears it, and it starts anew."""
    stage = play(
        "brokers a b c d e f g", f"namespace {LONE}", "namespace t/m with 16 bundles by admin"
    )
    broken(stage)
    for hold_s in (30, 60, 120):
        perform(stage, f"advance {hold_s - 7}s")
        assert [BUNDLE] == quarantined(stage)
        perform(stage, "advance 7s")
        assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)
        if hold_s < 120:
            kill_owner(stage)
    perform(stage, "advance 15s")
    for name in "abcdef":
        perform(stage, f"restart {name} with directory") if stage.hosts[
            name
        ].process is None else None
    broken(stage)
    assert [30_000] == [policy.hold_ms for policy in quarantined_in(stage.view)]


@pytest.mark.parametrize("seconds", [15, 22])
def test_ordinary_crashes_accuse_no_bundle(seconds: int) -> None:
    """5 brokers, 40 bundles: one process is killed, another one later, and a third one."""
    stage = play(
        "brokers a b c d e",
        "namespace t/n with 32 bundles by admin",
        "namespace t/m with 8 bundles by admin",
        "advance 20s",
    )
    for name in "abc":
        perform(stage, f"crash {name}")
        perform(stage, f"advance {seconds}s")
        assert [] == quarantined(stage)
    perform(stage, "advance 8s")
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles.values()}


def test_two_crashes_in_a_row_accuse_no_bundle() -> None:
    """However soon the second one comes: the first owner had its bundles for long."""
    for second in range(1, 9):
        stage = play(
            "brokers a b c d e",
            "namespace t/n with 32 bundles by admin",
            "namespace t/m with 8 bundles by admin",
            "advance 20s",
        )
        perform(stage, "crash a")
        perform(stage, f"advance {second}s")
        perform(stage, "crash b")
        perform(stage, "advance 20s")
        assert ([], {"owned"}) == (
            quarantined(stage),
            {bundle.phase for bundle in stage.view.bundles.values()},
        )


@pytest.mark.parametrize("operation", ["prepare", "open"])
def test_a_bundle_that_kills_each_owner_is_held_before_it_kills_all(operation: str) -> None:
    """The others are innocent, also those that shared its owners, and are served."""
    stage = play("brokers a b c d e f", "namespace t/m with 32 bundles by admin", "advance 20s")
    for name in "abcdef":
        stage.process(name).service.poison = (operation, BUNDLE)
    perform(stage, f"namespace {LONE}")
    perform(stage, "advance 25s")
    assert [BUNDLE] == quarantined(stage)
    assert 2 == sum(host.process is None for host in stage.hosts.values())
    perform(stage, "advance 30s")
    assert 3 == sum(host.process is None for host in stage.hosts.values())
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles_of("t/m")}
    perform(stage, "advance 40s")
    assert 3 == sum(host.process is None for host in stage.hosts.values())


def test_many_deaths_of_others_are_another_cause() -> None:
    """A release that crashes, or an operator who kills brokers, is no reason against a bundle."""
    stage = play(
        "brokers a b c d e f g h",
        f"namespace {LONE}",
        "namespace t/m with 32 bundles by admin",
        "advance 15s",
    )
    kill_owner(stage)
    kill_owner(stage)
    others = [
        broker.broker for broker in stage.view.live_brokers() if broker.broker != owner(stage)
    ]
    for name in others[:2]:
        perform(stage, f"crash {name}")
    perform(stage, "advance 6s")
    kill_owner(stage)
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_a_broker_that_crashes_again_and_again_accuses_no_bundle() -> None:
    """Only different owners count: the machine is broken, not its bundles."""
    stage = play(
        "brokers a b",
        "namespace t/n with 2 bundles by admin",
        "namespace t/m with 8 bundles by admin",
        "advance 15s",
    )
    for _ in range(4):
        perform(stage, "restart b with directory")
        perform(stage, "advance 2s")
    assert ([], {"owned"}) == (
        quarantined(stage),
        {bundle.phase for bundle in stage.view.bundles.values()},
    )


def test_suspects_that_cannot_be_told_apart_are_released_one_after_the_other() -> None:
    """So the next death is of one of them."""
    stage = play(
        "brokers a b c d",
        "namespace t/n with 2 bundles by admin",
        "namespace t/m with 32 bundles by admin",
        "advance 15s",
    )
    left, right = (bundle.name for bundle in stage.view.bundles_of("t/n"))
    for _ in range(3):
        name = owner(stage, left)
        spare = next(broker.broker for broker in stage.view.live_brokers() if broker.broker != name)
        for bundle in stage.view.bundles.values():
            if bundle.name == right and owner(stage, right) != name:
                perform(stage, f"transfer {renamed(right)} to {name} by admin")
            elif bundle.namespace == "t/m" and owner(stage, bundle.name) == name:
                perform(stage, f"transfer {renamed(bundle.name)} to {spare} by admin")
        kill(stage, name)
    assert {left: 30_000, right: 45_000} == {
        policy.subject: policy.hold_ms for policy in quarantined_in(stage.view)
    }


@pytest.mark.parametrize(
    "between", ["advance 15s", "transfer 00_ff to {other} by admin", "unload 00_ff by admin"]
)
def test_a_row_of_deaths_ends(between: str) -> None:
    """An owner stays, or a live owner gives the bundle away."""
    stage = play(*FIVE)
    broken(stage, 1)
    other = next(
        broker.broker for broker in stage.view.live_brokers() if broker.broker != owner(stage)
    )
    perform(stage, between.format(other=other))
    kill_owner(stage)
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_brokers_that_die_together_are_no_quarantine() -> None:
    """Half of a cluster without power: bundles that are assigned to a broker that is already dead
    accuse nobody.
    """
    stage = play(
        "brokers a b c d",
        "namespace t/n with 64 bundles by admin",
        "crash a",
        "advance 900ms",
        "crash b",
        "advance 60s",
    )
    assert [] == quarantined(stage)
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles.values()}


def test_many_suspects_are_no_quarantine() -> None:
    """The deaths that follow tell them apart."""
    stage = play(
        "brokers a b c d",
        "namespace t/n with 16 bundles by admin",
        "crash a",
        "advance 6s",
        "crash b",
        "advance 6s",
    )
    assert [] == quarantined(stage)
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles.values()}


def test_the_only_bundle_is_no_quarantine() -> None:
    stage = play("brokers a b c d", f"namespace {LONE}")
    for _ in range(3):
        kill(stage, owner(stage))
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_a_small_cluster_may_hold_one_bundle() -> None:
    stage = play("brokers a b c d", f"namespace {LONE}", "namespace t/m with 3 bundles by admin")
    broken(stage)
    assert [BUNDLE] == quarantined(stage)


def test_a_broker_that_leaves_accuses_nobody() -> None:
    stage = play(*FIVE)
    for _ in range(3):
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
    away = play(
        "brokers a b",
        "service a refuses open",
        "service b refuses open",
        "namespace t/n with 8 bundles by admin",
        "advance 60s",
    )
    assert [] == quarantined(away)


def test_a_bundle_that_one_broker_takes_is_no_quarantine() -> None:
    """Its service is only there. It is owned as soon as that broker is."""
    stage = play("brokers a b c d", "namespace t/m with 16 bundles by admin", "brokers e")
    for name in "abcd":
        perform(stage, f"service {name} refuses prepare")
    perform(stage, f"namespace {LONE}")
    perform(stage, "advance 20s")
    assert ([], "e") == (quarantined(stage), owner(stage))
    perform(stage, "crash e")
    perform(stage, "advance 20s")
    assert [BUNDLE] == quarantined(stage)
    perform(stage, "restart e with directory")
    perform(stage, "advance 35s")
    assert ([], "e") == (quarantined(stage), owner(stage))


def test_0_turns_a_cause_off() -> None:
    stage = play(*FIVE)
    stage.ask(
        "d",
        SetSettings(
            changes={"quarantine.deaths": 0, "quarantine.failed_opens": 0}, changed_by="admin:ops"
        ),
    )
    broken(stage)
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_a_new_leader_knows_the_row_and_when_the_quarantine_ends() -> None:
    """The first two deaths are those of leaders, and another one dies during the quarantine."""
    stage = play(*FIVE, "advance 15s")
    for _ in range(2):
        leader = min(stage.view.live_brokers(), key=lambda each: each.incarnation).broker
        if owner(stage) != leader:
            perform(stage, f"transfer 00_ff to {leader} by admin")
        kill_owner(stage)
    kill_owner(stage)
    assert [BUNDLE] == quarantined(stage)
    kill(stage, min(stage.view.live_brokers(), key=lambda each: each.incarnation).broker)
    perform(stage, "advance 18s")
    assert [BUNDLE] == quarantined(stage)
    perform(stage, "advance 6s")
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_the_quarantine_of_a_deleted_bundle_ends() -> None:
    stage = play(
        "brokers a",
        f"namespace {LONE}",
        "namespace t/m with 2 bundles by admin",
        "unload 00_ff by admin",
    )
    stage.ask(
        "a",
        SetClusterPolicy(
            policy=quarantine_key(BUNDLE),
            document=quarantine_document("test", hold_ms=60_000, until_ms=60_000, evidence=()),
        ),
    )
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
        (f"quarantine/{BUNDLE}", {**HELD, "reason": ""}, "reason is ''"),
        (
            f"quarantine/{BUNDLE}",
            {**HELD, "evidence.0": "7"},
            "evidence.0 is '7', and must be an integer",
        ),
        (
            f"quarantine/{BUNDLE}",
            {**HELD, "until_ms": 0},
            "until_ms is 0, and must be an integer from 1",
        ),
        (
            f"quarantine/{BUNDLE}",
            {**HELD, "hold_ms": 0},
            "hold_ms is 0, and must be an integer from 1",
        ),
    ],
)
def test_a_wrong_record_is_named(key: str, document: dict[str, str | int], problem: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(key, document)
    assert problem in str(caught.value)
