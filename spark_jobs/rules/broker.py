"""Check the facts of one broker: the records it signs, the records of its key, and its rejections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from equipoise.spark_jobs.rules.attempts import check_attempt, check_ties
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.leases import check_lease, check_proof, check_silence
from equipoise.spark_jobs.rules.memory import Memory, due_alarms, set_alarm
from equipoise.spark_jobs.rules.namespace import check_deletions
from equipoise.spark_jobs.rules.rejections import check_rejection
from equipoise.spark_jobs.rules.standing import NAME, Standing, recall, remember
from equipoise.spark_jobs.rules.telling import ALARM, bounded, tell_held_back, told, wake_for_held_back
from equipoise.spark_jobs.rules.verdicts import ACCEPTED, NOT_FOLDED, compare_opinions

FORGOTTEN_AFTER_MS: Final = 3_600_000
"""Log time after which a removed or invented broker id is forgotten. Anyone can invent ids."""

_GONE: Final = "gone"


class BrokerChecker:
    """Check the facts of one broker id. It remembers a `Standing`."""

    def check(self, memory: Memory, fact: Fact) -> Iterator[Finding]:
        """Yield what is wrong with a record that this broker published, or with a record of its key."""
        record = fact.record
        if record is None or fact.verdict in (None, NOT_FOLDED):
            return
        name = fact.subject.partition(":")[2]
        standing = recall(memory, begun=fact.context.get("begun"))
        if not standing.known and fact.before is not None:
            standing.adopt(fact.before)
        yield from bounded(standing.told, fact, compare_opinions(fact))
        if record.get("publisher") == name:
            yield from check_attempt(standing, fact, record)
            yield from check_silence(fact)
            yield from check_deletions(fact)
            if fact.verdict != ACCEPTED:
                yield from check_rejection(standing.rejections, standing.told, fact, name)
        if record.get("kind") == "broker" and record.get("key") == name:
            yield from check_ties(standing, fact, record)
            yield from check_proof(standing, fact, record)
            if fact.verdict == ACCEPTED:
                yield from check_lease(standing, fact, record)
                standing.follow(fact, record)
                yield from _compare_states(standing, fact)
        remember(memory, standing)
        wake_for_held_back(memory, standing.told)
        set_alarm(memory, _GONE, fact.at_ms + FORGOTTEN_AFTER_MS if standing.status in _NO_MEMBER else None)

    def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterator[Finding]:
        """Report how many findings were held back. Silence is not checked here: one broker's facts do not show awake time."""
        due = due_alarms(memory, now_ms)
        if ALARM in due:
            standing = recall(memory)
            yield from tell_held_back(standing.told, subject, now_ms)
            wake_for_held_back(memory, standing.told)
            remember(memory, standing)
        if _GONE in due:
            memory.remove(NAME)


_NO_MEMBER: Final = ("unknown", "gone")


def _compare_states(standing: Standing, fact: Fact) -> Iterator[Finding]:
    """Compare the fold's state with the broker's records, and its digest with the renewal's."""
    after = fact.after
    if after is None:
        return
    if after.get("diverged"):
        text = "the digest that this renewal says is not that of the view: what this broker has read is not what stands on the log"
        yield from told(standing.told, fact, "digest_differs", text)
    if standing.known and (standing.status, standing.incarnation) != (after["status"], after["incarnation"]):
        text = (
            f"by its records it is {standing.status} as incarnation {standing.incarnation}, "
            f"and by the fold {after['status']} as {after['incarnation']}"
        )
        yield from told(standing.told, fact, "state_differs", text)
