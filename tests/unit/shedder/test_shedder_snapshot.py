"""Examples of `shedder.snapshot.take`: the owner of a bundle by the view, its weight by the
reports, and who takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.channel.core import propose
from equipoise.channel.core.lifecycle import Phase
from equipoise.shedder.balanced import BalancedShedder
from equipoise.shedder.costs import IDLE_COST, costs_of
from equipoise.shedder.loads import FIGURE_MAX, BundleLoad, Declared, Load, pack
from equipoise.shedder.snapshot import (
    Candidates,
    Snapshot,
    WeighedBroker,
    WeighedBrokers,
    WeighedBundle,
    less_other_work,
    take,
)
from equipoise.shedder.transfer import TransferShedder
from tests.channels.folding import NAMESPACE, Channel, channel_in, channel_with
from tests.channels.ruled import Member, ruled_channel
from tests.shedding import broker, bundle, plan_of

NOW_MS = 1_000_000
AGE_MS_MAX = 15_000
LEFT, RIGHT = f"{NAMESPACE}/0x00000000_0x80000000", f"{NAMESPACE}/0x80000000_0xffffffff"
WHOLE = f"{NAMESPACE}/0x00000000_0xffffffff"


def calls(rate: float) -> float:
    """The cost of a bundle that is called so often per second."""
    return costs_of([BundleLoad(calls_per_second=rate)])[0]


def report(
    broker: str,
    /,
    *,
    at_ms: int = NOW_MS,
    unnamed: int = 0,
    unnamed_cost: float = 0.0,
    **rates: float,
) -> Load:
    """A report with the calls per second of the bundles `left`, `right` and `whole`, and the count
    and cost of unnamed bundles.
    """
    names = {"left": LEFT, "right": RIGHT, "whole": WHOLE}
    costs = {names[which]: calls(rate) for which, rate in rates.items()}
    return Load(
        broker=broker,
        at_ms=at_ms,
        average_use=0.5,
        average_bytes_per_second=1.0,
        bundle_count=len(costs) + unnamed,
        bundles=tuple(replace(bundle(name, 1), cost=cost) for name, cost in costs.items()),
        cost=sum(costs.values()) + unnamed_cost,
    )


def taken(channel: Channel, *reports: Load, resting: tuple[str, ...] = ()) -> Snapshot:
    """The snapshot at `NOW_MS`."""
    return take(channel.view, reports, now_ms=NOW_MS, age_ms_max=AGE_MS_MAX, resting=resting)


def broker_of(snapshot: Snapshot, name: str) -> WeighedBroker:
    (found,) = (broker for broker in snapshot.brokers if broker.broker == name)
    return found


@pytest.fixture
def channel() -> Channel:
    """Broker a owns the left half of a namespace, b the right half, and c nothing."""
    channel = channel_with("c", "b", "a", bundles=2)
    channel.own("a", 0)
    channel.own("b", 0x80000000)
    return channel


def test_the_view_defines_owners_and_reports_define_weights() -> None:
    """Each live broker is there once, by name, with its bundles, their cost, and its capacity."""
    channel = ruled_channel(
        ["c", Member(broker="b", capacity=200), "a"], {NAMESPACE: None}, bundles=2
    )
    channel.own("a", 0)
    channel.own("b", 0x80000000)
    expected = (
        WeighedBroker(broker="a", capacity=100, bundles=(WeighedBundle(name=LEFT, cost=calls(5)),)),
        WeighedBroker(
            broker="b", capacity=200, bundles=(WeighedBundle(name=RIGHT, cost=calls(7)),)
        ),
        WeighedBroker(broker="c", capacity=100, bundles=()),
    )
    reports = (report("c"), report("b", right=7), report("a", left=5))
    assert expected == tuple(taken(channel, *reports).brokers)
    assert expected == tuple(taken(channel, *reversed(reports)).brokers)


@pytest.mark.parametrize("at_ms", [NOW_MS - AGE_MS_MAX - 1, NOW_MS + AGE_MS_MAX + 1])
def test_an_old_report_does_not_count(channel: Channel, at_ms: int) -> None:
    """A report that is too old, or too far in the future, weighs nothing and keeps its broker out
    of the round.
    """
    snapshot = taken(channel, report("a", at_ms=at_ms, left=5), report("b", right=7), report("c"))
    apart = broker_of(snapshot, "a")
    assert "there is no fresh report of its load" == apart.barred
    # As any bundle of which nothing is known.
    assert (calls(7),) == tuple(bundle.cost for bundle in apart.bundles)
    assert broker_of(snapshot, "b").barred is None
    assert ["a", "b", "c"] == list(snapshot.loads)


@pytest.mark.parametrize("declares", [True, False])
def test_a_declared_cost_counts_as_at_its_new_owner(channel: Channel, *, declares: bool) -> None:
    """Brokers with other capacities of a unit take another part of themselves for one. Whether the
    new owner has reported that, or has only told its capacity of the unit.
    """
    declared = {NAMESPACE: Declared(unit="seats", amount=1, rate=0.01)}
    before = replace(report("c", right=7), declared=declared, capacities={"seats": 100})
    own = {NAMESPACE: Declared(unit="seats", amount=1, rate=0.04)} if declares else {}
    now = replace(report("b"), declared=own, capacities={"seats": 25})
    (moved,) = broker_of(taken(channel, before, now), "b").bundles
    assert pytest.approx(4 * calls(7)) == moved.cost


@pytest.mark.parametrize("seats", [5e-324, 1.0])
def test_a_capacity_that_nobody_has_makes_no_cost_that_cannot_be(
    channel: Channel, seats: float
) -> None:
    """A unit would count as infinity of the new owner, or that divided by itself."""
    before = replace(report("c", right=7), capacities={"seats": seats})
    declared = {NAMESPACE: Declared(unit="seats", amount=1, rate=0.01)}
    tiny = replace(report("b"), capacities={"seats": 5e-324})
    snapshot = taken(channel, replace(report("a", left=1), declared=declared), before, tiny)
    (moved,) = broker_of(snapshot, "b").bundles
    assert IDLE_COST <= moved.cost <= FIGURE_MAX
    assert math.isfinite(BalancedShedder().plan(snapshot)[0].deviation or 0.0)


def weighed_costs(snapshot: Snapshot) -> dict[str, float]:
    return {bundle.name: bundle.cost for broker in snapshot.brokers for bundle in broker.bundles}


A, B, C = report("a"), report("b", right=7), report("c")
RIGHT_OF_B = calls(7)
COSTS: dict[str, tuple[bool, Sequence[Load], Mapping[str, float]]] = {
    "of two former owners the newer report counts": (
        False,
        (A, report("b", right=1, left=3), report("c", at_ms=NOW_MS - 1, left=2)),
        {LEFT: calls(3), RIGHT: calls(1)},
    ),
    "the weight follows a bundle to its new owner": (
        True,
        (report("a", left=5), B, C),
        {LEFT: calls(5), RIGHT: RIGHT_OF_B},
    ),
    "the owner's own report replaces it, even if it is older": (
        True,
        (report("a", left=5), B, report("c", at_ms=NOW_MS - 9_000, left=80)),
        {LEFT: calls(80), RIGHT: RIGHT_OF_B},
    ),
    "unnamed bundles share the rest of the cost of their broker": (
        False,
        (report("a", whole=5, unnamed=2, unnamed_cost=100), B, C),
        {LEFT: 50.0, RIGHT: RIGHT_OF_B},
    ),
    "none costs less than an idle one": (
        False,
        (report("a", whole=5, unnamed=2, unnamed_cost=-1e-4), B, C),
        {LEFT: IDLE_COST, RIGHT: RIGHT_OF_B},
    ),
    "one that arrived unnamed after the report costs the mean of all bundles": (
        False,
        (A, report("b", right=50), report("c", whole=0, unnamed=3, unnamed_cost=60)),
        {LEFT: (calls(0) + calls(50) + 60) / 5, RIGHT: calls(50)},
    ),
    # What it counted covers only a part of a period.
    "so does one of a broker whose bundles have all just come": (
        False,
        (
            report("a", unnamed=1, unnamed_cost=20),
            report("b", right=50),
            report("c", whole=0, unnamed=3, unnamed_cost=60),
        ),
        {LEFT: (calls(0) + calls(50) + 60) / 5, RIGHT: calls(50)},
    ),
    "where nothing is known all are idle": (
        False,
        (A, report("b"), C),
        {LEFT: IDLE_COST, RIGHT: IDLE_COST},
    ),
}


@pytest.mark.parametrize(("moves", "reports", "costs"), COSTS.values(), ids=COSTS.keys())
def test_what_a_bundle_costs(
    channel: Channel, reports: Sequence[Load], costs: Mapping[str, float], *, moves: bool
) -> None:
    """In whatever order the reports come. The left half may have moved from a to c."""
    if moves:
        move_left(channel)
    for order in (reports, reports[::-1]):
        snapshot = taken(channel, *order)
        assert costs == weighed_costs(snapshot)
        owner = "c" if moves else "a"
        assert [LEFT] == [bundle.name for bundle in broker_of(snapshot, owner).bundles]


def move_left(channel: Channel) -> None:
    """Move the left half from a to c."""
    incarnation = channel.incarnation("c")
    channel.accept(propose.transfer(channel.admin(), channel.bundle(), destination=incarnation))
    channel.accept(propose.prepared(channel.author("c"), channel.bundle()))
    channel.accept(propose.hand_over(channel.author("a"), channel.bundle()))


def test_a_bundle_is_reported_once_its_own_broker_has_done_so(channel: Channel) -> None:
    move_left(channel)
    for loads, is_reported in (
        ((report("a", left=5), B, C), False),
        ((report("a", left=5), B, report("c", left=5)), True),
        ((report("a", left=5), B, replace(C, column=pack({LEFT: 0.1}, total=0.1))), True),
    ):
        (bundle,) = broker_of(taken(channel, *loads), "c").bundles
        assert is_reported == bundle.is_reported


FAULTS = {
    "its average use is nan": lambda told: replace(
        told, average_use=math.nan, average_bytes_per_second=1
    ),
    "has bytes_out_per_second=-1": lambda told: replace(told, bundles=(bundle(LEFT, -1),)),
    "it costs inf": lambda told: replace(told, cost=math.inf),
    f"{LEFT} costs -1.0": lambda told: replace(
        told, bundles=(replace(bundle(LEFT, 1), cost=-1.0),)
    ),
}


@pytest.mark.parametrize(
    ("fault", "spoil"), FAULTS.items(), ids=["use", "traffic", "cost", "bundle"]
)
def test_an_impossible_figure_keeps_its_broker_out_of_the_round(
    channel: Channel, fault: str, spoil: Callable[[Load], Load]
) -> None:
    """Such a report weighs nothing, and the other brokers are weighed as without it."""
    others = (report("b", right=7), report("c"))
    snapshot = taken(channel, spoil(report("a", left=5)), *others)
    assert str(broker_of(snapshot, "a").barred).startswith(
        "its load report is not plausible and does not count: "
    )
    assert str(broker_of(snapshot, "a").barred).endswith(fault)
    without = taken(channel, *others)
    assert [replace(one, barred=None) for one in without.brokers] == [
        replace(one, barred=None) for one in snapshot.brokers
    ]


def test_a_draining_broker_is_barred_and_a_dead_one_is_missing(channel: Channel) -> None:
    channel.accept(propose.draining(channel.author("c"), channel.broker("c")))
    channel.die("b")
    snapshot = taken(channel, report("a", left=5), report("b", right=7), report("c"))
    assert ["a", "c"] == [broker.broker for broker in snapshot.brokers]
    assert broker_of(snapshot, "c").barred == "it drains, and moves its bundles away itself"


@pytest.mark.parametrize(
    ("phase", "expected"),
    {
        "free": None,
        "assigning": ("owner", "it is assigning already"),
        "owned": ("owner", None),
        "splitting": ("owner", "it is splitting already"),
        "transferring": ("owner", "it is assigning already"),
        "handing_over": ("owner", "it is releasing already"),
        "unloading": None,
    }.items(),
)
def test_a_bundle_weighs_where_it_goes(
    phase: Phase, expected: tuple[str, str | None] | None
) -> None:
    """In each phase a bundle weighs on the broker that has it or will have it. Only a bundle at
    rest may move.
    """
    snapshot = taken(channel_in(phase), report("owner", whole=1), report("source", whole=1))
    found = [
        (broker.broker, bundle.barred) for broker in snapshot.brokers for bundle in broker.bundles
    ]
    assert ([] if expected is None else [expected]) == found


def test_bundles_that_rest_and_those_that_are_being_deleted_are_told_apart(
    channel: Channel,
) -> None:
    """Only the first may fill a broker."""
    reports = (report("a", left=5), report("b", right=7), report("c"))
    assert [(None, True)] == [
        (b.barred, b.rests)
        for b in broker_of(taken(channel, *reports, resting=(LEFT,)), "a").bundles
    ]
    channel.accept(propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE))
    assert ("its namespace is being deleted",) == tuple(
        b.barred for b in broker_of(taken(channel, *reports), "b").bundles
    )


@pytest.mark.parametrize(
    ("age_ms", "is_new"), [(-1, False), (0, True), (59_999, True), (60_000, False)]
)
def test_a_broker_is_new_for_a_minute(channel: Channel, age_ms: int, is_new: bool) -> None:
    joined_ms = channel.broker("a").joined.timestamp_ms
    snapshot = take(channel.view, (), now_ms=joined_ms + age_ms, age_ms_max=AGE_MS_MAX)
    assert {is_new} == {each.is_new for each in snapshot.brokers}


def told_by(channel: Channel, *bundles: str) -> Snapshot:
    """The snapshot after broker a has reported these bundles."""
    told = replace(
        broker(50),
        broker="a",
        at_ms=0,
        bundles=tuple(bundle(name, 1) for name in bundles),
        cost=1.0,
    )
    return take(
        channel.view,
        (told,),
        now_ms=NOW_MS,
        age_ms_max=AGE_MS_MAX,
        resting=(RIGHT,),
    )


def test_the_view_defines_the_owners_of_reported_bundles(channel: Channel) -> None:
    """The view defines who serves a reported bundle, and which ones must not move now. One that no
    broker serves has no owner.
    """
    snapshot = told_by(channel, LEFT, RIGHT, WHOLE)
    assert [("a", "b", "c"), {}] == [snapshot.live, snapshot.apart]
    assert [{LEFT: "a", RIGHT: "b"}, {RIGHT: "it has moved lately"}] == [
        snapshot.owners,
        snapshot.resting,
    ]
    assert Candidates(allowed=("a", "b", "c")) == snapshot.candidates(LEFT)
    for phase in ("free", "assigning"):
        assert {} == told_by(channel_in(phase), WHOLE).owners


def test_moving_bundles_rest_and_draining_brokers_are_apart(channel: Channel) -> None:
    """A bundle on its way is still at its source, and barred. A draining broker is apart."""
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("c"))
    )
    channel.accept(propose.draining(channel.author("b"), channel.broker("b")))
    snapshot = told_by(channel, LEFT)
    assert ({LEFT: "a"}, {LEFT: "it is assigning already"}) == (snapshot.owners, snapshot.resting)
    assert {"b": "it drains, and moves its bundles away itself"} == snapshot.apart


def test_bundles_are_weighed_at_the_first_access(channel: Channel) -> None:
    """A strategy that uses loads weighs nothing. One that uses brokers weighs them once."""
    expected, weighed = tuple(taken(channel).brokers), []

    def weigh() -> tuple[WeighedBroker, ...]:
        weighed.append(True)
        return expected

    snapshot = replace(taken(channel), brokers=WeighedBrokers(weigh))
    plan_of(TransferShedder(), snapshot)
    assert [] == weighed
    plan_of(BalancedShedder(), snapshot)
    assert (expected, [True]) == (tuple(snapshot.brokers), weighed)


def test_cleared_brokers_are_weighed_again(channel: Channel) -> None:
    snapshot = taken(channel)
    before = tuple(snapshot.brokers)
    assert isinstance(snapshot.brokers, WeighedBrokers)
    snapshot.brokers.clear()
    assert (before, True) == (tuple(snapshot.brokers), bool(before))


def test_other_work_lowers_the_capacity(channel: Channel) -> None:
    """What is above 20 % of broker a counts, and the reasons name it."""
    reports = [
        replace(report(name, **rates), other_work=other)
        for name, rates, other in (
            ("a", {"left": 290}, 0.75),
            ("b", {"right": 290}, 0.2),
            ("c", dict[str, float](), None),
        )
    ]
    snapshot = taken(channel, *reports)
    capacities = {each.broker: (each.capacity, each.other_work) for each in snapshot.brokers}
    assert {"a": (45, 0.75), "b": (100, 0.0), "c": (100, 0.0)} == capacities
    (stay,) = (stay for stay in plan_of(BalancedShedder(), snapshot).stays if stay.subject == "a")
    assert stay.reason.startswith(
        "load is 272 % of the mean for what other work leaves: that takes 75 % of its CPU"
    )


@given(other=st.floats(0, 1_000), capacity=st.integers(10, 10_000))
def test_no_other_work_takes_all_capacity(other: float, capacity: int) -> None:
    """A liar keeps a tenth."""
    broker = WeighedBroker(broker="a", capacity=capacity, bundles=())
    (after,) = less_other_work([broker], {"a": Load(broker="a", at_ms=0, other_work=other)})
    assert capacity / 10 - 1 <= after.capacity <= capacity
