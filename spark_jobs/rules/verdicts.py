"""Two opinions on one record, compared: where the fold's and that of the second rules differ, which rule is broken.

May live here: the comparison, and how records and brokers are called in what is found. The opinions come from
`spark_jobs.rules.membership.view` and from the checkers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from equipoise.spark_jobs.rules.catalogue import finding
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.transitions import ACCEPTED_ALTHOUGH, ACCEPTED_ALTHOUGH_OF

ACCEPTED: Final = "accepted"

NOT_FOLDED: Final = "not_folded"
"""The verdict on what stands behind a record at which the fold stopped for good: there is nothing to compare."""


def compare_opinions(fact: Fact) -> Iterator[Finding]:
    """What the membership says of a record against the fold or its publisher, from the one subject that judges the record."""
    if fact.subject != fact.context.get("judged_by"):
        return
    if "expected" in fact.context:
        yield from compare(fact, fact.context["expected"])
    if fact.context.get("publisher") == "never":
        text = f"{told(fact)} is signed as incarnation {(fact.record or {}).get('incarnation')}, which no broker ever had"
        yield finding("baseless", fact, text)


def compare(fact: Fact, expected: str) -> Iterator[Finding]:
    """A finding if the fold's verdict on the record of `fact` is not the one that is expected of it."""
    if fact.verdict in (expected, NOT_FOLDED, None):
        return
    rule = broken_rule(fact, expected) if fact.verdict == ACCEPTED else "verdict_differs"
    yield finding(rule, fact, f"{told(fact)} was {fact.verdict}; by the second rules it is {expected}")


def broken_rule(fact: Fact, expected: str) -> str:
    """The rule that a record breaks which was accepted, and should have been rejected as `expected`."""
    record = fact.record or {}
    kind = record.get("kind")
    form = f"broker {record.get('status')}" if kind == "broker" else str(kind)
    return ACCEPTED_ALTHOUGH_OF.get((form, expected)) or ACCEPTED_ALTHOUGH.get(expected, "verdict_differs")


def told(fact: Fact) -> str:
    """A record as a sentence begins with it: `the record "bundle owned" of b1`."""
    record = fact.record or {}
    what = record.get("state") or record.get("status")
    kind = record.get("kind")
    spelled = f"{kind} {what}" if what is not None else f"{kind}"
    return f'the record "{spelled[:64]}" of {str(record.get("publisher"))[:64]}'


def who(incarnation: int | None, fact: Fact) -> str:
    """An incarnation as people know it, with its broker's id: `b1 (incarnation 7)`, as far as the record tells that."""
    context, record = fact.context, fact.record or {}
    name = record.get("key") if incarnation == context.get("dead") else context.get("names", {}).get(str(incarnation))
    return f"incarnation {incarnation}" if name is None else f"{name} (incarnation {incarnation})"
