"""Room: the balancer moves no bundle to a broker that it would bring above a limit, and placement
prefers brokers with room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from equipoise.brokers.balancing.destinations import Destinations, PlacementRules
from equipoise.brokers.balancing.placement import LeastCost, believed
from equipoise.brokers.balancing.planning import cluster_snapshot_of, plan_round
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.channel.core.records import Document
from equipoise.shedder.loads import Declared, Load, Use
from tests.channels.folding import Channel
from tests.channels.ruled import set_policy
from tests.load.loaded import sample, uneven_channel

NOW_MS = 1_700_000_000_000
UNEVEN = {"a": 90.0, "b": 35.0, "c": 5.0}
RULE = "moves may bring it to 85 % (placement.memory_percent_max)"


def loads(channel: Channel, memory: Mapping[str, float]) -> list[Load]:
    """The reports of all brokers, with the use of memory of some, of 1,024 MiB."""
    found = [replace(sample(channel, name, UNEVEN[name]), at_ms=NOW_MS) for name in "abc"]
    return [
        replace(
            load,
            resources=replace(
                load.resources, memory=Use(used=10.24 * memory.get(load.broker, 0), limit=1_024)
            ),
        )
        for load in found
    ]


def keeping(load: Load, cache_bytes: int) -> Load:
    """The report of a broker each of whose bundles keeps so much in memory."""
    bundles = tuple(replace(each, cache_bytes=cache_bytes) for each in load.bundles)
    return replace(load, bundles=bundles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Brokers a with 6 bundles, b with 2 and c with none, their memory in percent, and which of
    them placement may choose for a bundle of a, and which the balancer.

    `keeps`: the MiB that each bundle keeps in memory.
    """

    name: str
    memory: Mapping[str, float] = field(default_factory=dict)
    keeps: int = 0
    rules: PlacementRules = field(default_factory=PlacementRules)
    placed: str = "a b c"
    moved: str = "a b c"
    why: str = ""


CASES = (
    Case(name="all have room", memory={"b": 85, "c": 50}),
    Case(
        name="a full broker is passed over",
        memory={"c": 86},
        placed="a b",
        moved="a b",
        why=f"its memory is 86 % full; {RULE}",
    ),
    Case(
        name="if all are full, a bundle without an owner goes to any",
        memory={"a": 86, "b": 99, "c": 86},
        moved="",
        why=f"its memory is 86 % full; {RULE}",
    ),
    Case(
        name="what a bundle brings along counts",
        memory={"b": 70, "c": 76},
        keeps=102,
        placed="a b",
        moved="a b",
        why=f"its memory is 76 % full, and 86 % with it; {RULE}",
    ),
    Case(
        name="the limit is a setting",
        memory={"c": 86},
        rules=PlacementRules(memory_percent_max=90.0),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_has_room(case: Case) -> None:
    channel = uneven_channel()
    known = {load.broker: keeping(load, case.keeps << 20) for load in loads(channel, case.memory)}
    bundle = channel.view.bundles["tenant/ns/0x00000000_0x20000000"]
    destinations = Destinations(channel.view, loads=known, rules=case.rules)
    moved = destinations.movable_to(bundle)
    assert (case.placed, case.moved, case.why) == (
        " ".join(destinations.of(bundle).allowed),
        " ".join(moved.allowed),
        moved.refused.get("c", ""),
    )


@pytest.mark.parametrize(
    ("owners", "why"),
    [
        ("aaaaaabb", ""),
        ("baaaaabb", f"its memory is 80 % full, and 90 % with it; {RULE}"),
        ("bbaaaabb", f"its memory is 90 % full, and 100 % with it; {RULE}"),
    ],
)
def test_bundles_that_have_come_since_the_report_count(owners: str, why: str) -> None:
    """The reports are of before, when a had the first six."""
    reports = loads(uneven_channel(), {"b": 70})
    known = {load.broker: keeping(load, 102 << 20) for load in reports}
    channel = uneven_channel(owners)
    found = Destinations(channel.view, loads=known).movable_to(channel.bundle(0x40000000))
    assert why == found.refused.get("b", "")


SETTINGS = BalancingSettings()


def planned(
    channel: Channel, known: list[Load]
) -> tuple[list[tuple[str, str | None]], dict[str, str]]:
    """The moves of a round, and why others stay."""
    cluster = cluster_snapshot_of(channel.view, known, SETTINGS, now_ms=NOW_MS)
    plan = plan_round(cluster, SETTINGS, LeastCost()).plan
    return (
        [(move.bundle[-21:], move.destination) for move in plan.moves],
        {stay.subject: stay.reason for stay in plan.stays},
    )


def test_a_plan_leaves_out_what_has_no_room() -> None:
    channel = uneven_channel()
    free, _ = planned(channel, loads(channel, {}))
    assert {"b", "c"} == {destination for _, destination in free}
    moves, _ = planned(channel, loads(channel, {"c": 90}))
    assert {"b"} == {destination for _, destination in moves}
    moves, stays = planned(channel, loads(channel, {"a": 95, "b": 86, "c": 90}))
    assert [] == moves
    assert f"from c: its memory is 90 % full; {RULE}" in stays["a"]


def test_the_moves_of_a_plan_fit_together() -> None:
    """Each of them alone would fit."""
    channel = uneven_channel()
    known = [keeping(load, 102 << 20) for load in loads(channel, {"c": 70})]
    moves, stays = planned(channel, known)
    assert 1 == sum(destination == "c" for _, destination in moves)
    assert any("c has no room left after other moves: " in reason for reason in stays.values())


def test_a_bundle_that_violates_a_policy_stays_if_there_is_no_room() -> None:
    """A forbidden owner is better than a process that the system kills. Other moves go on."""
    channel = uneven_channel()
    only: Document = {"namespaces.0": "tenant/ns", "primary.0": "c"}
    set_policy(channel, "isolation/x", only)
    moves, _ = planned(channel, loads(channel, {}))
    assert {"c"} == {destination for _, destination in moves}
    moves, stays = planned(channel, loads(channel, {"c": 90}))
    assert [] == moves
    assert any("no other broker may have it" in reason for reason in stays.values())


# --- units in which services declare costs ---

TOKENS = Declared(unit="tokens/s", amount=100, rate=1e-4)


def declaring(
    channel: Channel,
    capacities: Mapping[str, float] | None = None,
    **others: Declared,
) -> list[Load]:
    """The reports of all brokers, whose services declare costs in the unit that is
    shown. `capacities`: of brokers that have one.
    """
    return [
        replace(
            load,
            declared={"tenant/ns": others.get(load.broker, TOKENS)},
            capacities={"tokens/s": limit}
            if (limit := (capacities or {}).get(load.broker)) is not None
            else {},
        )
        for load in loads(channel, {})
    ]


def test_no_move_brings_a_broker_above_its_capacity_of_a_unit() -> None:
    """The bundles of a cost 0.07 to 0.37 of a core, and a unit counts as 0.0001."""
    channel = uneven_channel()
    free, _ = planned(channel, declaring(channel))
    assert {"b", "c"} == {destination for _, destination in free}
    moves, _ = planned(channel, declaring(channel, {"c": 690}))
    assert "c" not in {destination for _, destination in moves}
    moves, stays = planned(channel, declaring(channel, {"b": 2_000, "c": 690}))
    assert [] == moves
    assert "from c: it has 0 of 690 tokens/s, and 3,700 with it (capacities)" in stays["a"]


def test_the_moves_of_a_plan_fit_together_in_a_unit() -> None:
    """Each of two moves to c alone would fit: of 3,700 and of 700."""
    channel = uneven_channel()
    free, _ = planned(channel, declaring(channel))
    assert 2 == sum(destination == "c" for _, destination in free)
    moves, stays = planned(channel, declaring(channel, {"c": 4_000}))
    assert 1 == sum(destination == "c" for _, destination in moves)
    assert any("c has no room left after other moves: it has 3," in each for each in stays.values())


def test_a_bundle_that_has_come_counts_as_much_as_its_former_owner_reported() -> None:
    """A unit counts as twice as much of b as of a, whose reports are of before. So b has 1,000
    tokens/s of its own, and 1,900 that have come.
    """
    double = Declared(unit="tokens/s", amount=100, rate=2e-4)
    reports = declaring(uneven_channel(), {"b": 3_500}, b=double)
    channel = uneven_channel("aabaaabb")
    cluster = cluster_snapshot_of(channel.view, reports, SETTINGS, now_ms=NOW_MS)
    refused = cluster.destinations.movable_to(channel.bundle(0x00000000)).refused
    assert refused["b"] == "it has 2,900 of 3,500 tokens/s, and 3,600 with it (capacities)"


def test_bundles_do_not_move_between_brokers_of_different_units() -> None:
    channel = uneven_channel()
    seats = Declared(unit="seats", amount=1, rate=1e-4)
    moves, _ = planned(channel, declaring(channel, c=seats))
    assert {"b"} == {destination for _, destination in moves}
    moves, stays = planned(channel, declaring(channel, b=seats, c=seats))
    assert [] == moves
    assert (
        "from c: its program declares costs of tenant/ns in seats, that of a in tokens/s: use one"
        " unit" in stays["a"]
    )


def test_a_broker_that_does_not_know_its_load_takes_no_part() -> None:
    channel = uneven_channel()
    known = loads(channel, {})
    known[2] = replace(known[2], problem="load() of Carts: it raises ValueError: no")
    assert ["a", "b"] == list(believed({load.broker: load for load in known}))
    moves, stays = planned(channel, known)
    assert {"b"} == {destination for _, destination in moves}
    assert (
        "the load of its bundles is not known: load() of Carts: it raises ValueError: no"
        == stays["c"]
    )
