"""Check the leases of one broker: whether it was declared dead too early, or not at all.

All times are log times, from append to append.

* The accuser reads the last renewal, waits for lease and grace period, and appends. So the two appends are at least that far apart, less
  the error of the accuser's clock.
* A lease from before the audit, or one during which the log's time stands still, cannot be checked.
* An accepted false proof is a verdict: `spark_jobs.rules.membership.view` checks it.
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
"""Largest error of the accuser's clock rate. A broker's default grace period allows for as much."""
_LIVE: Final = ("up", "draining")


def check_lease(standing: Standing, fact: Fact, record: Raw) -> Iterator[Finding]:
    """Check that an accepted record which ends a silent incarnation came late enough."""
    member = fact.context.get("member")
    if member is None or member["status"] not in _LIVE:
        return
    status = record["status"]
    # An admin's record needs an instance id instead of silence. So does a process that found an instance id in its data directory.
    if status == "down" and type(record.get("incarnation")) is int:
        rule, what = "premature_down", f"{record['publisher']} called it down"
    elif status == "joined" and record.get("after_silence") is True and record.get("replaces") != member["nonce"]:
        rule, what = "premature_join", "it joined anew after silence"
    else:
        return
    since_ms: int | None = member["last_at_ms"]
    if since_ms is None or fact.context.get("timeless"):
        return
    # An accuser that was away, or has just joined, missed renewals. It counts silence from its own return.
    back_ms: int = fact.context.get("accuser_back_ms", since_ms)
    silence_ms = fact.at_ms - max(since_ms, back_ms) + fact.context.get("unseen_ms", 0)
    early_ms = _early_by_ms(member, silence_ms)
    if early_ms:
        since = f"which was heard of at offset {member['last']}" if since_ms >= back_ms else "counted from the return of the accuser itself"
        text = f"{what} {early_ms} ms before the lease and the margin of incarnation {member['incarnation']} were over, {since}"
        yield from told(standing.told, fact, rule, text, offsets=(member["last"],))


def check_proof(standing: Standing, fact: Fact, record: Raw) -> Iterator[Finding]:
    """Yield a finding if a rejected record declared this broker dead with a wrong instance id."""
    if record.get("status") == "down" and fact.verdict == "still_alive":
        text = f"{record.get('publisher')} tried to call it down with a nonce that is not that of the live incarnation"
        yield from told(standing.told, fact, "false_proof", text)


def check_silence(fact: Fact) -> Iterator[Finding]:
    """Yield a finding for each other broker that has been silent too long. `fact` is a record of a live publisher."""
    for name, last, last_at_ms in fact.context.get("silent", ()):
        when = "" if last_at_ms is None else f", {(fact.at_ms - last_at_ms) // 1_000} s ago in the log's time"
        text = f"it renewed its lease last at offset {last}{when}, and nobody has said that it is down: its bundles may be served by nobody"
        who = subject("broker", name)
        yield found("silent_too_long", who, text, offsets=(last, fact.offset), at_ms=fact.at_ms, publisher=name)


def _early_by_ms(member: Raw, silence_ms: int) -> int:
    """Return how many milliseconds a silence is too short; 0 if it is long enough."""
    least_ms: int = (member["lease_ms"] + member["margin_ms"]) * (100 - CLOCK_RATE_ERROR_PERCENT) // 100 - APPEND_TIME_ERROR_MS
    return max(0, least_ms - silence_ms)
