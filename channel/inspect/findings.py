"""Define what an audit of a channel by `channel.inspect.verify` found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from equipoise.channel.core.records import Reason


class Kind(StrEnum):
    """The kind of a finding."""

    DAMAGED = "damaged"
    MALFORMED = "malformed"
    FOREIGN = "foreign"
    BASELESS = "baseless"
    DIVERGED = "diverged"
    NOT_COVERED = "not_covered"
    TOKEN_FELL = "token_fell"  # noqa: S105 - a fencing token
    DEAD_HOLDER = "dead_holder"
    SNAPSHOT = "snapshot"
    HISTORY = "history_snapshot"
    INCOMPLETE = "incomplete"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem with the records from `first` to `last` (logical offsets, both included; equal for
    one record).

    `suspects` are the records that more likely caused it. They may lie outside that range, when
    several records contradict each other.
    """

    kind: Kind
    first: int
    last: int
    text: str
    suspects: tuple[int, ...] = ()

    def names(self, offset: int) -> bool:
        """Return whether this finding names the record at `offset`."""
        return self.first <= offset <= self.last or offset in self.suspects


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of an audit.

    * `findings`: the likeliest cause first, at most `FINDINGS_MAX` of `findings_count`.
    * `folded_to`: the last folded logical offset (-1: none).
    * `records`, `accepted`, `rejected` (by reason): counts of the folded records.
    * `agreements`: the number of renewals whose digest matches this view.
    * `snapshot_to`: the horizon of the compacted snapshot (None: none can be read).
      `from_snapshot`: the fold began there, not with the log.
    * `history_to`, `from_history_snapshot`: the same for the history snapshot.
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
