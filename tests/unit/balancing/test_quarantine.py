"""Quarantine: which deaths and failed opens accuse a bundle, and which do not."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.requests import SetClusterPolicy, SetSettings
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


def phases(stage: Stage) -> set[str]:
    """Return the phases of all bundles."""
    return {bundle.phase for bundle in stage.view.bundles.values()}


def owner(stage: Stage, bundle: str = BUNDLE) -> str:
    """Return the id of the owner of a bundle."""
    incarnation = stage.view.bundles[bundle].owner
    assert incarnation is not None
    return stage.view.live[incarnation].broker


def leader(stage: Stage) -> str:
    """Return the id of the leader."""
    return min(stage.view.live_brokers(), key=lambda each: each.incarnation).broker


def renamed(bundle: str) -> str:
    """Return a bundle as a story writes it."""
    namespace, _, range_ = bundle.rpartition("/")
    return f"{namespace}/{range_[2:4]}_{'ff' if range_.endswith('ffffffff') else range_[13:15]}"


def kill(stage: Stage, broker: str, *alone: str) -> None:
    """End a process without farewell, and wait until the others know. If bundles are to be `alone`
    at risk, the others move away before.
    """
    spare = next(each.broker for each in stage.view.live_brokers() if each.broker != broker)
    for bundle in list(stage.view.held_by(stage.view.brokers[broker].incarnation)):
        if alone and bundle.name not in alone:
            perform(stage, f"transfer {renamed(bundle.name)} to {spare} by admin")
    perform(stage, f"crash {broker}")
    perform(stage, "advance 6s")


def tell(stage: Stage, *steps: str) -> None:
    """Perform steps. `kill OWNER` ends the owner of `BUNDLE`, with no other bundle; `{owner}`,
    `{leader}`, `{other}` and `{another}` are the brokers that are it then.
    """
    for step in steps:
        if step == "kill OWNER":
            kill(stage, owner(stage), BUNDLE)
            continue
        named = {}
        if "{" in step:
            others = [each.broker for each in stage.view.live_brokers()]
            others.remove(owner(stage))
            named = {"owner": owner(stage), "leader": leader(stage)}
            named |= {"other": others[0], "another": others[-1]}
        perform(stage, step.format(**named))


def broken(stage: Stage, owners: int = 2) -> None:
    """Let so many owners of `BUNDLE` die soon after they got it. The one before them had it for
    long.
    """
    tell(stage, "advance 15s", *("kill OWNER",) * (1 + owners))


CRASH = ("crash {owner}", "advance 6s")
FORTY = (
    "brokers a b c d e",
    "namespace t/n with 32 bundles by admin",
    "namespace t/m with 8 bundles by admin",
    "advance 20s",
)
TWO_DEATHS = (*FIVE, "advance 15s", "kill OWNER", "kill OWNER")
INNOCENT: dict[str, tuple[str, ...]] = {
    **{
        f"ordinary crashes, {seconds} s apart": (
            *FORTY,
            *(step for name in "abc" for step in (f"crash {name}", f"advance {seconds}s")),
            "advance 8s",
        )
        for seconds in (15, 22)
    },
    # However soon the second one comes: the first owner had its bundles for long.
    **{
        f"two crashes in a row, {second} s apart": (
            *FORTY,
            "crash a",
            f"advance {second}s",
            "crash b",
            "advance 20s",
        )
        for second in (1, 4, 8)
    },
    # A release that crashes, or an operator who kills brokers, is no reason against a bundle.
    "many deaths of others are another cause": (
        "brokers a b c d e f g h",
        f"namespace {LONE}",
        "namespace t/m with 32 bundles by admin",
        "advance 15s",
        "kill OWNER",
        "kill OWNER",
        "crash {other}",
        "crash {another}",
        "advance 6s",
        "kill OWNER",
    ),
    # Only different owners count: the machine is broken, not its bundles.
    "a broker that crashes again and again": (
        "brokers a b",
        "namespace t/n with 2 bundles by admin",
        "namespace t/m with 8 bundles by admin",
        "advance 15s",
        *("restart b with directory", "advance 2s") * 4,
    ),
    "an owner that stays ends a row": (*TWO_DEATHS, "advance 15s", "kill OWNER"),
    "a live owner that gives the bundle away ends a row": (
        *TWO_DEATHS,
        "transfer 00_ff to {other} by admin",
        "kill OWNER",
    ),
    "a live owner that unloads the bundle ends a row": (
        *TWO_DEATHS,
        "unload 00_ff by admin",
        "kill OWNER",
    ),
    # Half of a cluster without power: bundles that are assigned to a broker that is already dead
    # accuse nobody.
    "brokers that die together": (
        "brokers a b c d",
        "namespace t/n with 64 bundles by admin",
        "crash a",
        "advance 900ms",
        "crash b",
        "advance 60s",
    ),
    # The deaths that follow tell them apart.
    "many suspects": (
        "brokers a b c d",
        "namespace t/n with 16 bundles by admin",
        *("crash a", "advance 6s", "crash b", "advance 6s"),
    ),
    "the only bundle": ("brokers a b c d", f"namespace {LONE}", *CRASH * 3),
    "a broker that leaves": (*FIVE, *("leave {owner}", "advance 12s") * 3),
    "a store that is away fails all opens": (
        "brokers a b",
        "service a refuses open",
        "service b refuses open",
        "namespace t/n with 8 bundles by admin",
        "advance 60s",
    ),
}


@pytest.mark.parametrize(("steps"), INNOCENT.values(), ids=INNOCENT.keys())
def test_what_accuses_no_bundle(steps: tuple[str, ...]) -> None:
    stage = play(steps[0])
    for step in steps[1:]:
        tell(stage, step)
        assert [] == quarantined(stage)
    assert phases(stage) == ({"free"} if "service a refuses open" in steps else {"owned"})


def test_owners_in_a_row_that_die_soon_are_a_quarantine() -> None:
    """Nobody is assigned the bundle until the quarantine ends. An operator may end it before. An
    owner that stays clears the bundle.
    """
    stage = play(*FIVE)
    broken(stage, 1)
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)
    tell(stage, "kill OWNER")
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
    tell(stage, "advance 15s", "restart a with directory", "kill OWNER")
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
            tell(stage, "kill OWNER")
    perform(stage, "advance 15s")
    dead = (name for name, host in stage.hosts.items() if host.process is None)
    tell(stage, *(f"restart {name} with directory" for name in dead))
    broken(stage)
    assert [30_000] == [policy.hold_ms for policy in quarantined_in(stage.view)]


@pytest.mark.parametrize("operation", ["prepare", "open"])
def test_a_bundle_that_kills_each_owner_is_held_before_it_kills_all(operation: str) -> None:
    """The others are innocent, also those that shared its owners, and are served."""
    stage = play("brokers a b c d e f", "namespace t/m with 32 bundles by admin", "advance 20s")
    for name in "abcdef":
        stage.process(name).service.poison = (operation, BUNDLE)
    tell(stage, f"namespace {LONE}", "advance 25s")
    assert [BUNDLE] == quarantined(stage)
    assert 2 == sum(host.process is None for host in stage.hosts.values())
    perform(stage, "advance 30s")
    assert 3 == sum(host.process is None for host in stage.hosts.values())
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles_of("t/m")}
    perform(stage, "advance 40s")
    assert 3 == sum(host.process is None for host in stage.hosts.values())


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
        if owner(stage, right) != name:
            perform(stage, f"transfer {renamed(right)} to {name} by admin")
        kill(stage, name, left, right)
    assert {left: 30_000, right: 45_000} == {
        policy.subject: policy.hold_ms for policy in quarantined_in(stage.view)
    }


def test_a_small_cluster_may_hold_one_bundle() -> None:
    stage = play("brokers a b c d", f"namespace {LONE}", "namespace t/m with 3 bundles by admin")
    broken(stage)
    assert [BUNDLE] == quarantined(stage)


def test_three_failed_opens_in_a_row_are_a_quarantine() -> None:
    stage = play("brokers a b", "namespace t/m with 8 bundles by admin")
    tell(
        stage,
        *(f"service {name} refuses prepare" for name in "ab"),
        f"namespace {LONE}",
        "advance 30s",
    )
    assert [BUNDLE] == quarantined(stage)
    assert "3 opens in a row failed" == next(quarantined_in(stage.view)).reason


def test_only_brokers_that_serve_a_bundle_are_asked_before_its_quarantine() -> None:
    stage = play("brokers a", "program of b serves t/m", "brokers b")
    tell(
        stage,
        "namespace t/m with 8 bundles by admin",
        "service a refuses prepare",
        f"namespace {LONE}",
        "advance 30s",
    )
    assert [BUNDLE] == quarantined(stage)


def test_a_bundle_that_one_broker_takes_is_no_quarantine() -> None:
    """Its service is only there. It is owned as soon as that broker is."""
    stage = play("brokers a b c d", "namespace t/m with 16 bundles by admin", "brokers e")
    tell(
        stage,
        *(f"service {name} refuses prepare" for name in "abcd"),
        f"namespace {LONE}",
        "advance 20s",
    )
    assert ([], "e") == (quarantined(stage), owner(stage))
    tell(stage, "crash e", "advance 20s")
    assert [BUNDLE] == quarantined(stage)
    tell(stage, "restart e with directory", "advance 35s")
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
        if owner(stage) != leader(stage):
            tell(stage, "transfer 00_ff to {leader} by admin")
        tell(stage, "kill OWNER")
    tell(stage, "kill OWNER")
    assert [BUNDLE] == quarantined(stage)
    kill(stage, leader(stage))
    perform(stage, "advance 18s")
    assert [BUNDLE] == quarantined(stage)
    perform(stage, "advance 6s")
    assert ([], "owned") == (quarantined(stage), stage.view.bundles[BUNDLE].phase)


def test_the_quarantine_of_a_deleted_bundle_ends() -> None:
    stage = play(
        "brokers a",
        f"namespace {LONE}",
        "namespace t/m with 2 bundles by admin",
    )
    stage.ask(
        "a",
        SetClusterPolicy(
            policy=quarantine_key(BUNDLE),
            document=quarantine_document("test", hold_ms=60_000, until_ms=60_000, evidence=()),
        ),
    )
    tell(stage, "unload 00_ff by admin")
    assert ("free", True) == (stage.view.bundles[BUNDLE].phase, is_quarantined(stage.view, BUNDLE))
    tell(stage, "deleting t/n by admin", "delete t/n by admin", "advance 1s")
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
