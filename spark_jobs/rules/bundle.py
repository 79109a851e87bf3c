"""Check the facts of one bundle against a second, independent state of it.

`spark_jobs.rules.transitions` has the transition table, `spark_jobs.rules.serving` the rules about serving evidence.

Where the fold and this state differ, the checker yields one finding and adopts the fold's state. It also adopts the fold's state of a
bundle that is older than the audit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson

from equipoise.spark_jobs.rules import forms, telling
from equipoise.spark_jobs.rules.catalogue import finding
from equipoise.spark_jobs.rules.facts import Fact, Raw
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Memory, due_alarms, set_alarm
from equipoise.spark_jobs.rules.ranges import Range, parse_bundle, pieces
from equipoise.spark_jobs.rules.serving import ALARM, GONE_FOR_MS, check_serving, expire_serving, follow_holder, forget_serving
from equipoise.spark_jobs.rules.transitions import DEATHS, SERVED_BY, STEPS, Step, Whom
from equipoise.spark_jobs.rules.verdicts import ACCEPTED, NOT_FOLDED, compare, compare_opinions, told, who

_NAME: Final = "bundle"
_GONE: Final = "gone"
_ON_MERGES: Final = frozenset({ACCEPTED, "unknown_bundle", "stale", "not_adjacent", "illegal_transition"})


class State(NamedTuple):
    """The state of one bundle. `begun` is the context's `begun` at that time (`spark_jobs.rules.membership.view.Context`)."""

    phase: str
    owner: int | None
    source: int | None
    last: int
    token: int
    begun: int = 0

    def holder(self) -> int | None:
        """Return the incarnation that serves the bundle according to the log, or None."""
        served_by = SERVED_BY.get(self.phase)
        return None if served_by is None else self.owner if served_by == "owner" else self.source

    def whom(self, whom: Whom) -> int | None:
        """Return the incarnation that a table cell means: `o` is the owner, `s` the source, anything else None."""
        return self.owner if whom == "o" else self.source if whom == "s" else None


class BundleChecker:
    """See `spark_jobs.rules.memory.Checker`. A fact takes about 20 microseconds."""

    def check(self, memory: Memory, fact: Fact) -> Iterator[Finding]:
        """Yield what is wrong with the next fact of a bundle."""
        if fact.source == "serving":
            yield from check_serving(memory, fact)
            _forget_later(memory, fact)
        if fact.source != "channel" or fact.verdict == NOT_FOLDED:
            return
        remembered = _remembered(memory, fact)
        found = tuple(_wrong(remembered, fact))
        if found:
            yield from telling.bounded_in(memory, fact, found)
            _forget_later(memory, fact)
        if fact.verdict != ACCEPTED or (fact.before is None and fact.after is None):
            return
        after = None if fact.after is None else _state(fact.after, fact)
        if after is None:
            memory.remove(_NAME)
        else:
            memory.put(_NAME, orjson.dumps(tuple(after)))
        holder = _ownership(after)
        if remembered is None or _ownership(remembered) != holder:
            yield from follow_holder(memory, holder, fact)
        _forget_later(memory, fact)

    def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterator[Finding]:
        """Check evidence that is still waiting, and report how many findings were held back.

        The membership finds stuck bundles, not this timer.
        """
        due = due_alarms(memory, now_ms)
        if ALARM in due:
            yield from expire_serving(memory, subject, now_ms)
        if telling.ALARM in due:
            yield from telling.tell_held_back_in(memory, subject, now_ms)
        if _GONE in due and memory.get(_NAME) is None:
            forget_serving(memory)
            telling.forget_marks(memory)


def _wrong(state: State | None, fact: Fact) -> Iterator[Finding]:
    """Check a fact of the channel about a bundle in this state."""
    yield from _stuck(state, fact)
    yield from compare_opinions(fact)
    if fact.verdict != ACCEPTED:
        yield from _rejected(state, fact)
        return
    if fact.before is not None:
        before = _state(fact.before, fact)
        if state is not None and state != before:
            text = f"it was {_spelled(before, fact)} for the fold; by the second rules it was {_spelled(state, fact)}"
            yield finding("state_differs", fact, text)
        state = before
    elif fact.after is not None:
        state = None
    yield from _accepted(state, fact)


def _remembered(memory: Memory, fact: Fact) -> State | None:
    """Return the remembered state; None if there is none, or if it is from before a gap in the reading."""
    value = memory.get(_NAME)
    if value is None:
        return None
    state = State(*orjson.loads(value))
    if state.begun == fact.context.get("begun", 0):
        return state
    memory.remove(_NAME)
    forget_serving(memory)
    return None


def _forget_later(memory: Memory, fact: Fact) -> None:
    """Set the alarm that forgets a bundle which is gone or never existed."""
    if memory.get(_NAME) is None:
        set_alarm(memory, _GONE, fact.at_ms + GONE_FOR_MS)


def _ownership(state: State | None) -> tuple[int, int] | None:
    holder = None if state is None else state.holder()
    return None if state is None or holder is None else (state.token, holder)


def _state(entry: Raw, fact: Fact) -> State:
    get = entry.get
    return State(entry["phase"], get("owner"), get("source"), entry["last"], entry["token"], fact.context.get("begun", 0))


def _range(fact: Fact) -> Range | None:
    return parse_bundle(fact.subject.partition(":")[2])


def _spelled(state: State | None, fact: Fact) -> str:
    if state is None:
        return "absent"
    holders = [f"{what} {who(each, fact)}" for what, each in (("owner", state.owner), ("source", state.source)) if each is not None]
    return f"{' of '.join([state.phase, ', '.join(holders)]) if holders else state.phase} (last {state.last}, token {state.token})"


def _stuck(state: State | None, fact: Fact) -> Iterator[Finding]:
    since = fact.context.get("overdue", {}).get(fact.subject.partition(":")[2])
    if since is not None:
        phase, last = ("on its way", since) if state is None else (state.phase, state.last)
        before = "" if last == since else f", after it was on its way or free since offset {since}"
        text = f"it is {phase} since offset {last}{before}, and nobody steps in"
        yield finding("stuck_in_flight", fact, text, offsets=_rising(since, last, fact.offset))


def _rising(*offsets: int) -> tuple[int, ...]:
    return tuple(sorted({*offsets}))


def _is_named(fact: Fact, record: Raw) -> bool:
    """Return whether the record names this bundle itself, not only its parent, child or owner."""
    kind, name = record.get("kind"), fact.subject.partition(":")[2]
    return kind in ("bundle", "split", "merge") and (record.get("key") == name or (kind == "merge" and record.get("right") == name))


# --- verdicts -------------------------------------------------------------------------------------------------------------


def _rejected(state: State | None, fact: Fact) -> Iterator[Finding]:
    if fact.before is not None or fact.after is not None:
        yield finding("state_differs", fact, f"{told(fact)} was rejected ({fact.verdict}), and changed it all the same")
    record = fact.record or {}
    if state is None or "expected" in fact.context or not _is_named(fact, record):
        return
    if record["kind"] != "merge":
        expected = _expected(state, fact, record)
        yield from compare(fact, expected) if expected != fact.verdict else _senseless(state, fact, record)
    elif fact.verdict not in _ON_MERGES:
        yield from compare(fact, _half_of_merge(state, fact, record) or ACCEPTED)


def _senseless(state: State, fact: Fact, record: Raw) -> Iterator[Finding]:
    """Check for a rejected proposal that no correct writer makes.

    One illegal proposal is normal: operators ask for a transfer to the present owner.
    """
    if fact.verdict == "dead_target" and fact.context.get("target") == "never":
        text = f"{told(fact)} gives it to incarnation {record.get('owner')}, which no broker ever had"
        yield finding("writes_what_it_may_not", fact, text)
    elif fact.verdict == "bad_boundary":
        yield finding("writes_what_it_may_not", fact, f"{told(fact)} cuts it where it has no points, or in no order")
    elif fact.verdict == "illegal_transition" and not _is_for_its_owner(state, record):
        yield finding("writes_what_it_may_not", fact, f"{told(fact)} is no step from {_spelled(state, fact)}, on which it is based")


def _is_for_its_owner(state: State, record: Raw) -> bool:
    phase = forms.phase_of(record) if record["kind"] == "bundle" else None
    step = STEPS.get((state.phase, phase or ""))
    return step is not None and step.owner == "d" and record.get("source") == state.whom(step.source)


def _expected(state: State, fact: Fact, record: Raw) -> str:
    if record["based_on"] != state.last:
        return "stale"
    if record["kind"] == "split":
        return _on_split(state, fact, record)
    step = STEPS.get((state.phase, forms.phase_of(record) or ""))
    return "illegal_transition" if step is None else _on_step(step, state, fact, record)


def _on_step(step: Step, state: State, fact: Fact, record: Raw) -> str:
    owner, incarnation = record.get("owner"), record.get("incarnation")
    if step.owner != "d" and owner != state.whom(step.owner):
        return "illegal_transition"
    if record.get("source") != state.whom(step.source):
        return "illegal_transition"
    if not _may_write(step, state, incarnation):
        return "not_the_actor"
    if step.barred_by_deletion and fact.context.get("deleting"):
        return "namespace_deleting"
    if step.owner != "d":
        return ACCEPTED
    if owner == state.owner:
        return "illegal_transition"
    return _ON_TARGET[fact.context.get("target", "dead")]


_ON_TARGET: Final = {"up": ACCEPTED, "draining": "draining_target", "dead": "dead_target", "never": "dead_target"}


def _may_write(step: Step, state: State, incarnation: int | None) -> bool:
    if step.who == "anybody":
        return True
    if incarnation is None:
        return step.who == "admin"
    return step.who == "broker" or incarnation == (state.owner if step.who == "owner" else state.source)


def _on_split(state: State, fact: Fact, record: Raw) -> str:
    if state.phase != "splitting":
        return "illegal_transition"
    if record.get("incarnation") != state.owner:
        return "not_the_actor"
    at = _range(fact)
    return ACCEPTED if at is not None and pieces(at.low, at.high, record.get("positions") or ()) else "bad_boundary"


def _half_of_merge(state: State, fact: Fact, record: Raw) -> str | None:
    """Return why this half alone forbids a merge; None if it does not."""
    is_left = record["key"] == fact.subject.partition(":")[2]
    if record["based_on" if is_left else "based_on_right"] != state.last:
        return "stale"
    left, right = parse_bundle(record["key"]), parse_bundle(record["right"])
    if left is None or right is None or left.namespace != right.namespace or left.high != right.low:
        return "not_adjacent"
    owner = fact.context.get("owner", state.owner)
    return None if state.phase == "owned" and state.owner == owner else "illegal_transition"


# --- states ---------------------------------------------------------------------------------------------------------------


def _accepted(state: State | None, fact: Fact) -> Iterator[Finding]:
    record = fact.record or {}
    if _is_named(fact, record):
        yield from _named(state, fact, record)
    elif fact.before is None and fact.after is None:
        yield from _left_alone(state, fact)
    elif fact.before is None:
        yield from _made(fact, record)
    elif record.get("kind") == "namespace":
        yield from _deleted(state, fact, record)
    else:
        yield from _died(state, fact)
    yield from _handed_on(state, fact, record)


def _named(state: State | None, fact: Fact, record: Raw) -> Iterator[Finding]:
    if state is None:
        yield finding("illegal_step", fact, f"{told(fact)} was accepted of a bundle that is not there")
        return
    kind = record["kind"]
    if "expected" not in fact.context:
        expected = (_half_of_merge(state, fact, record) or ACCEPTED) if kind == "merge" else _expected(state, fact, record)
        yield from compare(fact, expected)
        if expected != ACCEPTED:
            return
    elif fact.context["expected"] != ACCEPTED:
        return
    if kind != "bundle":
        after = None
    else:
        phase = str(forms.phase_of(record))
        step = STEPS[state.phase, phase]
        token = fact.offset if step.ownership else state.token
        after = State(phase, record.get("owner"), record.get("source"), fact.offset, token, state.begun)
    yield from _same(state, after, fact)


def _died(state: State | None, fact: Fact) -> Iterator[Finding]:
    """Check a bundle that a record changes without naming it: only a death may do that."""
    dead = fact.context.get("dead")
    if state is None or dead is None or dead not in (state.owner, state.source):
        yield finding("state_differs", fact, f"{told(fact)} changed it, and says nothing of it")
        return
    death = DEATHS.get((state.phase, "owner" if state.owner == dead else "source"))
    if death is not None:
        token = fact.offset if death.ownership else state.token
        yield from _same(state, State(death.after, state.whom(death.owner), None, fact.offset, token, state.begun), fact)


def _left_alone(state: State | None, fact: Fact) -> Iterator[Finding]:
    """Check that an unchanged bundle names no dead incarnation."""
    dead = fact.context.get("dead")
    if dead is None or (state is not None and dead not in (state.owner, state.source)):
        return
    if fact.subject.partition(":")[2] not in fact.context.get("overdue", ()) or state is not None:
        yield finding("death_left_bundle", fact, f"{who(dead, fact)} died at offset {fact.offset}, and it still names it")


def _made(fact: Fact, record: Raw) -> Iterator[Finding]:
    """Check a new bundle: only a creation, a split or a merge makes one."""
    after, kind, at = _state(fact.after or {}, fact), record.get("kind"), _range(fact)
    free = State("free", None, None, fact.offset, fact.offset, after.begun)
    if kind == "namespace" and record.get("status") == "created":
        expected = free
    elif kind == "split":
        expected = State("owned", record.get("incarnation"), None, fact.offset, after.token, after.begun)
    elif kind == "merge":
        expected = State("owned", fact.context.get("owner", after.owner), None, fact.offset, after.token, after.begun)
    else:
        yield finding("illegal_step", fact, f"{told(fact)} made it, and no such record makes bundles")
        return
    if at is None:
        yield finding("illegal_step", fact, "it has no name that a bundle has")
    if after != expected:
        yield finding(
            "state_differs", fact, f"{told(fact)} made it {_spelled(after, fact)}; by the second rules it is {_spelled(expected, fact)}"
        )
    elif after.token > fact.offset or (kind != "namespace" and after.token == fact.offset):
        yield finding("token_fell", fact, f"it was made with token {after.token}, which is none of those before offset {fact.offset}")


def _deleted(state: State | None, fact: Fact, record: Raw) -> Iterator[Finding]:
    if record.get("status") != "deleted" or fact.after is not None:
        yield finding("state_differs", fact, f"{told(fact)} changed it, and only a deletion does")
    elif state is not None and state.phase != "free":
        yield finding("namespace_deleted_in_use", fact, f"its namespace was deleted while it was {_spelled(state, fact)}")


def _same(before: State, expected: State | None, fact: Fact) -> Iterator[Finding]:
    after = None if fact.after is None else _state(fact.after, fact)
    if after == expected:
        return
    if after is None or expected is None or after._replace(token=expected.token) != expected:
        rule = "state_differs"
    elif expected.token == fact.offset:
        rule = "token_not_renewed"
    else:
        rule = "token_fell" if after.token < before.token else "state_differs"
    yield finding(rule, fact, f"{told(fact)} made it {_spelled(after, fact)}; by the second rules it is {_spelled(expected, fact)}")


def _handed_on(before: State | None, fact: Fact, record: Raw) -> Iterator[Finding]:
    """Yield a finding if the server changed although the previous one neither released the bundle nor died."""
    if before is None or fact.before is None or fact.after is None:
        return
    server, next_server = before.holder(), _state(fact.after, fact).holder()
    if server is None or next_server is None or server == next_server:
        return
    if server not in (record.get("incarnation"), fact.context.get("dead")):
        offsets = _rising(before.last, fact.offset)
        text = f"{who(next_server, fact)} serves it from offset {fact.offset}, and {who(server, fact)} neither closed it nor is dead"
        yield finding("intervals_overlap", fact, text, offsets=offsets)
