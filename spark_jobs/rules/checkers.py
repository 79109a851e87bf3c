"""Check the facts of a subject in order, run its due timer first, and contain checks that fail.

How the log is cut into batches must not change the findings:

* A due timer runs before the next later fact. Spark alone would run it after the whole batch.
* A timer gets the present log time, not its due time: after an outage of the log nobody is late by
  its length.
* A note carries the time at the end of its batch, possibly hours after its event. So notes run no
  timers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from equipoise.spark_jobs.rules.broker import BrokerMemory
from equipoise.spark_jobs.rules.bundle import BundleMemory
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.log import LogMemory
from equipoise.spark_jobs.rules.memory import Memory
from equipoise.spark_jobs.rules.namespace import NamespaceMemory

# Its rules are among `RULES`.
from equipoise.spark_jobs.rules.pulsar import BundleAudit as _PulsarRules  # noqa: F401
from equipoise.spark_jobs.rules.rule import RULES, Finding, audit_broken

__all__ = ("CHANNEL_RULES", "MEMORIES", "NO_OFFSET", "RULES", "SubjectAudit")

CHANNEL_RULES: Final = tuple(name for name, rule in RULES.items() if not rule.source)
"""The rules of our own channel. Pulsar's have a source."""

NO_OFFSET: Final = 0
"""Offset of a check that failed in a timer, which belongs to no record."""


MEMORIES: Final[Mapping[str, type[Memory]]] = {
    "broker": BrokerMemory,
    "bundle": BundleMemory,
    "log": LogMemory,
    "namespace": NamespaceMemory,
}
"""By kind of subject: what is remembered, and how facts are checked."""


class SubjectAudit:
    """The audit of one subject."""

    def __init__(self, subject: str, raw: dict[str, Any] | None = None) -> None:
        """Continue with the memory in the JSON object `raw`; None for an empty memory."""
        self.subject = subject
        self._kind = MEMORIES[subject.partition(":")[0]]
        self.memory: Memory = self._kind() if raw is None else self._kind.parse(raw)

    @property
    def is_blank(self) -> bool:
        """Whether nothing need be stored of the memory."""
        return self.memory == self._kind(begun=self.memory.begun)

    def check(self, fact: Fact) -> list[Finding]:
        """Return the findings of `fact`, after those of the subject's due timer. Facts come in
        order of the channel's offsets.

        A check that raises makes a finding and forgets the subject, since its state may be
        inconsistent.
        """
        findings: list[Finding] = []
        due_ms = self.memory.due_ms
        if fact.source == "channel" and due_ms is not None and due_ms < fact.at_ms:
            findings += self.expire(fact.at_ms)
        self._begin(fact.context.get("begun", 0))
        try:
            findings += list(self.memory.limited(fact, self.memory.check(fact)))
        except Exception as error:  # noqa: BLE001 - no error may stop the audit of other subjects
            findings += self._failed(error, offset=fact.offset, at_ms=fact.at_ms)
        return findings

    def _begin(self, begun: int) -> None:
        """Forget what was read before a gap that ends at `begun`, but not what was reported and
        held back.
        """
        if begun > self.memory.begun and self.memory.forgets_at_gaps:
            self.memory = self._kind(
                begun=begun, reported=self.memory.reported, failures=self.memory.failures
            )
        self.memory.begun = max(self.memory.begun, begun)

    def expire(self, now_ms: int) -> list[Finding]:
        """Return the findings of the timer at `now_ms` of the log's time; nothing if it is not
        due.
        """
        due_ms = self.memory.due_ms
        if due_ms is None or due_ms > now_ms:
            return []
        try:
            findings = [
                *self.memory.expire(self.subject, now_ms),
                *self.memory.held_back(self.subject, now_ms),
            ]
        except Exception as error:  # noqa: BLE001 - the same
            return self._failed(error, offset=NO_OFFSET, at_ms=now_ms)
        if self.memory.forget_ms is not None and self.memory.forget_ms <= now_ms:
            self.memory = self._kind(begun=self.memory.begun)
        return findings

    def _failed(self, error: Exception, *, offset: int, at_ms: int) -> list[Finding]:
        """Report the first, tenth, hundredth ... failure of a subject, so that failures do not
        flood the findings.
        """
        failures = self.memory.failures + 1
        self.memory = self._kind(begun=self.memory.begun, failures=failures)
        if str(failures).strip("0") != "1":
            return []
        problem = f"{type(error).__name__}: {error}"
        text = (
            f"the check of {self.subject} failed at offset {offset}, and what was known of it is"
            f" forgotten (failure {failures}): {problem}"
        )
        return [audit_broken.finding(self.subject, text, offsets=(offset,), at_ms=at_ms)]
