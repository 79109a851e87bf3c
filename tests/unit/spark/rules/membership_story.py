"""A small cluster whose records a membership checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from equipoise.spark_jobs.rules.membership.view import Context, Membership

NAMESPACE: Final = "t/n"
BUNDLE: Final = "t/n/0x00000000_0x80000000"
RIGHT: Final = "t/n/0x80000000_0xffffffff"


class Cluster:
    """A membership that follows records. `concerned` are the bundles that the last one concerns."""

    def __init__(self) -> None:
        """A log with a genesis, the brokers `a` and `b`, and a namespace of two bundles."""
        self.membership = Membership()
        self.offset = 0
        self.at_ms = 1_000_000
        self.sequences: dict[str, int] = {}
        self.concerned: list[str] = []
        self.rows: dict[str, bytes] = {}
        self.tell(
            {
                "kind": "genesis",
                "key": "genesis",
                "expected_offset": 0,
                "publisher": "admin:a",
                "cluster": "c",
            }
        )
        self.incarnations = {name: self.join(name) for name in ("a", "b")}
        boundaries = [0, 0x80000000, 0xFFFFFFFF]
        self.admin(
            kind="namespace",
            key=NAMESPACE,
            status="created",
            expected_offset=1,
            boundaries=boundaries,
        )

    def tell(
        self,
        raw: dict[str, Any] | None,
        *,
        verdict: str = "accepted",
        wait_ms: int = 10,
        behind_ms: int = 0,
    ) -> Context:
        """Follow the next record with the fold's verdict, and return its context."""
        self.offset += 1
        self.at_ms += wait_ms
        context = self.membership.context_of(self.offset, self.at_ms, raw, behind_ms=behind_ms)
        self.concerned = list(self.membership.follow(self.offset, raw, verdict))
        return context

    def expected(self, raw: dict[str, Any], *, verdict: str = "rejected") -> str | None:
        """Return the verdict that the membership expects for a record."""
        return self.tell(raw, verdict=verdict).get("expected")

    # The fields of a record.
    def join(self, name: str, *, expected_offset: int = 1, **fields: Any) -> int:  # noqa: ANN401
        """Let a broker join, and return its incarnation."""
        self.tell(joined(name, expected_offset=expected_offset, **fields))
        return self.offset

    # The fields of a record.
    def broker(self, name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return a record of a broker, with its next number."""
        self.sequences[name] = self.sequences.get(name, 0) + 1
        return {
            "publisher": name,
            "incarnation": self.incarnations[name],
            "sequence": self.sequences[name],
            "expected_offset": 1,
            **fields,
        }

    # The fields of a record.
    def admin(self, *, verdict: str = "accepted", **fields: Any) -> Context:  # noqa: ANN401
        """Follow a record of an admin who has read everything."""
        return self.tell(
            {"publisher": "admin:a", "as_of": self.offset, "expected_offset": 1, **fields},
            verdict=verdict,
        )

    # The fields of a record.
    def bundle(self, state: str, *, wait_ms: int = 10, **fields: Any) -> Context:  # noqa: ANN401
        """Follow an accepted transition of `BUNDLE`."""
        return self.tell(
            self.broker("a", kind="bundle", key=BUNDLE, state=state, **fields), wait_ms=wait_ms
        )

    def overdue(self, *, seconds: int) -> list[Mapping[str, int] | None]:
        """Return what is overdue in each of so many seconds, in which only garbage is written."""
        return [
            self.tell(None, verdict="malformed", wait_ms=1_000).get("overdue")
            for _ in range(seconds)
        ]


# The fields of a record.
def joined(name: str, *, expected_offset: int = 1, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the record by which a broker joins."""
    promises = {
        "instance_id": f"instance_id of {name}",
        "lease_ms": 3_000,
        "grace_ms": 500,
        "renew_ms": 1_000,
    }
    return {
        "kind": "broker",
        "status": "joined",
        "key": name,
        "publisher": name,
        "expected_offset": expected_offset,
        **promises,
        **fields,
    }
