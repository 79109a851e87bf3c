"""The memory of one broker's splits and merges: the input of rounds, how long bundles rest, and
which rounds are recorded.
"""

from __future__ import annotations

import pytest

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.splitting.auto_merge import (
    MergeDecision,
    MergePlan,
    MergeSettings,
    plan_merges,
)
from equipoise.brokers.balancing.splitting.auto_split import (
    SplitDecision,
    SplitPlan,
    SplitSettings,
    plan_splits,
)
from equipoise.brokers.balancing.splitting.split_points import BundleLimits, Excess
from equipoise.brokers.balancing.splitting.splitting_memory import (
    SplittingMemory,
    Standing,
    standing_of,
)
from equipoise.channel.core import propose
from equipoise.shedder.loads import BundleTraffic, Traffic
from equipoise.shedder.plan import Cause, Move, Plan, Stay
from tests.channels.folding import Channel, channel_with

LIMITS = BundleLimits(messages_per_second_max=100)
SPLITS = SplitSettings(limits=LIMITS, hits_threshold=1)
REST_MS = 1_000


def owned_four() -> Channel:
    """Four bundles: `a` owns three, `b` the last."""
    channel = channel_with("a", "b", bundles=4)
    for number in range(4):
        channel.own("a" if number < 3 else "b", number << 30)
    return channel


def names_of(channel: Channel) -> list[str]:
    return [bundle.name for bundle in channel.view.bundles_of("tenant/ns")]


def standing(channel: Channel) -> Standing:
    return standing_of(channel.view, channel.incarnation("a"), names_of(channel))


def carrying(*messages: float, names: list[str]) -> list[BundleTraffic]:
    return [
        BundleTraffic(bundle=name, traffic=Traffic(messages_in_per_second=each))
        for name, each in zip(names, messages, strict=True)
    ]


def test_the_channel_defines_the_state_of_each_bundle() -> None:
    channel = owned_four()
    first, second, third, fourth = names_of(channel)
    channel.accept(
        propose.start_split(
            channel.admin(), channel.view.bundles[second], algorithm="range_equally_divide"
        )
    )
    channel.accept(
        propose.transfer(
            channel.admin(), channel.view.bundles[third], destination=channel.incarnation("b")
        )
    )
    found = standing_of(
        channel.view,
        channel.incarnation("a"),
        [first, second, third, fourth, "tenant/gone/0x00000000_0xffffffff"],
    )
    expected = Standing(
        broker="a",
        brokers=2,
        lasts={first: channel.view.bundles[first].last},
        problems={
            second: "it is splitting",
            third: "it belongs to another broker",
            fourth: "it belongs to another broker",
            "tenant/gone/0x00000000_0xffffffff": "it is gone",
        },
        splitting=frozenset({second}),
        bundle_counts={"tenant/ns": 4},
    )
    assert expected == found


@pytest.mark.parametrize("deletes", [True, False])
def test_bundles_of_a_deleted_or_frozen_namespace_are_left_alone(*, deletes: bool) -> None:
    channel = owned_four()
    if deletes:
        channel.accept(
            propose.start_deleting_namespace(channel.admin(), channel.view, name="tenant/ns")
        )
    why = "its namespace is being deleted" if deletes else "it is frozen: a sale"
    found = standing_of(
        channel.view,
        channel.incarnation("a"),
        names_of(channel)[:3],
        frozen={} if deletes else {"tenant/ns": why},
    )
    assert ({why}, {}) == (set(found.problems.values()), found.lasts)


def test_a_round_of_splits_sees_who_owns_what_and_what_failed_lately() -> None:
    """A bundle whose split failed is left out for `rest_ms`."""
    channel, splitting_memory = owned_four(), SplittingMemory()
    names = names_of(channel)
    bundles = carrying(500, 0, 0, 0, names=names)
    snapshot = splitting_memory.split_snapshot(
        standing(channel), bundles, now_ms=0, rest_ms=REST_MS
    )
    assert (names, {names[3]}) == (
        [bundle.bundle for bundle in snapshot.bundles],
        snapshot.not_owned,
    )
    plan = SplitPlan(splits=(split_of(names[0]),), stays=(), failures=(), counted={}, hits={})
    splitting_memory.splits_ended(
        plan, {names[0]: "no room"}, broker="a", hits_threshold=1, now_ms=0, at_ms=0
    )
    for now_ms, expected in ((REST_MS - 1, names[1:]), (REST_MS, names)):
        snapshot = splitting_memory.split_snapshot(
            standing(channel), bundles, now_ms=now_ms, rest_ms=REST_MS
        )
        assert expected == [bundle.bundle for bundle in snapshot.bundles]


def test_a_bundle_rests_after_it_came_and_after_each_change() -> None:
    channel, splitting_memory = owned_four(), SplittingMemory()
    first, second, _, fourth = names_of(channel)

    def pending(now_ms: int) -> set[str]:
        return set(
            splitting_memory.merge_snapshot(
                standing(channel), (), now_ms=now_ms, rest_ms=REST_MS
            ).pending
        )

    assert set(names_of(channel)) == pending(0)
    assert {fourth} == pending(REST_MS)
    channel.accept(
        propose.start_split(
            channel.admin(), channel.view.bundles[second], algorithm="range_equally_divide"
        )
    )
    channel.accept(propose.cancel(channel.admin(), channel.view.bundles[second], reason="enough"))
    assert {second, fourth} == pending(REST_MS + 1)
    assert {second, fourth} == pending(2 * REST_MS)
    assert {fourth} == pending(2 * REST_MS + 1)
    plan = MergePlan(merges=(merge_of(first, second),), stays=(), hits={})
    splitting_memory.merges_ended(
        plan, {first: "no"}, broker="a", hits_threshold=1, now_ms=3 * REST_MS, at_ms=0
    )
    assert {first, fourth} == pending(3 * REST_MS)


def split_of(bundle: str, excess: Excess = Excess.MESSAGES) -> SplitDecision:
    return SplitDecision(bundle=bundle, excess=excess, reason="hot")


def merge_of(left: str, right: str) -> MergeDecision:
    return MergeDecision(left=left, right=right, reason="cold")


def here(bundle: str, reason: str, cause: Cause = "Overloaded") -> Move:
    return Move(bundle=bundle, source="a", destination="a", reason=reason, cause=cause)


def stays_of(*reasons: tuple[str, str]) -> tuple[Stay, ...]:
    return tuple(Stay(subject=subject, reason=reason) for subject, reason in reasons)


def test_a_decision_lists_successes_and_failures() -> None:
    """Splits count by the exceeded limit, in Pulsar's words, the others as failures. A merge is
    named by its left bundle, and names both neighbours.
    """
    memory, waiting = SplittingMemory(), stays_of(("u", "no figures"), ("v", "none"), ("w", "hot"))
    plan = SplitPlan(
        splits=(split_of("x"), split_of("y", Excess.TOPICS), split_of("z")),
        stays=waiting,
        failures=("u",),
        counted={("Failure", "Unknown"): 1},
        hits={"w": 1},
    )
    when = {"broker": "a", "hits_threshold": 1, "now_ms": 0, "at_ms": 77}
    splits = Decision(
        at_ms=77,
        broker="a",
        kind="split",
        strategy="AutoSplit",
        plan=Plan(
            moves=(here("x", "hot"), here("y", "hot")),
            stays=stays_of(("u", "no figures"), ("w", "hot"), ("z", "it was cancelled")),
        ),
        counted={("Success", "MsgRate"): 1, ("Success", "Topics"): 1, ("Failure", "Unknown"): 2},
    )
    assert splits == memory.splits_ended(plan, {"z": "it was cancelled"}, **when)  # type: ignore[arg-type]
    assert {"w": 1} == memory.split_hits
    merging = MergePlan(
        merges=(merge_of("m", "n"), merge_of("x", "y")),
        stays=stays_of(("p", "in its row"), ("r", "enough merges")),
        hits={("p", "q"): 1, ("r", "s"): 2},
    )
    merges = Decision(
        at_ms=77,
        broker="a",
        kind="merge",
        strategy="AutoMerge",
        plan=Plan(
            moves=(here("m", "merged with n: cold", "Underloaded"),),
            stays=stays_of(("r", "enough merges"), ("x", "its neighbour is gone")),
        ),
        counted={("Success", "Underloaded"): 1, ("Failure", "Unknown"): 1},
    )
    assert merges == memory.merges_ended(merging, {"x": "its neighbour is gone"}, **when)  # type: ignore[arg-type]


def test_a_quiet_broker_records_nothing() -> None:
    """A round is recorded only if its due bundles have changed."""
    channel, splitting_memory = owned_four(), SplittingMemory()
    names = names_of(channel)

    def told(messages: float, settings: SplitSettings = SPLITS) -> list[str] | None:
        bundles = carrying(messages, 0, 0, 0, names=names)
        plan = plan_splits(
            splitting_memory.split_snapshot(standing(channel), bundles, now_ms=0, rest_ms=0),
            settings,
            splitting_memory.split_hits,
        )
        decision = splitting_memory.splits_ended(
            plan, {}, broker="a", hits_threshold=settings.hits_threshold, now_ms=0, at_ms=0
        )
        return None if decision is None else [stay.subject for stay in decision.plan.stays]

    full = SplitSettings(limits=LIMITS, hits_threshold=1, bundles_max=4)
    assert [None, None] == [told(0), told(0)]
    assert [[names[0]], [names[0]], None, None] == [told(500, full) for _ in range(4)]
    assert [[], None] == [told(0, full), told(0, full)]
    splitting_memory.forget_splits()
    assert ([names[0]], {names[0]: 1}) == (told(500), splitting_memory.split_hits)


def test_cold_pairs_that_wait_are_not_recorded() -> None:
    """A pair is recorded once, when its row is over and it stays."""
    channel, splitting_memory = owned_four(), SplittingMemory()
    names = names_of(channel)
    settings = MergeSettings(limits=LIMITS, hits_threshold=1, bundles_min=4)

    def told() -> list[str] | None:
        snapshot = splitting_memory.merge_snapshot(
            standing(channel), carrying(0, 0, 0, 0, names=names), now_ms=0, rest_ms=0
        )
        plan = plan_merges(snapshot, settings, splitting_memory.merge_hits)
        decision = splitting_memory.merges_ended(
            plan, {}, broker="a", hits_threshold=settings.hits_threshold, now_ms=0, at_ms=0
        )
        return None if decision is None else [stay.subject for stay in decision.plan.stays]

    assert [None, names[:2], None] == [told(), told(), told()]
    splitting_memory.forget_merges()
    assert ({}, None) == (splitting_memory.merge_hits, told())
