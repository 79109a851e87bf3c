"""What an audit of a channel found, in the words of `channel.inspect.verify`, which finds it.

May live here: the kinds of findings, a finding, and what a whole audit came to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from equipoise.channel.core.records import Reason


class Kind(StrEnum):
    """What is wrong."""

    DAMAGED = "damaged"
    MALFORMED = "malformed"
    FOREIGN = "foreign"
    BASELESS = "baseless"
    DIVERGED = "diverged"
    NOT_COVERED = "not_covered"
    TOKEN_FELL = "token_fell"  # noqa: S105 - a fencing token
    DEAD_HOLDER = "dead_holder"
    SNAPSHOT = "snapshot"
    HISTORY = "history snapshot"
    INCOMPLETE = "incomplete"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong with the records from `first` to `last` (logical offsets, both included; equal where one is meant).

    `suspects` are records that are the likelier culprits; they may lie outside, when several records contradict each other.
    """

    kind: Kind
    first: int
    last: int
    text: str
    suspects: tuple[int, ...] = ()

    def names(self, offset: int) -> bool:
        """Whether this finding points at the record at `offset`."""
        return self.first <= offset <= self.last or offset in self.suspects


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an audit came to: `findings`, the likeliest cause of the others first, at most `FINDINGS_MAX` of `findings_count`.

    `folded_to` is the last logical offset that was folded (-1: none); `records`, `accepted` and `rejected` (by reason) count
    what was folded, and `agreements` the renewals whose digest is that of this view. `snapshot_to` is the horizon of the log's
    snapshot (None: it has none that can be read), and `from_snapshot` says that the fold began there, and not with the log; `history_to`
    and `from_history_snapshot` say the same of its history snapshot.
    """

    snapshot_to: int | None = None
    from_snapshot: bool = False
    history_to: int | None = None
    from_history_snapshot: bool = False
    folded_to: int
    records: int
    accepted: int
    rejected: Mapping[Reason, int]
    agreements: int
    findings_count: int
    findings: tuple[Finding, ...]

    @property
    def in_order(self) -> bool:
        """Whether nothing was found."""
        return not self.findings_count
