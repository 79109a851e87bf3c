"""Check the facts of one namespace: after each record its bundles cover the hash space exactly
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from equipoise.spark_jobs.rules.broker import BrokerCase
from equipoise.spark_jobs.rules.bundle import illegal_step, state_differs, token_fell
from equipoise.spark_jobs.rules.facts import Fact, subject
from equipoise.spark_jobs.rules.memory import Memory
from equipoise.spark_jobs.rules.ranges import HASH_END, joined_up, parse_bundle, pieces, whole_space
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
    verdict_differs,
)

FORGOTTEN_AFTER_MS: Final = 3_600_000
"""Log time after which the findings about a namespace without news are forgotten. Anyone can invent
names."""

_SHOWN_MAX: Final = 4
_WHOLE_SPACE: Final = [(0, HASH_END)]
_OWNER: Final = 3
_TOKEN: Final = 4

Ranges = list[tuple[int, int]]
Row = Sequence[Any]
"""A range that was added or removed: low, high, then (where given) phase, owner and token."""


@dataclass(slots=True, kw_only=True)
class NamespaceMemory(Memory):
    """Only what was reported of a namespace: each of its facts has all that the rules need."""

    def check(self, fact: Fact) -> Iterator[Finding]:
        """See `Memory`."""
        if fact.source == "channel" and fact.verdict != NOT_FOLDED:
            yield from check_rules("namespace", NamespaceCase(fact))
        self.forget_ms = fact.at_ms + FORGOTTEN_AFTER_MS if self.reported else None


class NamespaceCase(Case):
    """A fact of a namespace, with the ranges that the fold removed and added."""

    def __init__(self, fact: Fact) -> None:
        super().__init__(fact)
        after = fact.after or {}
        self.rows_removed: Sequence[Row] = after.get("removed") or ()
        self.rows_added: Sequence[Row] = after.get("added") or ()
        self.removed, self.added = _ranges(self.rows_removed), _ranges(self.rows_added)
        self.is_changed = bool(self.removed or self.added)
        self.kind, self.status = self.record.get("kind"), self.record.get("status")
        self.is_deletion = self.kind == "namespace" and self.status == "deleted"

    @property
    def expected_ranges(self) -> tuple[Ranges, Ranges] | None:
        """The sorted ranges that an accepted record removes and adds; None for a deletion, and if
        the record may change none.
        """
        if self.kind == "namespace" and self.status == "created":
            return [], whole_space(self.record.get("boundaries") or ()) or []
        at, right = (
            parse_bundle(str(self.record.get("key"))),
            parse_bundle(str(self.record.get("right"))),
        )
        if self.kind == "split" and at is not None:
            return [(at.low, at.high)], pieces(
                at.low, at.high, self.record.get("positions") or ()
            ) or []
        if self.kind == "merge" and at is not None and right is not None:
            return sorted([(at.low, at.high), (right.low, right.high)]), [(at.low, right.high)]
        return None

    @property
    def leaves_hole(self) -> bool:
        """Whether the added ranges do not cover what the record requires."""
        covered, _ = joined_up(self.added)
        went = self.expected_ranges[0] if self.expected_ranges is not None else []
        return covered != (_WHOLE_SPACE if self.kind == "namespace" else joined_up(went)[0])

    @property
    def inherits(self) -> bool:
        """Whether a split or merge changed ranges whose owners and tokens are given."""
        is_given = all(len(row) > _TOKEN for row in (*self.rows_removed, *self.rows_added))
        return self.kind in ("split", "merge") and is_given and bool(self.rows_removed)

    @property
    def tokens(self) -> set[int]:
        """The tokens of the added ranges, if the record `inherits`."""
        return {row[_TOKEN] for row in self.rows_added}

    @property
    def token(self) -> int:
        """The greatest token of the removed ranges, if the record `inherits`."""
        return int(max(row[_TOKEN] for row in self.rows_removed))

    @property
    def twice(self) -> Ranges:
        """The parts of the added ranges that two of them cover."""
        return joined_up(self.added)[1]


def _ranges(rows: Iterable[Row]) -> Ranges:
    return sorted((row[0], row[1]) for row in rows)


def _text(ranges: Ranges) -> str:
    shown = ", ".join(f"0x{low:08x}_0x{high:08x}" for low, high in ranges[:_SHOWN_MAX])
    return (
        f"{shown} and {len(ranges) - _SHOWN_MAX} more"
        if len(ranges) > _SHOWN_MAX
        else shown or "nothing"
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values)))


@rule(
    "namespace",
    "alarm",
    instead_of=("bad_boundary", "not_adjacent"),
    means="Keys of that range have no bundle, and their lookups never end.",
    remedy=REPORT_A_BUG,
)
def hole(case: NamespaceCase) -> Violations:
    """The bundles of a namespace cover every point of the hash space."""
    if not case.is_changed:
        return
    if case.is_deletion:
        covered, _ = joined_up(case.removed)
        if covered != _WHOLE_SPACE or case.added:
            yield Violation(f"{case.what} left bundles behind: it removed {_text(covered)}")
    elif case.expected_ranges is not None:
        went, came = case.expected_ranges
        if case.removed != went and not set(case.removed) < set(went):
            yield Violation(
                f"{case.what} removed {_text(case.removed)}; the audit expects {_text(went)}"
            )
        elif case.removed == went and case.added != came and case.leaves_hole:
            yield Violation(
                f"{case.what} made {_text(case.added)}; the audit expects {_text(came)}"
            )


@rule(
    "namespace",
    "alarm",
    means="Keys of that range may have two owners at once.",
    remedy=REPORT_A_BUG,
)
def overlap(case: NamespaceCase) -> Violations:
    """No point of the hash space lies in two bundles of a namespace."""
    if case.is_deletion or case.expected_ranges is None or not case.is_changed:
        return
    went = case.expected_ranges[0]
    if case.twice:
        yield Violation(f"after {case.what} two bundles cover {_text(case.twice)}")
    if set(case.removed) < set(went):
        yield Violation(
            f"{case.what} removed {_text(case.removed)}; the audit expects {_text(went)}"
        )


@state_differs.also("namespace")
def namespace_state_differs(case: NamespaceCase) -> Violations:
    """Check that only accepted records of certain kinds change ranges, and into the expected ones,
    of bundles that exist.
    """
    if not case.is_changed:
        return
    if not case.is_accepted:
        yield Violation(
            f"{case.what} was rejected ({case.fact.verdict}), but changed the namespace's ranges"
        )
    unknown = case.fact.context.get("unknown")
    if unknown:
        yield Violation(f"{case.what} removed {_listed(unknown)}, which did not exist")
    if case.inherits and case.tokens and min(case.tokens) >= case.token != max(case.tokens):
        yield Violation(f"{case.what} gave token {_listed(case.tokens)} to what had {case.token}")
    if case.is_deletion:
        return
    if case.expected_ranges is None:
        yield Violation(
            f"{case.what} changed the namespace's ranges, but records of this kind do not"
        )
        return
    went, came = case.expected_ranges
    if case.removed == went and case.added != came and not case.twice and not case.leaves_hole:
        yield Violation(f"{case.what} made {_text(case.added)}; the audit expects {_text(came)}")


@illegal_step.also("namespace")
def children_keep_owner(case: NamespaceCase) -> Violations:
    """Check that children have their parent's owner, and a merged bundle the common owner."""
    owners = (
        dict.fromkeys(row[_OWNER] for row in (*case.rows_removed, *case.rows_added))
        if case.inherits
        else ()
    )
    if len(owners) > 1:
        yield Violation(
            f"{case.what} gave bundles of one owner to {_listed(map(case.who, owners))}"
        )


@token_fell.also("namespace")
def children_keep_token(case: NamespaceCase) -> Violations:
    """Check that children have at least their parent's token, and a merged bundle the greater
    one.
    """
    if case.inherits and case.tokens and min(case.tokens) < case.token:
        yield Violation(f"{case.what} gave token {_listed(case.tokens)} to what had {case.token}")


@writes_what_it_may_not.also("namespace")
def no_such_namespace_record(case: NamespaceCase) -> Violations:
    """Check a rejected record for what no correct writer proposes."""
    verdict = case.fact.verdict
    if case.kind != "namespace" or case.fact.context.get("expected") != verdict:
        return
    if verdict == "bad_boundary":
        yield Violation(f"{case.what} has boundaries that leave points out, or do not rise")
    elif verdict == "illegal_transition" and case.status == "deleted":
        yield Violation(f"{case.what} was written before the namespace was set to deleting")


@verdict_differs.also("namespace")
def deletion_verdict(case: NamespaceCase) -> Violations:
    """Check the verdict on a deletion. If the membership has none, the state of the bundles decides
    between two.
    """
    verdict = case.fact.verdict
    if (
        case.is_deletion
        and "expected" not in case.fact.context
        and verdict not in (ACCEPTED, "bundles_in_use")
    ):
        yield Violation(f"{case.what} was {verdict}; the audit expects accepted or bundles_in_use")


@rule(
    "namespace",
    "warning",
    on=("broker",),
    means=(
        "The process that deleted it was interrupted. Its bundles are given to no broker any more,"
        " and its name is taken."
    ),
    remedy="Run `equipoise namespaces delete` for it again, which continues the deletion.",
)
def deleting_too_long(case: BrokerCase) -> Violations:
    """A namespace that is being deleted is gone within five times the bound for a pending
    bundle.
    """
    # The membership finds these: a stopped deletion writes no records, so the facts of live
    # publishers carry them.
    for name, since in case.fact.context.get("deleting_since", ()) if case.is_publisher else ():
        text = f"it has been in deletion since offset {since}, and nobody continues that"
        yield Violation(text, offsets=(since,), subject=subject("namespace", name))
