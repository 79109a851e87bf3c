"""Check the facts of one bundle against an independent state of it.

`spark_jobs.rules.serving` has the rules about serving evidence.

Where the fold and this state differ, there is one finding, and the audit adopts the fold's state.
It also adopts the fold's state of a bundle that is older than the audit.

The transition tables are written a second time from the protocol. A phase is a state together with
the parties that are set (`spark_jobs.rules.forms.PHASES`). In the cells, `o` is the owner before,
`s` the source before, and `d` a live broker that does not drain and is not the owner before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, Self

from equipoise.spark_jobs.rules import forms
from equipoise.spark_jobs.rules.facts import Fact, Raw
from equipoise.spark_jobs.rules.memory import Memory
from equipoise.spark_jobs.rules.ranges import Range, parse_bundle, pieces
from equipoise.spark_jobs.rules.rejections import writes_what_it_may_not
from equipoise.spark_jobs.rules.rule import (
    ACCEPTED,
    NOT_FOLDED,
    REPORT_A_BUG,
    Case,
    Finding,
    Violation,
    Violations,
    check_rules,
    rule,
)
from equipoise.spark_jobs.rules.serving import (
    GONE_FOR_MS,
    Serving,
    check_serving,
    expire_serving,
    follow_holder,
)

Who = Literal["anybody", "broker", "admin", "owner", "source"]
"""Who may write the record; `anybody` is any live broker and any admin."""

Whom = Literal["-", "o", "s", "d"]
"""The party that a phase names after a step."""


class Step(NamedTuple):
    """One row: who writes it, the owner and source after it, whether an ownership begins, and
    whether a namespace deletion forbids it.
    """

    who: Who
    owner: Whom
    source: Whom
    ownership: bool = False
    barred_by_deletion: bool = False


# fmt: off
STEPS: Final[Mapping[tuple[str, str], Step]] = {
    ("free",         "assigning"):    Step("anybody", "d", "-", barred_by_deletion=True),
    ("assigning",    "owned"):        Step("owner",   "o", "-", ownership=True),
    ("assigning",    "free"):         Step("owner",   "-", "-"),
    ("assigning",    "assigning"):    Step("anybody", "d", "-", barred_by_deletion=True),
    ("owned",        "transferring"): Step("anybody", "d", "o"),
    ("transferring", "handing_over"): Step("owner",   "o", "s"),
    ("transferring", "owned"):        Step("anybody", "s", "-"),
    ("handing_over", "owned"):        Step("source",  "o", "-", ownership=True),
    ("owned",        "unloading"):    Step("anybody", "-", "o"),
    ("unloading",    "free"):         Step("source",  "-", "-"),
    ("owned",        "splitting"):    Step("anybody", "o", "-", barred_by_deletion=True),
    ("splitting",    "owned"):        Step("anybody", "o", "-"),
}
"""(phase before, phase after) -> the conditions of the step. A pair that is missing is illegal."""


class Death(NamedTuple):
    """What becomes of a bundle: its next phase and owner, and whether an ownership begins."""

    after: str
    owner: Whom
    ownership: bool = False


DEATHS: Final[Mapping[tuple[str, str], Death]] = {
    ("owned",        "owner"):  Death("free",      "-"),
    ("splitting",    "owner"):  Death("free",      "-"),
    ("assigning",    "owner"):  Death("free",      "-"),
    ("unloading",    "source"): Death("free",      "-"),
    ("transferring", "owner"):  Death("owned",     "s"),
    ("handing_over", "owner"):  Death("owned",     "s"),
    ("transferring", "source"): Death("assigning", "o"),
    ("handing_over", "source"): Death("owned",     "o", ownership=True),
}
"""(phase, role of the dead incarnation) -> what becomes of the bundle."""

SERVED_BY: Final[Mapping[str, Literal["owner", "source"]]] = {
    "owned": "owner",
    "splitting": "owner",
    "transferring": "source",
    "handing_over": "source",
    "unloading": "source",
}
"""Who serves in each phase. In phases that are missing nobody serves."""
# fmt: on


_VERDICTS_ON_MERGES: Final = frozenset(
    {ACCEPTED, "unknown_bundle", "stale", "not_adjacent", "illegal_transition"}
)
_VERDICTS_ON_TARGETS: Final = {
    "up": ACCEPTED,
    "draining": "draining_target",
    "dead": "dead_target",
    "never": "dead_target",
    "not_serving": "not_served",
}


@dataclass(frozen=True, slots=True)
class State:
    """The state of one bundle."""

    phase: str
    owner: int | None
    source: int | None
    last: int
    token: int

    @property
    def holder(self) -> int | None:
        """The incarnation that serves the bundle according to the log, or None."""
        served_by = SERVED_BY.get(self.phase)
        return None if served_by is None else self.owner if served_by == "owner" else self.source

    def whom(self, whom: Whom) -> int | None:
        """Return the incarnation that a table cell means: `o` is the owner, `s` the source,
        anything else None.
        """
        return self.owner if whom == "o" else self.source if whom == "s" else None


def state_in(entry: Raw | None) -> State | None:
    """Return the state of a bundle as in facts."""
    return (
        None
        if entry is None
        else State(
            entry["phase"], entry.get("owner"), entry.get("source"), entry["last"], entry["token"]
        )
    )


@dataclass(slots=True, kw_only=True)
class BundleMemory(Memory):
    """What is known of one bundle. `state` is None if it is not known, or the bundle does not
    exist.
    """

    state: State | None = None
    serving: Serving = field(default_factory=Serving)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """See `Memory`."""
        state = None if raw["state"] is None else State(**raw["state"])
        return cls(**{**raw, "state": state, "serving": Serving.parse(raw["serving"])})

    def check(self, fact: Fact) -> Iterator[Finding]:
        """See `Memory`. A fact takes about 20 microseconds."""
        if fact.source == "serving":
            if "follows" not in fact.context:
                yield from check_serving(self.serving, fact)
        elif fact.source == "channel" and fact.verdict != NOT_FOLDED:
            case = BundleCase(fact, self.state)
            if "follows" in fact.context and case.is_named:
                # Who served it until here is not known any more.
                self.serving = Serving(known_from=fact.offset)
            yield from check_rules("bundle", case)
            if case.is_accepted and (fact.before is not None or fact.after is not None):
                before, self.state = self.state, case.after
                if before is None or _ownership(before) != _ownership(case.after):
                    yield from follow_holder(self.serving, _ownership(case.after), fact)
        is_gone = self.state is None and bool(self.reported or self.serving != Serving())
        self.forget_ms = fact.at_ms + GONE_FOR_MS if is_gone else None

    def expire(self, subject: str, now_ms: int) -> Iterator[Finding]:
        """See `Memory`. Serving evidence waits for its ownership. The membership finds stuck
        bundles, not this timer.
        """
        return expire_serving(self.serving, subject, now_ms)

    @property
    def forgets_at_gaps(self) -> bool:
        """See `Memory`. Evidence that came before the first record is kept."""
        return self.state is not None

    def due_times(self) -> Iterator[int]:
        """See `Memory`."""
        yield from Memory.due_times(self)
        yield from self.serving.due_times()


def _ownership(state: State | None) -> tuple[int, int] | None:
    return None if state is None or state.holder is None else (state.token, state.holder)


class BundleCase(Case):
    """A fact of the channel about one bundle.

    * `known`: the state that the audit remembers.
    * `before`: the state before the record: the fold's if the record was accepted and changed the
      bundle, else `known`.
    * `after`: the fold's state after the record; None if it changed nothing, or the bundle is gone.
    """

    def __init__(self, fact: Fact, known: State | None) -> None:
        super().__init__(fact)
        self.kind = self.record.get("kind")
        self.known = known
        self.after = state_in(fact.after)
        self.is_changed = fact.before is not None or fact.after is not None
        self.before = state_in(fact.before) if self.is_accepted and self.is_changed else known
        self.dead: int | None = fact.context.get("dead")
        # Whether the record names this bundle itself, not only its parent, child or owner.
        names = (self.record.get("key"), self.record.get("right") if self.kind == "merge" else None)
        self.is_named = self.kind in ("bundle", "split", "merge") and self.name in names

    @property
    def range(self) -> Range | None:
        """The range in the bundle's name."""
        return parse_bundle(self.name)

    def describe(self, state: State | None) -> str:
        """Return a state as the end of a sentence."""
        if state is None:
            return "absent"
        parties = [
            f"{what} {self.who(each)}"
            for what, each in (("owner", state.owner), ("source", state.source))
            if each is not None
        ]
        phase = f"{state.phase} of {', '.join(parties)}" if parties else state.phase
        return f"{phase} (last {state.last}, token {state.token})"

    # --- the audit's verdict ---

    @cached_property
    def expected(self) -> str | None:
        """See `Case`. If no context decides, the state of the bundle does."""
        if "expected" in self.fact.context:
            return super().expected
        if self.before is None or not self.is_named:
            return None
        if self.kind != "merge":
            return (
                self._verdict_on_split(self.before)
                if self.kind == "split"
                else self._verdict_on_step(self.before)
            )
        # The other half may be the reason for these verdicts.
        if not self.is_accepted and self.fact.verdict in _VERDICTS_ON_MERGES:
            return None
        return self._verdict_on_half_of_merge(self.before)

    @property
    def step(self) -> Step | None:
        """The row of the transition table that a `bundle` record asks for; None if there is
        none.
        """
        phase = forms.phase_of(self.record) if self.kind == "bundle" else None
        return None if self.before is None else STEPS.get((self.before.phase, phase or ""))

    def _verdict_on_step(self, state: State) -> str:
        step, owner = self.step, self.record.get("owner")
        if self.record["expected_offset"] != state.last:
            return "stale"
        if (
            step is None
            or (step.owner != "d" and owner != state.whom(step.owner))
            or self.record.get("source") != state.whom(step.source)
        ):
            return "illegal_transition"
        if not _may_write(step, state, self.record.get("incarnation")):
            return "not_the_actor"
        if step.barred_by_deletion and self.fact.context.get("deleting"):
            return "namespace_deleting"
        if step.owner != "d":
            return ACCEPTED
        return (
            "illegal_transition"
            if owner == state.owner
            else _VERDICTS_ON_TARGETS[self.fact.context.get("target", "dead")]
        )

    def _verdict_on_split(self, state: State) -> str:
        if self.record["expected_offset"] != state.last:
            return "stale"
        if state.phase != "splitting":
            return "illegal_transition"
        if self.record.get("incarnation") != state.owner:
            return "not_the_actor"
        at = self.range
        return (
            ACCEPTED
            if at is not None and pieces(at.low, at.high, self.record.get("positions") or ())
            else "bad_boundary"
        )

    def _verdict_on_half_of_merge(self, state: State) -> str:
        is_left = self.record["key"] == self.name
        if self.record["expected_offset" if is_left else "expected_offset_right"] != state.last:
            return "stale"
        left, right = parse_bundle(self.record["key"]), parse_bundle(self.record["right"])
        if (
            left is None
            or right is None
            or left.namespace != right.namespace
            or left.high != right.low
        ):
            return "not_adjacent"
        owner = self.fact.context.get("owner", state.owner)
        return ACCEPTED if state.phase == "owned" and state.owner == owner else "illegal_transition"

    # --- the audit's state after an accepted record ---

    @property
    def is_made(self) -> bool:
        """Whether the fold says that the record made this bundle."""
        return (
            self.is_accepted
            and self.fact.before is None
            and self.after is not None
            and not self.is_named
        )

    @cached_property
    def wrong_after(self) -> tuple[State | None, State | None] | None:
        """The states that the fold and the audit have after an accepted record, if they differ."""
        if self.made is not None or self.before is None:
            expected = self.made
            is_known = self.made is not None
        elif self.is_named:
            expected = (
                self._after_step(self.before)
                if self.kind == "bundle" and self.expected == ACCEPTED
                else None
            )
            is_known = self.expected == ACCEPTED
        else:
            expected = self._after_death(self.before)
            is_known = expected is not None
        return (
            (self.after, expected)
            if self.is_accepted and is_known and self.after != expected
            else None
        )

    def _after_step(self, before: State) -> State:
        """Return the state after a `bundle` record that the audit accepts."""
        phase = str(forms.phase_of(self.record))
        token = self.fact.offset if STEPS[before.phase, phase].ownership else before.token
        return State(
            phase, self.record.get("owner"), self.record.get("source"), self.fact.offset, token
        )

    def _after_death(self, before: State) -> State | None:
        """Return the state after the death of a party; None if the record ends none of them."""
        death = DEATHS.get((before.phase, "owner" if before.owner == self.dead else "source"))
        if not self.is_changed or self.kind == "namespace" or not self.names_dead or death is None:
            return None
        return State(
            death.after,
            before.whom(death.owner),
            None,
            self.fact.offset,
            self.fact.offset if death.ownership else before.token,
        )

    @cached_property
    def made(self) -> State | None:
        """The audit's state of a bundle that the record makes; None if the record may make none."""
        if not self.is_made or self.after is None:
            return None
        if self.kind == "namespace" and self.record.get("status") == "created":
            return State("free", None, None, self.fact.offset, self.fact.offset)
        if self.kind in ("split", "merge"):
            owner = (
                self.record.get("incarnation")
                if self.kind == "split"
                else self.fact.context.get("owner", self.after.owner)
            )
            return State("owned", owner, None, self.fact.offset, self.after.token)
        return None

    @property
    def fencing_fault(self) -> Literal["not_renewed", "fell"] | None:
        """What is wrong with the token of a bundle that was there before, if only the token differs
        in `wrong_after`.
        """
        after, expected = self.wrong_after or (None, None)
        if (
            self.before is None
            or after is None
            or expected is None
            or replace(after, token=expected.token) != expected
        ):
            return None
        if expected.token == self.fact.offset:
            return "not_renewed"
        return "fell" if after.token < self.before.token else None

    @property
    def difference(self) -> Violation:
        """Describe `wrong_after`."""
        after, expected = self.wrong_after or (None, None)
        return Violation(
            f"{self.what} made it {self.describe(after)}; the audit expects"
            f" {self.describe(expected)}"
        )

    @property
    def names_dead(self) -> bool:
        """Whether the bundle named the incarnation that the record ends."""
        return (
            self.dead is not None
            and self.before is not None
            and self.dead in (self.before.owner, self.before.source)
        )


def _may_write(step: Step, state: State, incarnation: int | None) -> bool:
    if step.who == "anybody":
        return True
    if incarnation is None:
        return step.who == "admin"
    return step.who == "broker" or incarnation == (
        state.owner if step.who == "owner" else state.source
    )


# --- rules about states ---


@rule(
    "bundle",
    "alarm",
    means=(
        "The fold changed something that the record does not change, or changed it in another way."
    ),
    remedy=REPORT_A_BUG,
)
def state_differs(case: BundleCase) -> Violations:
    """Each record changes bundles, brokers and namespaces as the audit's tables say."""
    if not case.is_accepted:
        if case.is_changed:
            yield Violation(f"{case.what} was rejected ({case.fact.verdict}), but changed it")
        return
    if case.fact.before is not None and case.known not in (None, case.before):
        yield Violation(
            f"it was {case.describe(case.before)} for the fold; the audit expects"
            f" {case.describe(case.known)}"
        )
    if case.wrong_after is not None and case.fencing_fault is None:
        yield case.difference
    if case.fact.before is None or case.is_named:
        return
    if case.kind == "namespace":
        if case.record.get("status") != "deleted" or case.after is not None:
            yield Violation(f"{case.what} changed it, but only a deletion may")
    elif not case.names_dead:
        yield Violation(f"{case.what} changed it without naming it or a party of it")


@rule(
    "bundle",
    "alarm",
    instead_of=("illegal_transition",),
    means=(
        "A step was accepted that the table does not have: a bundle may have two owners, or none"
        " for ever."
    ),
    remedy=REPORT_A_BUG,
)
def illegal_step(case: BundleCase) -> Violations:
    """A bundle goes from one phase to the next by a row of the transition table."""
    if case.is_accepted and case.is_named and case.before is None:
        yield Violation(f"{case.what} was accepted although the bundle does not exist")
    elif case.is_made and case.made is None:
        yield Violation(f"{case.what} made it, but records of this kind make no bundles")
    elif case.is_made and case.range is None:
        yield Violation("its name is not a bundle's name")


@rule(
    "bundle",
    "alarm",
    means="A store that checks tokens may refuse the owner, or accept what a former owner writes.",
    remedy=REPORT_A_BUG,
)
def token_fell(case: BundleCase) -> Violations:
    """The fencing tokens of a point of the hash space only rise."""
    after, offset = case.after, case.fact.offset
    if after is not None and case.made == after:
        if after.token > offset or (case.kind != "namespace" and after.token == offset):
            yield Violation(
                f"it was made with token {after.token}, which no record before offset {offset} gave"
            )
    elif case.fencing_fault == "fell":
        yield case.difference


@rule(
    "bundle",
    "alarm",
    means="The former owner and the new one have the same token, so no store can tell them apart.",
    remedy=REPORT_A_BUG,
)
def token_not_renewed(case: BundleCase) -> Violations:
    """Each new ownership has its own token: the offset of the record that began it."""
    if case.fencing_fault == "not_renewed":
        yield case.difference


@rule(
    "bundle",
    "alarm",
    means="According to the log, two brokers served the bundle at once.",
    remedy="Look at what both brokers wrote to their stores from that record on.",
)
def intervals_overlap(case: BundleCase) -> Violations:
    """A bundle gets a new server only after the former one has released it, or is dead."""
    before, after = case.before, case.after
    if not case.is_accepted or case.fact.before is None or before is None or after is None:
        return
    server, successor = before.holder, after.holder
    if (
        server is None
        or successor in (None, server)
        or server in (case.record.get("incarnation"), case.dead)
    ):
        return
    text = (
        f"{case.who(successor)} serves it from offset {case.fact.offset}, but {case.who(server)}"
        " neither released it nor is dead"
    )
    yield Violation(text, offsets=(before.last,))


@rule(
    "bundle",
    "alarm",
    means="A bundle belongs to a dead broker, and nobody will place it.",
    remedy=REPORT_A_BUG,
)
def death_left_bundle(case: BundleCase) -> Violations:
    """The record of a death changes all bundles that name the dead incarnation."""
    # A bundle that the record changes is checked by `state_differs`.
    if not case.is_accepted or case.is_named or case.is_changed or case.dead is None:
        return
    if case.names_dead or (
        case.before is None and case.name not in case.fact.context.get("overdue", ())
    ):
        yield Violation(
            f"{case.who(case.dead)} died at offset {case.fact.offset}, but the bundle still"
            " names it"
        )


@rule(
    "namespace",
    "alarm",
    on=("bundle",),
    instead_of=("bundles_in_use",),
    means="A broker serves bundles that no longer exist.",
    remedy=REPORT_A_BUG,
)
def namespace_deleted_in_use(case: BundleCase) -> Violations:
    """A namespace is deleted only after it was set to deleting, and all its bundles are free."""
    if not case.is_accepted or case.kind != "namespace" or case.fact.before is None:
        return
    is_deleted = case.record.get("status") == "deleted" and case.after is None
    if is_deleted and case.before is not None and case.before.phase != "free":
        yield Violation(f"its namespace was deleted while it was {case.describe(case.before)}")


@rule(
    "bundle",
    "warning",
    means="Clients of the bundle may wait, and no broker acts.",
    remedy=(
        "Check whether its brokers answer. `equipoise bundles cancel` cancels a transfer. If a"
        " bundle stays free, every broker that is asked refuses it, or the policies allow none."
    ),
)
def stuck_in_flight(case: BundleCase) -> Violations:
    """A pending bundle arrives, or is cancelled, within the bound. A free one has an owner within
    five times that, while a broker is up.
    """
    # The membership finds these: an overdue bundle gets no facts of its own.
    since = case.fact.context.get("overdue", {}).get(case.name)
    if since is not None:
        phase, last = (
            ("pending", since) if case.known is None else (case.known.phase, case.known.last)
        )
        earlier = "" if last == since else f" (pending or free since offset {since})"
        yield Violation(
            f"it is {phase} since offset {last}{earlier}, and no broker acts", offsets=(since, last)
        )


@writes_what_it_may_not.also("bundle")
def no_such_proposal(case: BundleCase) -> Violations:
    """Check for a rejected proposal that no correct writer makes.

    One illegal proposal is normal: operators ask for a transfer to the present owner.
    """
    verdict, state = case.fact.verdict, case.before
    if (
        state is None
        or case.is_accepted
        or "expected" in case.fact.context
        or case.kind == "merge"
        or case.expected != verdict
    ):
        return
    if verdict == "dead_target" and case.fact.context.get("target") == "never":
        yield Violation(
            f"{case.what} gives it to incarnation {case.record.get('owner')}, which no broker"
            " ever had"
        )
    elif verdict == "bad_boundary":
        yield Violation(f"{case.what} splits it at positions outside it, or not in rising order")
    elif verdict == "illegal_transition":
        step = case.step
        if (
            step is None
            or step.owner != "d"
            or case.record.get("source") != state.whom(step.source)
        ):
            yield Violation(
                f"{case.what} is no step from {case.describe(state)}, on which it is based"
            )
