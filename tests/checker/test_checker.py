"""Test the checker's rules: an honest run passes each rule in any interleaving, and the rule finds
its injected fault.

Faults are edits of the output of `CounterService`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import case
import rules
from counter_service import (
    ACTIONS,
    COLD,
    HOT,
    STEPS,
    CounterService,
    Leavings,
    Step,
    changed,
    plain_run,
    run,
)


def change_first_work(left: Leavings, **changes: object) -> None:
    """Change the evidence of a1, the first work."""
    left.works[0] = changed(left.works[0], **changes)


def lose_row(left: Leavings) -> None:
    left.writes[:] = [row for row in left.writes if row.request != "b5"]


def apply_twice(left: Leavings) -> None:
    left.writes.append(case.Write("b5", HOT, "b1", 17, 6))


def apply_unknown_twice(left: Leavings) -> None:
    """Apply both attempts of `lost`, whose caller never got an answer."""
    left.calls.append(case.Call("lost", HOT, None, None, None, None, 1, None))
    left.writes += [case.Write("lost", HOT, "b1", 17, value) for value in (6, 7)]


def take_stale_write(left: Leavings) -> None:
    left.change_answers("stale", status=None)
    left.refusals.clear()
    left.writes.append(case.Write("stale", HOT, "b0", 10, 6))


def answer_late(left: Leavings) -> None:
    """Call and answer the old owner's a3, first in the store, after the answer to the new owner's
    b5.
    """
    after_ns = max(call.return_ns or 0 for call in left.calls) + 1
    left.change_answers("a3", call_ns=after_ns, return_ns=after_ns + 1)


def reverse_values(left: Leavings) -> None:
    """Give the later of two successive calls the lower value."""
    left.change_both("c6", value=2)
    left.change_both("c7", value=1)
    left.writes[-2:] = reversed(left.writes[-2:])


def overlap_work(left: Leavings) -> None:
    """Let the old owner still work, under a valid lease, when the new one has started."""
    during_b4_ns = next(work.started_ns for work in left.works if work.token == 17) + 1
    change_first_work(left, answered_ns=during_b4_ns, lease_deadline_ns=during_b4_ns)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, the rule that finds it, and what the message contains: the key, and the request or
    for evidence the broker.
    """

    rule: str
    plant: Callable[[Leavings], None]
    names: str = "'b5'"
    key: str = HOT


FAULTS = {
    "an acknowledged write is lost": Fault("acknowledged_writes_are_stored", lose_row),
    "a caller is told another token": Fault(
        "acknowledged_writes_are_stored", lambda left: left.change_answers("b5", token=99)
    ),
    "a caller is told another value": Fault(
        "acknowledged_writes_are_stored", lambda left: left.change_answers("b5", value=6)
    ),
    "a write is applied twice": Fault("requests_are_applied_once", apply_twice),
    "an unknown outcome is applied twice": Fault(
        "requests_are_applied_once", apply_unknown_twice, "'lost'"
    ),
    "a write answered 503 is in the store": Fault(
        "refused_calls_left_nothing", lambda left: left.change_answers("b5", status=503)
    ),
    "a write answered 409 is in the store": Fault(
        "refused_calls_left_nothing", lambda left: left.change_answers("b5", status=409)
    ),
    "a value is skipped": Fault("values_count_up", lambda left: left.change_both("b5", value=6)),
    "an update is lost": Fault("values_count_up", lambda left: left.change_both("b5", value=4)),
    "a token falls between overlapping calls": Fault(
        "stored_tokens_never_fall", lambda left: left.change_both("b5", token=10, broker="b0")
    ),
    "the store takes a stale write": Fault("stored_tokens_never_fall", take_stale_write, "'stale'"),
    "the store refuses a token that is not stale": Fault(
        "refusals_were_stale",
        lambda left: left.refusals.append(case.Refusal("fresh", HOT, 17, 17)),
        "'fresh'",
    ),
    "two brokers serve one token": Fault(
        "tokens_have_one_broker", lambda left: left.change_both("b5", broker="b2")
    ),
    "the old owner answers after the new one": Fault("one_owner_at_a_time", answer_late, "'a3'"),
    "values are out of real-time order": Fault(
        "values_follow_real_time", reverse_values, "'c7'", COLD
    ),
    "work is answered past the lease": Fault(
        "work_ends_within_its_lease",
        lambda left: change_first_work(left, lease_deadline_ns=left.works[0].answered_ns - 1),
        "'b0'",
    ),
    "work is started past the lease": Fault(
        "work_ends_within_its_lease",
        lambda left: change_first_work(left, started_ns=left.works[0].lease_deadline_ns + 1),
        "'b0'",
    ),
    "an old owner's work ends within a new one's": Fault(
        "work_of_two_tokens_never_overlaps", overlap_work, "'b0'"
    ),
}


def test_work_that_only_a_token_guards_is_checked_by_the_store() -> None:
    """Work past its lease and during the next ownership breaks no rule if only the token guards it
    and the store refused older tokens.
    """
    left = plain_run()
    overlap_work(left)
    change_first_work(left, by_token=True, lease_deadline_ns=left.works[0].started_ns - 1)
    assert {} == left.violations()


def test_an_honest_run_is_clean() -> None:
    assert {} == plain_run().violations()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_breaks_its_rule_alone(fault: Fault) -> None:
    """Each fault is found by its own rule only, in a message that names key and request."""
    left = plain_run()
    fault.plant(left)
    found = left.violations()
    assert [fault.rule] == list(found)
    assert f"key {fault.key!r}" in found[fault.rule][0]
    assert fault.names in found[fault.rule][0]


def test_each_rule_has_a_fault() -> None:
    """The faults cover all rules, and the double-owner count names existing rules."""
    assert set(rules.RULES) == {fault.rule for fault in FAULTS.values()}
    assert set(rules.DOUBLE_OWNER_RULES) <= set(rules.RULES)


@given(STEPS)
def test_honest_runs_are_clean_in_any_interleaving(steps: list[Step]) -> None:
    """Transfers, retries, broken connections, stubborn callers and late writes never cause a false
    alarm.
    """
    assert {} == run(steps, CounterService()).violations()


def random_steps(seed: int) -> list[Step]:
    """Return a run longer than hypothesis would draw."""
    generator = random.Random(seed)
    return [
        Step(generator.choice(ACTIONS), generator.randrange(12), generator.randrange(12))
        for _ in range(4000)
    ]


def test_a_store_that_ignores_tokens_is_found() -> None:
    """If the store accepts stale tokens, tokens fall, although no broker answers after its
    ownership.
    """
    left = run(random_steps(5), CounterService(store_checks_tokens=False))
    assert {"stored_tokens_never_fall"} == set(left.violations())


def test_brokers_that_do_not_check_are_found() -> None:
    """If brokers serve what they once owned, the evidence shows two owners that the store's check
    hides from callers.
    """
    left = run(random_steps(6), CounterService(brokers_check_ownership=False))
    assert {"work_of_two_tokens_never_overlaps"} == set(left.violations())


@st.composite
def operations(draw: st.DrawFn) -> case.Operation:
    """Generate an acknowledged request, honest or not."""
    small = st.integers(0, 6)
    call_ns = draw(st.integers(0, 20))
    return case.Operation("r", HOT, "b0", draw(small), draw(small), call_ns, call_ns + draw(small))


@given(st.lists(operations(), min_size=1))
def test_the_sweep_agrees_with_its_slow_model(of_key: list[case.Operation]) -> None:
    """The sweep finds exactly the operations that comparing all pairs finds, each with a true
    culprit.
    """

    def broken(earlier: case.Operation, later: case.Operation) -> bool:
        return earlier.return_ns < later.call_ns and (earlier.token, earlier.value) >= (
            later.token,
            later.value,
        )

    found = list(rules.out_of_order(of_key))
    expected = [later for later in of_key if any(broken(earlier, later) for earlier in of_key)]
    assert sorted(expected) == sorted(later for _, later in found)
    assert all(broken(earlier, later) for earlier, later in found)


def test_a_retried_request_is_one_operation() -> None:
    """A retry answered from the first attempt's row is no second owner, even if newer answers lie
    between the two.
    """
    left = plain_run()
    first, *_ = [call for call in left.calls if call.request == "a3"]
    left.change_answers("a3", status=None, token=None, value=None)
    left.calls.append(first._replace(call_ns=10_000, return_ns=10_010))
    assert {} == left.violations()


def test_a_refused_attempt_does_not_stretch_its_operation() -> None:
    """An attempt answered 503 was not applied, so it does not excuse a later attempt of the
    request.
    """
    left = plain_run()
    first, *_ = [call for call in left.calls if call.request == "a3"]
    left.change_answers("a3", status=503, token=None, value=None)
    left.calls.append(first._replace(call_ns=10_000, return_ns=10_010))
    assert ["one_owner_at_a_time"] == list(left.violations())
