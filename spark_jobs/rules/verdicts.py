"""Compare the fold's verdict on a record with that of the second rules, and name the rule that is broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from equipoise.spark_jobs.rules.catalogue import finding
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.transitions import ACCEPTED_ALTHOUGH, ACCEPTED_ALTHOUGH_OF

ACCEPTED: Final = "accepted"

NOT_FOLDED: Final = "not_folded"
"""The verdict on records after one at which the fold stopped for good. There is nothing to compare."""


def compare_opinions(fact: Fact) -> Iterator[Finding]:
    """Compare the membership's verdict with the fold's, for the one subject that checks the record."""
    if fact.subject != fact.context.get("judged_by"):
        return
    if "expected" in fact.context:
        yield from compare(fact, fact.context["expected"])
    if fact.context.get("publisher") == "never":
        text = f"{told(fact)} is signed as incarnation {(fact.record or {}).get('incarnation')}, which no broker ever had"
        yield finding("baseless", fact, text)


def compare(fact: Fact, expected: str) -> Iterator[Finding]:
    """Yield a finding if the fold's verdict on the record of `fact` is not `expected`."""
    if fact.verdict in (expected, NOT_FOLDED, None):
        return
    rule = broken_rule(fact, expected) if fact.verdict == ACCEPTED else "verdict_differs"
    yield finding(rule, fact, f"{told(fact)} was {fact.verdict}; by the second rules it is {expected}")


def broken_rule(fact: Fact, expected: str) -> str:
    """Return the rule that is broken if a record was accepted instead of rejected as `expected`."""
    record = fact.record or {}
    kind = record.get("kind")
    form = f"broker {record.get('status')}" if kind == "broker" else str(kind)
    return ACCEPTED_ALTHOUGH_OF.get((form, expected)) or ACCEPTED_ALTHOUGH.get(expected, "verdict_differs")


def told(fact: Fact) -> str:
    """Return a record as the subject of a sentence: `the record "bundle owned" of b1`."""
    record = fact.record or {}
    what = record.get("state") or record.get("status")
    kind = record.get("kind")
    spelled = f"{kind} {what}" if what is not None else f"{kind}"
    return f'the record "{spelled[:64]}" of {str(record.get("publisher"))[:64]}'


def who(incarnation: int | None, fact: Fact) -> str:
    """Return an incarnation with its broker's id, if known: `b1 (incarnation 7)`."""
    context, record = fact.context, fact.record or {}
    name = record.get("key") if incarnation == context.get("dead") else context.get("names", {}).get(str(incarnation))
    return f"incarnation {incarnation}" if name is None else f"{name} (incarnation {incarnation})"
