"""Compare the audit's rules with the fold over random walks, with restarts and from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.spark_jobs.rules.checkers import SubjectAudit
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.memory import put_rows
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Arrival, Source
from equipoise.spark_jobs.sequence.sequence import FactSequence
from tests.channels.walk import Walk

BEGAN_MS: Final = 1_000_000
SENSELESS: Final = frozenset({"writes_what_it_may_not", "baseless"})
"""What the rules say of who wrote a record that is nothing to the fold: walks hold many of
these."""

walks = st.builds(Walk, st.integers(0, 2**32), levels=st.booleans())


def arrivals_of(walk: Walk, length: int) -> list[Arrival]:
    """The entries of a walk, 20 a second."""
    return [
        Arrival(Source.CHANNEL, offset, BEGAN_MS + 50 * place, data)
        for place, (offset, data) in enumerate(steps(walk, length))
    ]


def steps(walk: Walk, length: int) -> list[tuple[int, bytes]]:
    """So many entries of a walk."""
    return [walk.step() for _ in range(length)]


def facts_of(parts: Iterable[Many[Arrival]], begin: bytes | None) -> list[Fact]:
    """The facts of arrivals that are read in parts, with the state taken down and taken up between
    any two.
    """
    found: list[Fact] = []
    rows: dict[str, bytes] = {}
    sequence = FactSequence(begin)
    for part in parts:
        found += sequence.feed(part)
        put_rows(rows, sequence.changed_rows())
        sequence = FactSequence()
        sequence.restore(rows)
    return found


def findings_of(facts: Iterable[Fact]) -> list[Finding]:
    """What the checkers of bundles and namespaces say of them against the fold."""
    audits: dict[str, SubjectAudit] = {}
    found: list[Finding] = []
    for fact in facts:
        if fact.subject.startswith(("bundle:", "namespace:")):
            audit = audits.get(fact.subject)
            if audit is None:
                audit = audits[fact.subject] = SubjectAudit(fact.subject)
            found += audit.check(fact)
    return [finding for finding in found if finding.rule not in SENSELESS]


@settings(max_examples=40, deadline=None)
@given(walk=walks, length=st.integers(1, 240), cut=st.integers(1, 240))
def test_the_audit_agrees_with_the_fold(walk: Walk, length: int, cut: int) -> None:
    arrivals = arrivals_of(walk, length)
    facts = facts_of((arrivals[:cut], arrivals[cut:]), None)
    judged = [fact for fact in facts if "expected" in fact.context]
    assert [] == [
        fact for fact in judged if fact.verdict not in (fact.context["expected"], "not_folded")
    ]
    assert [] == findings_of(facts)
    told = {fact.offset for fact in facts if "checked_by" in fact.context}
    assert told == {fact.offset for fact in facts if fact.subject == fact.context.get("checked_by")}
