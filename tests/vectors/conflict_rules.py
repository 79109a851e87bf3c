"""The vectors of `ServiceUnitStateDataConflictResolver.shouldKeepLeft`, asked of
`pulsar_cluster.table`.
"""

from __future__ import annotations

from equipoise.pulsar_cluster.records import StateRecord
from equipoise.pulsar_cluster.table import Storage, rejection_of
from tests.vectors.cases import Case


def replay(case: Case) -> object:
    """The verdicts on the right records, in order: 1 = rejected."""
    asked = case["input"]
    before, storage = _record(asked["left"]), Storage(asked["storage"])
    return {
        "keepLeft": "".join(
            "01"[rejection_of(before, _record(right), storage) is not None]
            for right in asked["rights"]
        )
    }


def _record(fields: tuple[str, str | None, str | None, bool, int] | None) -> StateRecord | None:
    return None if fields is None else StateRecord(*fields)
