"""Leases of one broker: whether it was taken for dead too early, or not at all.

May live here: the rules `premature_down`, `premature_join` (after a silence), `silent_too_long`, and `false_proof` of a proof that was
rejected; one that was accepted is among the verdicts that `spark_jobs.rules.membership.view` expects.

All is counted in the log's own time, between the append of one record and that of another. Whoever accuses a broker has first read its
last renewal, then waited for lease and margin by a clock that may run wrong by some percent, then appended: so between the two lies at
least the lease and the margin, less the clock's error. Nothing can be said of a lease that began before the audit, nor of one that
goes on while the log's time stands still.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from equipoise.spark_jobs.rules.catalogue import found
from equipoise.spark_jobs.rules.facts import Fact, Raw, subject
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.membership.members import APPEND_TIME_ERROR_MS
from equipoise.spark_jobs.rules.standing import Standing
from equipoise.spark_jobs.rules.telling import told

CLOCK_RATE_ERROR_PERCENT: Final = 3
"""How wrong the clock of whoever accuses may run: what the default margin of a broker is made for."""
_LIVE: Final = ("up", "draining")


def check_lease(standing: Standing, fact: Fact, record: Raw) -> Iterator[Finding]:
    """Whether an accepted record ends the life of a live incarnation by its silence, before that has lasted long enough."""
    member = fact.context.get("member")
    if member is None or member["status"] not in _LIVE:
        return
    status = record["status"]
    # An admin's word needs a nonce, and no silence; so does a process that found one in its directory.
    if status == "down" and type(record.get("incarnation")) is int:
        rule, what = "premature_down", f"{record['publisher']} called it down"
    elif status == "joined" and record.get("after_silence") is True and record.get("replaces") != member["nonce"]:
        rule, what = "premature_join", "it joined anew after silence"
    else:
        return
    since_ms: int | None = member["last_at_ms"]
    if since_ms is None or fact.context.get("timeless"):
        return
    # Who was itself away, or has just joined, must not take that for the other one's silence: it counts from its own return.
    back_ms: int = fact.context.get("accuser_back_ms", since_ms)
    silence_ms = fact.at_ms - max(since_ms, back_ms) + fact.context.get("unseen_ms", 0)
    early_ms = _early_by_ms(member, silence_ms)
    if early_ms:
        since = f"which was heard of at offset {member['last']}" if since_ms >= back_ms else "counted from the return of the accuser itself"
        text = f"{what} {early_ms} ms before the lease and the margin of incarnation {member['incarnation']} were over, {since}"
        yield from told(standing.told, fact, rule, text, offsets=(member["last"],))


def check_proof(standing: Standing, fact: Fact, record: Raw) -> Iterator[Finding]:
    """Whether somebody tried to declare dead this broker with a nonce that is not the live incarnation's: the fold has rejected that."""
    if record.get("status") == "down" and fact.verdict == "still_alive":
        text = f"{record.get('publisher')} tried to call it down with a nonce that is not that of the live incarnation"
        yield from told(standing.told, fact, "false_proof", text)


def check_silence(fact: Fact) -> Iterator[Finding]:
    """Whether others have been silent for too long, by the time in which the log was written to, when `fact` told of its publisher."""
    for name, last, last_at_ms in fact.context.get("silent", ()):
        when = "" if last_at_ms is None else f", {(fact.at_ms - last_at_ms) // 1_000} s ago in the log's time"
        text = f"it renewed its lease last at offset {last}{when}, and nobody has said that it is down: its bundles may be served by nobody"
        who = subject("broker", name)
        yield found("silent_too_long", who, text, offsets=(last, fact.offset), at_ms=fact.at_ms, publisher=name)


def _early_by_ms(member: Raw, silence_ms: int) -> int:
    """By how much a silence of so long is too short for a death; 0 if it is not."""
    least_ms: int = (member["lease_ms"] + member["margin_ms"]) * (100 - CLOCK_RATE_ERROR_PERCENT) // 100 - APPEND_TIME_ERROR_MS
    return max(0, least_ms - silence_ms)
