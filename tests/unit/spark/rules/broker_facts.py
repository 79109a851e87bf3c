"""Short stories of facts about one broker, or about the log."""

from __future__ import annotations

from typing import Any

from equipoise.spark_jobs.rules.broker import BrokerMemory
from equipoise.spark_jobs.rules.checkers import SubjectAudit
from equipoise.spark_jobs.rules.facts import Fact, parse_fact, subject
from equipoise.spark_jobs.rules.rule import Finding

LEASE_MS, GRACE_MS = 3_000, 500


class Story:
    """The audit of one subject, fact by fact."""

    def __init__(self, who: str) -> None:
        self.subject = who
        self.audit = SubjectAudit(who)
        self.findings: list[Finding] = []
        self.offset = 0
        self.at_ms = 1_000_000

    @property
    def found(self) -> list[tuple[str, tuple[int, ...]]]:
        """The rule and the offsets of each finding so far, in order."""
        return [(finding.rule, finding.offsets) for finding in self.findings]

    @property
    def rules(self) -> list[str]:
        """The rules that were broken so far, each once, in order."""
        return list(dict.fromkeys(finding.rule for finding in self.findings))

    def wait(self, ms: int) -> None:
        """Let the log's time pass without a fact, and run a due timer."""
        self.at_ms += ms
        self.findings.extend(self.audit.expire(self.at_ms))

    def tell(
        self,
        record: dict[str, Any] | None,
        *,
        verdict: str | None = "accepted",
        offset: int | None = None,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        context: dict[str, Any] | None = None,
        source: str = "channel",
    ) -> int:
        """Check the next fact, as parsed from its bytes. Return its offset."""
        self.offset = self.offset + 1 if offset is None else offset
        self.at_ms += 10
        fact = Fact(
            subject=self.subject,
            source=source,
            offset=self.offset,
            at_ms=self.at_ms,
            record=record,
            verdict=verdict,
            before=before,
            after=after,
            context=context or {},
        )
        self.findings.extend(self.audit.check(parse_fact(fact.to_bytes())))
        return self.offset


class BrokerStory(Story):
    """The story of the broker `b1`. By default its records have the next number, and expect the
    offset of its last one.
    """

    def __init__(self) -> None:
        super().__init__(subject("broker", "b1"))
        self.incarnation = 0
        self.sequence = 0
        self.last = 0
        self.standing: dict[str, Any] | None = None
        self.back_ms: int | None = None
        self.excuse: dict[str, Any] = {}  # What the membership says of the log's clock.

    # The fields of a record.
    def own(self, *, verdict: str = "accepted", **fields: Any) -> int:  # noqa: ANN401
        """A record that the broker publishes about a bundle."""
        self.sequence += 1
        record = {
            "kind": "bundle",
            "key": "t/n/0x00000000_0xffffffff",
            "expected_offset": 0,
            "publisher": "b1",
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "state": "free",
        }
        return self.tell({**record, **fields}, verdict=verdict)

    def member(
        self,
        status: str,
        *,
        verdict: str = "accepted",
        after: dict[str, Any] | None = None,
        expected: str | None = None,
        **fields: Any,  # noqa: ANN401 - the fields of a record
    ) -> int:
        """A membership record of the broker, by itself unless the fields name another publisher."""
        record: dict[str, Any] = {
            "kind": "broker",
            "key": "b1",
            "status": status,
            "expected_offset": self.last,
            "publisher": "b1",
        }
        if status == "joined":
            record |= {
                "instance_id": f"instance_id-{self.offset + 1}",
                "lease_ms": LEASE_MS,
                "grace_ms": GRACE_MS,
                "renew_ms": 1_000,
            }
        elif "publisher" not in fields:
            self.sequence += 1
            record |= {"incarnation": self.incarnation, "sequence": self.sequence}
        if status == "renewed":
            record["digest"] = 1
        context: dict[str, Any] = (
            {} if expected is None else {"checked_by": self.subject, "expected": expected}
        )
        if self.standing is not None and status != "renewed":
            context |= {"member": self.standing, **self.excuse}
            if self.back_ms is not None:
                context["accuser_back_ms"] = self.back_ms
        offset = self.tell({**record, **fields}, verdict=verdict, after=after, context=context)
        if verdict == "accepted":
            self._follow(status, offset)
        return offset

    def _follow(self, status: str, offset: int) -> None:
        """Apply an accepted record as the membership does."""
        self.last = offset
        if status == "joined":
            self.incarnation = offset
            self.standing = {
                "instance_id": f"instance_id-{offset}",
                "lease_ms": LEASE_MS,
                "grace_ms": GRACE_MS,
                "incarnation": offset,
            }
        if self.standing is not None:
            kept = self.standing.get("status", "up") if status == "renewed" else status
            self.standing = {
                **self.standing,
                "status": {"joined": "up"}.get(kept, kept),
                "last": offset,
                "last_at_ms": self.at_ms,
            }

    @property
    def memory(self) -> BrokerMemory:
        """What the audit remembers of the broker."""
        assert isinstance(self.audit.memory, BrokerMemory)
        return self.audit.memory

    def joined(self) -> BrokerStory:
        """Let the broker join, and return the story."""
        self.member("joined")
        return self


class LogStory(Story):
    """The story of the log itself."""

    def __init__(self) -> None:
        super().__init__(subject("log", ""))
