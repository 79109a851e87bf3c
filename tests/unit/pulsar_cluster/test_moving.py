"""A saved plan is carried out step by step, and stops at whatever it did not foresee."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.pulsar_cluster.moving import (
    Health,
    Look,
    Moving,
    Reading,
    Status,
    published_between,
    why_worse,
)
from equipoise.pulsar_cluster.records import Message, StateRecord
from equipoise.pulsar_cluster.saved_plans import SavedPlan, changes, read_plan
from equipoise.pulsar_cluster.table import Table
from equipoise.shedder.plan import Move
from tests.unit.pulsar_cluster.made_clusters import BROKERS, NOW_MS, names, owned

BUNDLES = names(8)
FINE = Look(BROKERS, "a:8080", Health({}, 100.0, 10))


def plan_of(count: int = 4) -> SavedPlan:
    """Return a plan that moves the first bundles from a to b."""
    moves = tuple(
        Move(bundle=bundle, source="a:8080", destination="b:8080", reason="too full")
        for bundle in BUNDLES[:count]
    )
    versions = {move.bundle: 2 for move in moves}
    return SavedPlan(
        source="pulsar://a",
        made_ms=NOW_MS,
        leader="a:8080",
        members=BROKERS,
        moves=moves,
        versions=versions,
    )


class Run:
    """A plan on its way, on a table that tests write to."""

    def __init__(self, count: int = 4, *, at_once: int = 2) -> None:
        self.table = Table()
        for number, bundle in enumerate(BUNDLES):
            self.table.fold(owned(bundle, "a:8080", offset=number))
        self.moving = Moving(plan_of(count), at_once=at_once, timeout_ms=10_000)
        self.now_ms = NOW_MS

    def begin(self, look: Look = FINE) -> Run:
        self.moving.begin(self.table.bundles, look)
        return self

    def due(self) -> list[str]:
        return [move.bundle for move in self.moving.due(self.table.bundles, self.now_ms)]

    def write(
        self,
        bundle: str,
        state: str | None,
        version: int,
        to: str | None = None,
        source: str | None = None,
    ) -> None:
        record = (
            None if state is None else StateRecord(state, to, source, force=False, version=version)
        )
        message = Message(self.table.offset + 1, "1:1", bundle, self.now_ms, record)
        self.moving.see(self.table.fold(message), self.now_ms)

    def arrive(self, bundle: str, to: str = "b:8080", version: int = 2) -> None:
        for number, state in enumerate(("Releasing", "Assigning", "Owned"), version + 1):
            self.write(bundle, state, number, to, "a:8080")

    def look(self, look: Look) -> None:
        self.moving.look(look)

    def is_over(self) -> bool:
        return self.moving.is_over

    def stopped(self) -> str:
        assert self.moving.stopped is not None
        return self.moving.stopped


def test_a_plan_is_carried_out_a_few_moves_at_a_time() -> None:
    """The next move waits for an arrival, and for a look after it."""
    run = Run().begin()
    assert BUNDLES[:2] == run.due()
    assert [] == run.due()
    run.now_ms += 700
    run.arrive(BUNDLES[1])
    assert [] == run.due()
    run.moving.look(FINE)
    assert BUNDLES[2:3] == run.due()
    for bundle in (BUNDLES[0], BUNDLES[2]):
        run.arrive(bundle)
    run.moving.look(FINE)
    assert BUNDLES[3:4] == run.due()
    assert not run.is_over()
    run.arrive(BUNDLES[3])
    assert run.is_over()
    assert run.moving.stopped is None
    outcome = run.moving.decided[0]
    assert (BUNDLES[1], Status.MOVED, 700) == (outcome.move.bundle, outcome.status, outcome.took_ms)
    assert f"{BUNDLES[1]} moved from a:8080 to b:8080" == outcome.text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda run: run.write(BUNDLES[0], "Releasing", 3, None, "a:8080"),
            f"{BUNDLES[0]} is Releasing at a:8080, version 3 (in the plan",
        ),
        (
            lambda run: run.write(BUNDLES[0], None, 0),
            f"{BUNDLES[0]} has no record any more: it was split or deleted",
        ),
        (
            lambda run: run.write(BUNDLES[7], "Releasing", 3, "c:8080", "a:8080"),
            f"somebody else moves bundles: {BUNDLES[7]} leaves a:8080",
        ),
    ],
)
def test_a_changed_cluster_stops_a_plan_before_its_first_move(
    change: Callable[[Run], None], told: str
) -> None:
    run = Run()
    change(run)
    assert run.begin().is_over()
    assert [] == run.due()
    assert told in run.stopped()
    run.moving.leave_out()
    assert {Status.LEFT_OUT} == {outcome.status for outcome in run.moving.decided}


BAD = FINE._replace(health=FINE.health._replace(published=10.0))
LOOKS = [
    (FINE._replace(members=BROKERS[:2]), "the broker c:8080 is gone"),
    (FINE._replace(members=(*BROKERS, "d:8080")), "the broker d:8080 has joined"),
    (FINE._replace(leader="b:8080"), "the leader is b:8080"),
    (FINE._replace(leader=None), "the leader is nobody"),
]


@pytest.mark.parametrize(("look", "told"), LOOKS)
def test_other_members_and_another_leader_stop_a_plan_before_its_first_move(
    look: Look, told: str
) -> None:
    assert told in Run().begin(look).stopped()


@pytest.mark.parametrize(
    ("step", "told", "decided"),
    [
        *((partial(Run.look, look=look), told, []) for look, told in LOOKS),
        (
            lambda run: run.write(BUNDLES[7], "Releasing", 3, None, "a:8080"),
            f"somebody else moves bundles: {BUNDLES[7]} leaves a:8080 for no broker yet",
            [],
        ),
        (
            lambda run: run.write(BUNDLES[3], "Splitting", 3, None, "a:8080"),
            (
                f"{BUNDLES[3]} is Splitting at a:8080, version 3 (in the plan: Owned at a:8080,"
                " version 2)"
            ),
            [],
        ),
        (
            lambda run: [
                run.arrive(BUNDLES[0]),
                run.write(BUNDLES[0], "Releasing", 6, "a:8080", "b:8080"),
            ],
            (
                f"somebody else moves bundles: {BUNDLES[0]}, which this plan had moved, is"
                " Releasing at a:8080"
            ),
            [Status.MOVED],
        ),
        # A move goes another way.
        (
            lambda run: run.write(BUNDLES[0], "Splitting", 3, None, "a:8080"),
            "is Splitting at a:8080, although it was to go to b:8080",
            [Status.FAILED],
        ),
        (
            lambda run: run.write(BUNDLES[0], "Releasing", 3, "c:8080", "a:8080"),
            "is Releasing at c:8080, although it was to go to b:8080",
            [Status.FAILED],
        ),
        (
            lambda run: run.write(BUNDLES[0], None, 3),
            "has no record any more, although it was to go to b:8080",
            [Status.FAILED],
        ),
        # A refused request fails at once, and one in doubt is awaited.
        (
            lambda run: run.moving.answered(BUNDLES[0], "412", in_doubt=False, now_ms=run.now_ms),
            f"the move of {BUNDLES[0]} was refused: 412",
            [Status.FAILED],
        ),
        (
            lambda run: run.moving.answered(BUNDLES[0], "slow", in_doubt=True, now_ms=run.now_ms),
            f"the move of {BUNDLES[0]} was refused: slow",
            [],
        ),
        # Clients need a moment to connect again, so a cluster must be worse twice in a row.
        (
            lambda run: [run.look(BAD), run.look(BAD)],
            (
                "the cluster gets worse: clients publish 10 messages/s on the bundles of the plan"
                " (before: 100)"
            ),
            [],
        ),
    ],
)
def test_what_the_plan_did_not_foresee_stops_it(
    step: Callable[[Run], object], told: str, decided: list[Status]
) -> None:
    """Nothing more is requested. What is under way is awaited."""
    run = Run().begin()
    run.due()
    step(run)
    assert told in run.stopped()
    assert decided == [outcome.status for outcome in run.moving.decided]
    assert not run.is_over()
    for bundle in BUNDLES[:2]:
        if bundle not in {outcome.move.bundle for outcome in run.moving.decided}:
            run.write(bundle, None, 0)
    assert run.is_over()
    assert [] == run.due()


def test_moves_of_pulsars_own_bundles_are_no_other_mover() -> None:
    run, system = Run().begin(), "pulsar/system/0x00000000_0xffffffff"
    run.write(system, "Owned", 1, "a:8080")
    run.write(system, "Releasing", 2, "b:8080", "a:8080")
    assert run.moving.stopped is None


def test_a_rejected_record_changes_nothing() -> None:
    """Two brokers race for one version, which is normal."""
    run = Run().begin()
    run.due()
    run.arrive(BUNDLES[0])
    run.write(BUNDLES[0], "Releasing", 3, "c:8080", "a:8080")
    assert run.moving.stopped is None


def test_a_move_that_takes_too_long_fails() -> None:
    run = Run().begin()
    run.due()
    run.write(BUNDLES[0], "Releasing", 3, "b:8080", "a:8080")
    run.now_ms += 10_000
    run.moving.expire(run.now_ms, run.table.bundles)
    assert (
        f"{BUNDLES[0]} did not arrive at b:8080 within 10 s: it is Releasing at b:8080"
        == run.moving.decided[0].text
    )
    assert run.is_over()


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (Health({"b:8080": 0.9}), "b:8080 uses 90 % of its busiest resource (before: 60 %)"),
        (
            Health({}, published=49.0),
            "clients publish 49 messages/s on the bundles of the plan (before: 100)",
        ),
        (
            Health({}, backlog=3_200),
            "the backlog of the bundles of the plan is 3200 messages (before: 100)",
        ),
        (Health({"b:8080": 0.84}, 50.0, 3_100), None),
        (Health({"b:8080": 0.74, "c:8080": 1.0}), None),
    ],
)
def test_what_is_worse_is_named(health: Health, told: str | None) -> None:
    before = Health({"b:8080": 0.6}, published=100.0, backlog=100)
    worse = why_worse(before, health)
    assert told == (None if worse is None else worse[1])


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Health({}, published=0.4, backlog=0), Health({}, published=0.0, backlog=1)),
        (Health({}, published=9.0, backlog=0), Health({}, published=1.0, backlog=500)),
        (Health({}, backlog=3), Health({}, backlog=503)),
    ],
)
def test_a_cluster_with_little_load_does_not_get_worse_by_a_few_messages(
    before: Health, now: Health
) -> None:
    assert why_worse(before, now) is None


def test_a_backlog_that_grows_without_a_known_rate_is_named() -> None:
    assert why_worse(Health({}, backlog=3), Health({}, backlog=504)) is not None


def test_a_bad_look_calls_for_another_one_before_the_next_move() -> None:
    run = Run().begin()
    run.look(BAD)
    assert [] == run.due()
    run.look(FINE)
    assert BUNDLES[:2] == run.due()
    run.look(BAD)
    assert run.moving.stopped is None


def test_a_first_report_during_the_plan_is_what_later_ones_are_compared_with() -> None:
    run = Run().begin()
    for _ in range(3):
        run.moving.look(FINE._replace(health=FINE.health._replace(uses={"b:8080": 0.99})))
    assert run.moving.stopped is None


def test_the_rate_of_publishing_counts_a_topic_that_moved_from_0() -> None:
    before = {"x": Reading(0, 100, 0), "y": Reading(0, 100, 0)}
    now = {
        "x": Reading(2_000_000_000, 140, 0),
        "y": Reading(2_000_000_000, 20, 0),
        "new": Reading(2_000_000_000, 999, 0),
    }
    assert 30.0 == published_between(before, now)
    assert published_between({}, {}) is None
    assert published_between({}, now) is None


def test_the_rate_of_a_topic_counts_from_its_own_last_reading() -> None:
    """The one that could not be read for a moment was read longer ago."""
    before = {"x": Reading(0, 100, 0), "y": Reading(2_000_000_000, 100, 0)}
    now = {topic: Reading(4_000_000_000, 140, 0) for topic in before}
    assert 10.0 + 20.0 == published_between(before, now)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "due",
                "look",
                "bad",
                "gone",
                "leader",
                "arrive",
                "release",
                "split",
                "drop",
                "refuse",
                "doubt",
                "late",
                "stop",
            ]
        ),
        st.integers(0, 7),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 3))
def test_whatever_happens_only_moves_of_the_plan_are_requested_once_and_none_after_a_stop(
    steps: list[tuple[str, int]], at_once: int
) -> None:
    run = Run(5, at_once=at_once).begin()
    planned = {move.bundle: move for move in run.moving.plan.moves}
    requested = list[str]()
    bad = FINE._replace(health=FINE.health._replace(published=0.0))
    looks = {
        "look": FINE,
        "bad": bad,
        "gone": FINE._replace(members=BROKERS[1:]),
        "leader": FINE._replace(leader="b:8080"),
    }
    for step, number in steps:
        bundle = BUNDLES[number]
        message = run.table.bundles.get(bundle)
        version = 0 if message is None or message.record is None else message.record.version
        was_stopped = run.moving.stopped
        if step in looks:
            run.moving.look(looks[step])
        elif step == "arrive":
            run.arrive(bundle, version=version)
        elif step == "release":
            run.write(bundle, "Releasing", version + 1, "c:8080", "a:8080")
        elif step == "split":
            run.write(bundle, "Splitting", version + 1, None, "a:8080")
        elif step == "drop":
            run.write(bundle, None, 0)
        elif step in {"refuse", "doubt"} and bundle in requested:
            run.moving.answered(bundle, "no", in_doubt=step == "doubt", now_ms=run.now_ms)
        elif step == "late":
            run.now_ms += 6_000
            run.moving.expire(run.now_ms, run.table.bundles)
        elif step == "stop":
            run.moving.stop("it was interrupted")
        due = run.moving.due(run.table.bundles, run.now_ms)
        assert not due or (was_stopped is None and run.moving.stopped is None)
        assert all(move == planned[move.bundle] for move in due)
        requested += [move.bundle for move in due]
        decided = {outcome.move.bundle for outcome in run.moving.decided}
        assert len(set(requested) - decided) <= at_once
    assert len(requested) == len(set(requested))
    run.now_ms += 10_000
    run.moving.expire(run.now_ms, run.table.bundles)
    run.moving.leave_out()
    assert sorted(planned) == sorted(outcome.move.bundle for outcome in run.moving.decided)


# --- the file ---


def test_a_plan_survives_its_file() -> None:
    plan = plan_of()
    assert plan == read_plan(plan.text().encode())


@pytest.mark.parametrize(
    "change",
    [
        ("b:8080", "c:8080"),
        ("0x00000000", "0x00000001"),
        ('"version": 2', '"version": 3'),
        ("{", ""),
    ],
)
def test_a_plan_that_was_changed_or_is_none_is_refused(change: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^it (was changed|is no file)"):
        read_plan(plan_of().text().replace(*change).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"moves":[7]}', b"\xff"])
def test_what_is_no_plan_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="that `equipoise pulsar plan --output` wrote"):
        read_plan(content)


def test_many_changes_are_counted() -> None:
    told = changes(plan_of(6), {}, BROKERS, "a:8080")
    assert told is not None
    assert told.endswith(" and 3 more changes")
