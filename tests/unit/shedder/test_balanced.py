"""Examples of `BalancedShedder`: which bundle moves where, and the reasons of those that stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from equipoise.shedder.balanced import BalancedMemory, BalancedShedder
from equipoise.shedder.costs import IDLE_COST
from equipoise.shedder.plan import Budget, Move, Plan, Predicted
from equipoise.shedder.snapshot import (
    Candidates,
    EndedMove,
    Since,
    Snapshot,
    WeighedBroker,
    WeighedBundle,
)
from tests.shedding import plan_of

SHEDDER = BalancedShedder()


def broker(
    name: str, *costs: float, capacity: int = 100, barred: str | None = None
) -> WeighedBroker:
    """A broker whose bundles are named a1, a2, ... after it."""
    bundles = tuple(
        WeighedBundle(name=f"{name}{number}", cost=cost)
        for number, cost in enumerate(costs, start=1)
    )
    return WeighedBroker(broker=name, capacity=capacity, bundles=bundles, barred=barred)


def plan(*brokers: WeighedBroker, balanced_shedder: BalancedShedder | None = None) -> Plan:
    return plan_of(balanced_shedder or SHEDDER, Snapshot(brokers=brokers))


def uneven(*, by: float, noise: float = 0.0) -> Snapshot:
    """Two brokers with bundles of different cost: one has a part `by` more than the mean, and the
    other as much less.
    """
    bundles = [
        tuple(
            WeighedBundle(name=f"{name}{number}", cost=5.0 + 10.0 * (number % 2))
            for number in range(round(count))
        )
        for name, count in (("a", 100 + 100 * by), ("b", 100 - 100 * by))
    ]
    return Snapshot(
        brokers=tuple(
            WeighedBroker(broker=name, capacity=100, bundles=each, noise=noise)
            for name, each in zip("ab", bundles, strict=True)
        )
    )


OLD = [broker(name, *(10.0,) * 11) for name in "abcdefghij"]
FULL = [broker(name, *(10.0,) * 20) for name in "ab"]
LIGHT = (0.1,) * 600
MOVES: dict[str, tuple[Sequence[WeighedBroker], Mapping[str, object], list[tuple[str, str]]]] = {
    "nothing to move to": ([broker("a", 10, 20)], {}, []),
    "nothing to move": ([broker("a"), broker("b")], {}, []),
    "an empty broker is filled from the fullest, though none is too full": (
        [*OLD, broker("z")],
        {},
        [(f"{name}1", "z") for name in "abcd"],
    ),
    "three times the capacity carries three times as much": (
        [broker("a", 30, 30, 30, capacity=300), broker("b", 30)],
        {},
        [],
    ),
    "the small one is full": (
        [broker("a", 10, 20, 30, capacity=300), broker("b", 20, 20, 20)],
        {},
        [("b1", "a")],
    ),
    "a bundle that is small for its broker may be too much for another": (
        [broker("a", 2, 200, 200, capacity=1_000), broker("b", capacity=10)],
        {},
        [("a1", "b")],
    ),
    "equal bundles are spread by number, however many idle ones are beside them": (
        [broker("a", 1, capacity=1), broker("b", 1, *(IDLE_COST,) * 20)],
        {},
        [],
    ),
    "light bundles count where they are much of the load": (
        [broker("a", 10, *(0.09,) * 100), broker("b", 10)],
        {"moves_max": 2},
        [("a10", "b"), ("a100", "b")],
    ),
    "or none is small enough": (
        [broker("a", 4, 200, 200, capacity=1_000), broker("b", capacity=10)],
        {},
        [],
    ),
    "8 % above the mean is let be": (
        [broker("a", *(0.5, 1.5) * 54), broker("b", *(0.5, 1.5) * 46)],
        {},
        [],
    ),
    "one at 11 % gives until it is within 8 %": (
        [broker("a", *(0.5, 1.5) * 111), broker("b", *(0.5, 1.5) * 89)],
        {},
        [("a10", "b"), ("a100", "b"), ("a102", "b"), ("a104", "b")],
    ),
    "a bundle without load helps nobody": ([broker("a", 30, 0.1), broker("b", 10)], {}, []),
    "at most two": ([*FULL, broker("c")], {"moves_max": 2}, [("a1", "c"), ("b1", "c")]),
    "at most one": ([*FULL, broker("c")], {"moves_max": 1}, [("a1", "c")]),
    "a barred broker takes nothing": (
        [broker("a", 50, 50), broker("b", barred="it drains")],
        {},
        [],
    ),
    "a barred broker gives nothing": (
        [broker("a", 50, 50, barred="it drains"), broker("b")],
        {},
        [],
    ),
    "a little too light goes before too heavy": (
        [broker("a", *LIGHT, 9.0, 30.0), broker("b", 40.0)],
        {"moves_max": 1},
        [("a601", "b")],
    ),
    "much too light would need many companions": (
        [broker("a", *LIGHT, 0.5, 14.0), broker("b", 40.0)],
        {"moves_max": 1},
        [("a602", "b")],
    ),
    "with other work, loads are uncertain and equal bundles are not counted": (
        [replace(broker("a", *(10.0,) * 21), other_work=0.4), broker("b", *(10.0,) * 19)],
        {},
        [],
    ),
}


@pytest.mark.parametrize(("brokers", "changed", "expected"), MOVES.values(), ids=MOVES.keys())
def test_which_bundles_move_where(
    brokers: Sequence[WeighedBroker],
    changed: Mapping[str, object],
    expected: list[tuple[str, str]],
) -> None:
    shedder = replace(SHEDDER, **changed)  # type: ignore[arg-type]
    for order in (brokers, brokers[::-1]):
        found = plan(*order, balanced_shedder=shedder).moves
        assert expected == [(move.bundle, move.destination) for move in found]


@pytest.mark.parametrize(("shedder", "number"), [(SHEDDER, 4), (replace(SHEDDER, moves_max=9), 9)])
def test_a_new_broker_takes_a_few_bundles_at_a_time(shedder: BalancedShedder, number: int) -> None:
    old = [broker(name, *(10.0,) * 40) for name in "abc"]
    assert number == len(plan(*old, broker("z"), balanced_shedder=shedder).moves)


def scaled(snapshot: Snapshot, factor: float) -> Snapshot:
    """The cluster with all costs times `factor`."""
    return replace(
        snapshot,
        brokers=tuple(
            replace(
                each,
                bundles=tuple(
                    replace(bundle, cost=bundle.cost * factor) for bundle in each.bundles
                ),
            )
            for each in snapshot.brokers
        ),
    )


def with_noise(snapshot: Snapshot, *noises: float | None) -> Snapshot:
    pairs = zip(snapshot.brokers, noises, strict=True)
    return replace(snapshot, brokers=tuple(replace(each, noise=noise) for each, noise in pairs))


LIAR = Snapshot(
    brokers=(replace(broker("a", *(5.0, 15.0) * 15), noise=1e18), broker("b"), broker("c"))
)
CHANCE: dict[str, tuple[Snapshot, BalancedShedder, bool]] = {
    "above the band": (uneven(by=0.12), SHEDDER, True),
    "so little is not worth a pause": (scaled(uneven(by=0.12), 1e-6), SHEDDER, False),
    "twice as much is": (scaled(uneven(by=0.12), 1e-5), SHEDDER, True),
    "what one and a half standard errors explain is chance": (
        uneven(by=0.2, noise=90),
        SHEDDER,
        False,
    ),
    "more is not": (uneven(by=0.2, noise=30), SHEDDER, True),
    "noise up to the load": (uneven(by=0.4, noise=1e18), SHEDDER, False),
    "more noise than load is not believed": (LIAR, SHEDDER, True),
    # After a start, only a large difference is sure to be no chance.
    "unknown noise is that of others": (with_noise(uneven(by=0.3), None, 5.0), SHEDDER, True),
    "much of others": (with_noise(uneven(by=0.3), None, 240.0), SHEDDER, False),
    "none knows": (with_noise(uneven(by=0.3), None, None), SHEDDER, False),
    "none knows, and much is uneven": (with_noise(uneven(by=0.7), None, None), SHEDDER, True),
}


@pytest.mark.parametrize(("snapshot", "shedder", "moves"), CHANCE.values(), ids=CHANCE.keys())
def test_what_may_be_chance_moves_nothing(
    snapshot: Snapshot, shedder: BalancedShedder, *, moves: bool
) -> None:
    assert moves == bool(plan_of(shedder, snapshot).moves)


HOT = "no move would help: the heaviest of its 1 bundles is a1, with"
NARROW = BalancedShedder(start_ratio=0.03)
BARRED = WeighedBroker(
    broker="a",
    capacity=100,
    bundles=tuple(
        WeighedBundle(name=name, cost=50, barred="it is frozen") for name in ("a1", "a2")
    ),
)
STAYS: dict[str, tuple[Sequence[WeighedBroker], BalancedShedder, Mapping[str, str]]] = {
    "one hot bundle": (
        [broker("a", 100), broker("b", 10)],
        SHEDDER,
        {
            "a": f"load is 182 % of the mean, but {HOT} 182 % of the mean load; split it",
            "b": (
                "load is 18 % of the mean, but no broker can give it a bundle: of a,"
                f" {HOT} 182 % of the mean load; split it"
            ),
        },
    ),
    "what comes later": (
        [*FULL, broker("c")],
        replace(SHEDDER, moves_max=1),
        {"b": "load is 150 % of the mean; it gives bundles in the next round"},
    ),
    "barred bundles and brokers": (
        [BARRED, broker("b"), broker("c", barred="it drains")],
        SHEDDER,
        {
            "a": "load is 200 % of the mean, but none of its bundles may be moved now",
            "a1": "it is frozen, although the load of a is too high",
            "a2": "it is frozen, although the load of a is too high",
            "b": (
                "load is 0 % of the mean, but no broker can give it a bundle: of a, none of its"
                " bundles may be moved now"
            ),
            "c": "it drains",
        },
    ),
    "more bundles come later": (
        [broker("a", *(10.0,) * 30), broker("b")],
        NARROW,
        {"b": "load is 27 % of the mean with 4 more bundles; it takes bundles in the next round"},
    ),
    "no more bundles come": (
        [broker("a", 100, 10), broker("b", 10)],
        NARROW,
        {
            "b": (
                "load is 33 % of the mean with 1 more bundle, but no broker can give it a bundle:"
                f" of a, {HOT} 167 % of the mean load; split it"
            )
        },
    ),
}


@pytest.mark.parametrize(("brokers", "shedder", "expected"), STAYS.values(), ids=STAYS.keys())
def test_a_stay_says_why(
    brokers: Sequence[WeighedBroker], shedder: BalancedShedder, expected: Mapping[str, str]
) -> None:
    """Never by the bounds that a broker is outside of."""
    stays = {stay.subject: stay.reason for stay in plan(*brokers, balanced_shedder=shedder).stays}
    assert expected.items() <= stays.items()


EVEN = "the load is even: "
NOISY = [
    replace(each, noise=200.0)
    for each in (broker("a", *(10.0, 30.0) * 33), broker("b", *(10.0, 30.0) * 17))
]


@pytest.mark.parametrize(
    ("brokers", "cause", "reason"),
    [
        ([], "NoBrokers", "no broker has a fresh load report"),
        ([broker("a", 10, barred="for a reason")], "NoBrokers", ""),
        ([broker("a", 100), broker("b")], "NoBundles", ""),
        (
            [broker("a", 10), broker("b", 10)],
            "HitCount",
            f"{EVEN}its bundles cost the same, and each broker has its share of them",
        ),
        (
            [broker("a", 10, 30), broker("b", 10, 31)],
            "HitCount",
            f"{EVEN}no broker is further from the mean than 10 % of it",
        ),
        (
            NOISY,
            "HitCount",
            (
                f"{EVEN}loads have not lasted as predicted, and no broker is further from the mean"
                " than that explains: b has 68 % of the mean load (allowed: 58 % to 142 %)"
            ),
        ),
    ],
)
def test_a_round_that_moves_nothing_is_counted_by_what_kept_it_and_says_so(
    brokers: Sequence[WeighedBroker], cause: str, reason: str
) -> None:
    """Never that no broker is further from the mean than 8 %, if one is at 132 %."""
    found = plan(*brokers)
    assert found.idle is not None
    assert ((), "Skip", cause) == (found.moves, found.idle.result, found.idle.cause)
    assert reason in found.idle.reason


def test_each_move_says_why() -> None:
    reason = (
        "balanced: a has 180 % of the mean load, b has 20 %; the bundle brings them to 100 % and"
        " 100 %, and is 44 % of the load of a"
    )
    (move,) = plan(broker("a", 50, 40), broker("b", 10)).moves
    predicted = Predicted(source=(1.8, 1.0), destination=(0.2, 1.0))
    assert (
        Move(bundle="a2", source="a", destination="b", reason=reason, predicted=predicted) == move
    )


def test_each_move_predicts_how_long_it_takes() -> None:
    """As long as the last moves took, at the median."""
    lately = EndedMove(source="a", destination="b", at_ms=1, duration_ms=500)
    snapshot = Snapshot(
        brokers=(broker("a", 50, 40), broker("b", 10)),
        since=Since(ended=(lately, replace(lately, duration_ms=11))),
    )
    (move,) = plan_of(SHEDDER, snapshot, BalancedMemory(durations_ms=(9,))).moves
    assert move.predicted is not None
    assert 11 == move.predicted.duration_ms


def ruled(forbidden: Mapping[str, str], *brokers: WeighedBroker) -> Snapshot:
    """A cluster with rules that keep each of these bundles from one broker."""
    live = tuple(sorted(each.broker for each in brokers))

    def rules(bundle: str) -> Candidates:
        kept = forbidden.get(bundle)
        refused = {} if kept is None else {kept: "policy x"}
        return Candidates(allowed=tuple(name for name in live if name != kept), refused=refused)

    return Snapshot(brokers=brokers, live=live, rules=rules)


def test_a_forbidden_move_is_skipped() -> None:
    """The next best bundle moves, or the best one to the next emptiest broker. If none may move,
    the reason names the rule.
    """
    cluster = broker("a", 10, 40, 45), broker("b", 20), broker("c", 10)
    first, *_ = plan_of(replace(SHEDDER, moves_max=1), ruled({}, *cluster)).moves
    assert ("a2", "c") == (first.bundle, first.destination)
    second, *_ = plan_of(replace(SHEDDER, moves_max=1), ruled({"a2": "c"}, *cluster)).moves
    assert ("a3", "c") == (second.bundle, second.destination)
    none = plan_of(
        BalancedShedder(), ruled({"a1": "b", "a2": "b"}, broker("a", 40, 45), broker("b", 10))
    )
    assert () == none.moves
    (told,) = [stay.reason for stay in none.stays if stay.subject == "a"]
    assert told.endswith(
        "but the rules keep its bundles from brokers with less load: for example a1 from b:"
        " policy x"
    )


def test_a_plan_checks_rules_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rules forbid more bundles than a round can check, the round ends without a move, and
    asks once about each bundle.
    """
    monkeypatch.setattr("equipoise.shedder.snapshot.ASKED_MAX", 20)
    asked: list[str] = []
    snapshot = ruled({}, broker("a", *range(10, 60)), broker("b", 10))

    def nobody(bundle: str) -> Candidates:
        asked.append(bundle)
        return Candidates(allowed=())

    assert () == plan_of(BalancedShedder(), replace(snapshot, rules=nobody)).moves
    assert 10 == len(asked) == len(set(asked))


def test_a_bundle_that_has_moved_costs_what_it_did_until_it_is_reported() -> None:
    """The first report of its broker does not have it."""
    memory = BalancedMemory(costs={"x": 100.0})
    for is_reported, deviation in ((True, 0.82), (False, 0.0)):
        bundle = WeighedBundle(name="x", cost=10, rests=True, is_reported=is_reported)
        brokers = (broker("a", 100), replace(broker("b"), bundles=(bundle,)))
        plan = plan_of(BalancedShedder(), Snapshot(brokers=brokers), memory)
        assert deviation == pytest.approx(plan.deviation, abs=0.01)


def test_what_a_bundle_costs_is_not_remembered_too_low() -> None:
    """Where calls begin, nobody knows at first what moves."""
    new = replace(broker("b"), is_new=True)
    shedder = BalancedShedder()
    plan, memory = shedder.plan(Snapshot(brokers=(broker("a", *(1e-5,) * 8), new)))
    moved = {move.bundle for move in plan.moves}
    assert 4 == len(moved)
    assert dict.fromkeys(moved, 1e-5) == memory.costs
    bundles = tuple(
        WeighedBundle(name=name, cost=10.0, rests=True, is_reported=False) for name in sorted(moved)
    )
    snapshot = Snapshot(brokers=(broker("a", *(10.0,) * 4), replace(new, bundles=bundles)))
    plan, _ = shedder.plan(snapshot, memory)
    assert 0.0 == plan.deviation


@pytest.mark.parametrize(("before", "moves"), [(0.01, 3), (40.0, 3), (8.0, 0), (9.5, 0)])
def test_a_bundle_whose_load_is_another_than_when_it_moved_does_not_rest(
    before: float, moves: int
) -> None:
    """Calls have begun or ended since. So a start by number does not last a minute."""
    bundles = tuple(
        WeighedBundle(name=f"a{number}", cost=5.0 + 10.0 * (number % 2), rests=True)
        for number in range(22)
    )
    full = replace(broker("a"), bundles=bundles)
    memory = BalancedMemory(costs={bundle.name: before for bundle in bundles})
    snapshot = Snapshot(brokers=(full, broker("b", *(5.0, 15.0) * 8)))
    plan, memory = BalancedShedder().plan(snapshot, memory)
    assert moves == len(plan.moves)
    # From now on it rests by what it costs now.
    costs, moved = {bundle.name: bundle.cost for bundle in bundles}, plan.moves
    after = dict.fromkeys(costs, before) | {move.bundle: costs[move.bundle] for move in moved}
    assert after == memory.costs


def test_what_has_rested_is_forgotten() -> None:
    memory = BalancedMemory(costs={"a1": 10.0, "gone": 10.0})
    _, memory = BalancedShedder().plan(Snapshot(brokers=(broker("a", 10.0),)), memory)
    assert {} == memory.costs


def test_a_budget_bounds_what_moves_in_an_hour() -> None:
    """The budget of two percent is used up by the fourth bundle of 2,000, and is whole again after
    an hour.
    """
    shedder = BalancedShedder(churn_max=0.02, moves_max=100)
    first, memory = shedder.plan(uneven(by=0.3))
    assert 4 == len(first.moves)
    second = plan_of(shedder, replace(uneven(by=0.3), now_ms=60_000), memory)
    assert "the budget of moved load per hour is used up" in second.stays[0].reason
    # Of two percent, a sixtieth is free again. The lightest bundle has a quarter of a percent.
    assert second.budget is not None
    assert (True, 390_000) == (second.budget.blocks, second.budget.free_in_ms)
    assert 0.02 * 59 / 60 == pytest.approx(second.budget.used)
    assert second.idle is not None
    assert (
        second.idle.reason
        == "the load is uneven, and the budget of moved load, 2 % of all load per hour"
        " (balanced.churn_max), is used up; the next bundle may move in 6 min"
    )
    assert 4 == len(plan_of(shedder, replace(uneven(by=0.3), now_ms=3_600_000), memory).moves)


def test_a_budget_that_no_bundle_fits_into_is_never_free() -> None:
    found = plan_of(BalancedShedder(churn_max=0.0), uneven(by=0.3))
    assert Budget(most=0.0, used=0.0, blocks=True, free_in_ms=None) == found.budget
    assert found.budget.reason.endswith("is used up; no bundle is light enough for it")


# --- filling ---

HINDRANCES = ("nothing", "budget", "rest", "noise", "all")


class Filled:
    """A cluster, round after round, as its leader sees it. A bundle that moved rests."""

    def __init__(
        self,
        *brokers: WeighedBroker,
        hindrance: str = "nothing",
        shedder: BalancedShedder | None = None,
    ) -> None:
        is_hindered = {kind: hindrance in (kind, "all") for kind in HINDRANCES}
        self.shedder = shedder or BalancedShedder()
        self.memory = BalancedMemory(churn=1.0 if is_hindered["budget"] else 0.0)
        self.moved: list[str] = []
        self.brokers = {
            each.broker: replace(
                each,
                noise=total(each) if is_hindered["noise"] else 0.0,
                bundles=tuple(
                    replace(bundle, rests=is_hindered["rest"]) for bundle in each.bundles
                ),
            )
            for each in brokers
        }

    def round(self) -> Plan:
        """Plan and carry out a round."""
        snapshot = Snapshot(brokers=tuple(self.brokers.values()))
        plan, self.memory = self.shedder.plan(snapshot, self.memory)
        for move in plan.moves:
            assert move.destination is not None
            source, destination = self.brokers[move.source], self.brokers[move.destination]
            (bundle,) = (bundle for bundle in source.bundles if bundle.name == move.bundle)
            self.brokers[move.source] = replace(
                source, bundles=tuple(each for each in source.bundles if each is not bundle)
            )
            self.brokers[move.destination] = replace(
                destination, bundles=(*destination.bundles, replace(bundle, rests=True))
            )
            self.moved.append(move.bundle)
        return plan

    def rounds(self) -> list[int]:
        """Carry out rounds until nothing moves. Return how many bundles each broker has then."""
        while self.round().moves:
            assert len(self.moved) < 1_000
        return [len(each.bundles) for each in self.brokers.values()]


def total(each: WeighedBroker) -> float:
    return sum(bundle.cost for bundle in each.bundles)


@pytest.mark.parametrize("hindrance", HINDRANCES)
@pytest.mark.parametrize(
    ("before", "after"),
    [((35, 29, 0), [21, 22, 21]), ((32, 32, 0), [21, 22, 21]), ((22, 21, 21, 0), [16, 16, 16, 16])],
)
def test_an_empty_broker_gets_its_share_whatever_has_moved_before(
    before: tuple[int, ...], after: list[int], hindrance: str
) -> None:
    """Equal load: by number. No bundle moves twice, and the budget of other moves stays as it
    was.
    """
    cluster = Filled(
        *(broker(name, *(13.0,) * count) for name, count in zip("abcd", before, strict=False)),
        hindrance=hindrance,
    )
    churn = cluster.memory.churn
    first = cluster.round()
    assert (4, True) == (len(first.moves), first.fills)
    assert after == cluster.rounds()
    assert after[-1] == len(cluster.moved) == len(set(cluster.moved))
    assert churn == cluster.memory.churn
    assert frozenset() == cluster.memory.filling


@pytest.mark.parametrize("hindrance", HINDRANCES)
def test_an_empty_broker_gets_its_share_of_unequal_load_and_no_more(hindrance: str) -> None:
    """By load or by number, whichever comes first."""
    costs = [10.0, 10.0, 20.0, 40.0, 80.0, 160.0] * 5
    cluster = Filled(broker("a", *costs), broker("b", *costs), broker("c"), hindrance=hindrance)
    *_, number = cluster.rounds()
    mean = sum(map(total, cluster.brokers.values())) / 3
    assert 0.92 * mean <= total(cluster.brokers["c"]) <= mean
    assert number <= 20
    assert len(cluster.moved) == len(set(cluster.moved)) == number


@pytest.mark.parametrize(("factor", "least"), [(0.1, 16), (3.0, 4)])
def test_a_broker_that_is_filled_gets_no_more_than_its_share_whatever_it_reports(
    factor: float, least: int
) -> None:
    """Right after a bundle has moved, its clients may be on their way, or all call at once."""
    cluster = Filled(*(broker(name, *(15.0, 25.0) * 12) for name in "abc"), broker("d"))
    most = 0
    while cluster.round().fills:
        most = len(cluster.brokers["d"].bundles)
        newcomer = cluster.brokers["d"]
        lying = tuple(
            replace(bundle, cost=20.0 * factor, rests=False) for bundle in newcomer.bundles
        )
        cluster.brokers["d"] = replace(newcomer, bundles=lying)
    assert least <= most <= 18
    assert len(cluster.moved) == len(set(cluster.moved))


def test_a_broker_that_joined_lately_is_filled_also_by_the_next_leader() -> None:
    """A leader that takes over remembers nothing. The same broker, long after it joined, is helped
    as any other: there is no budget.
    """
    old = [broker(name, *(10.0, 30.0) * 10) for name in "ab"]
    new = replace(broker("c", *(10.0, 30.0) * 4), is_new=True)
    assert [17, 17, 14] == Filled(*old, new, hindrance="budget").rounds()
    assert [20, 20, 8] == Filled(*old, replace(new, is_new=False), hindrance="budget").rounds()


def test_a_broker_that_had_far_too_little_is_filled_to_its_share() -> None:
    """Not only to where it was found. So is one whose maintenance has ended."""
    cluster = Filled(
        broker("a", *(10.0, 30.0) * 12), broker("b", *(10.0, 30.0) * 2), hindrance="all"
    )
    cluster.round()
    assert {"b"} == cluster.memory.filling
    cluster.rounds()
    assert 0.92 / 1.08 <= total(cluster.brokers["b"]) / total(cluster.brokers["a"]) <= 1.0


def test_a_filled_broker_gets_bundles_that_do_not_rest_first() -> None:
    resting = tuple(replace(bundle, rests=True) for bundle in broker("a", *(10.0,) * 4).bundles)
    giver = replace(
        broker("b", *(10.0,) * 4), bundles=(*resting, *broker("b", *(10.0,) * 4).bundles)
    )
    assert ["b1", "b2", "b3", "b4"] == [move.bundle for move in plan(giver, broker("c")).moves]


def test_only_filling_moves_a_bundle_that_rests() -> None:
    full = broker("a", *(10.0, 30.0) * 10)
    resting = replace(full, bundles=tuple(replace(bundle, rests=True) for bundle in full.bundles))
    found = plan(resting, broker("b", *(10.0, 30.0) * 6))
    assert () == found.moves
    assert "it has moved lately, although the load of a is too high" in {
        stay.reason for stay in found.stays
    }


# --- bundles of equal cost ---


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((16, 32, 16), [21, 22, 21]),
        ((36, 28), [32, 32]),
        ((3, 1), [2, 2]),
        ((2, 0), [1, 1]),
        ((17, 15, 16), [16, 16, 16]),
        ((6, 5, 5), [6, 5, 5]),
    ],
)
@pytest.mark.parametrize("noise", [0.0, None, 1e6])
def test_bundles_of_equal_cost_are_evened_out_by_number(
    before: tuple[int, ...], after: list[int], noise: float | None
) -> None:
    """At once, and whatever the noise of the reports is."""
    brokers = [
        replace(broker(name, *(10.0,) * count), noise=noise)
        for name, count in zip("abc", before, strict=False)
    ]
    cluster = Filled(*brokers)
    cluster.brokers = {each.broker: each for each in brokers}
    assert after == cluster.rounds()
    assert len(cluster.moved) == len(set(cluster.moved))


def test_bundles_that_cost_next_to_nothing_are_evened_out_by_number() -> None:
    """A cluster without calls is ready for them, whatever the opening of bundles has cost."""
    costs = (1e-6, 1e-5, 4e-5, 1e-5)
    assert [8, 8] == Filled(broker("a", *costs * 3), broker("b", *costs)).rounds()


def test_numbers_of_bundles_follow_capacity() -> None:
    assert [10, 6] == Filled(
        broker("a", *(10.0,) * 8, capacity=200), broker("b", *(10.0,) * 8)
    ).rounds()


@pytest.mark.parametrize(("spread", "is_equal"), [(0.14, True), (0.16, False)])
def test_costs_that_vary_a_little_are_equal(spread: float, is_equal: bool) -> None:
    costs = (10 - 10 * spread, 10 + 10 * spread)
    cluster = Filled(broker("a", *costs * 10), broker("b", *costs * 11))
    assert ([21, 21] if is_equal else [20, 22]) == cluster.rounds()
