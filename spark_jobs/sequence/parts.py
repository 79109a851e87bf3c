"""Define what plugs into a `Sequence`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from equipoise.spark_jobs.rules.membership.view import Membership
from equipoise.spark_jobs.sequence.histories import Histories

Lost = Callable[[int, int], bytes | None]
"""Ask whether entries were lost at the missing physical offsets from the first argument to below the second.

Return None if not (a log may skip offsets), else a snapshot of the view from which the rest can be folded. Raise `ChannelIncomplete`,
`LevelTooNew` or `LogClosed` if nothing leads on, and `LogUnavailable` if it is not known now.
"""

StateRow = tuple[str, bytes | None]
"""A key of a state and its value; None if it is removed."""

SNAPSHOT_RECORDS: Final = 100_000
"""Records between two snapshots of an archive: about a second of folding, so that a long verification has many parts."""


def nothing_lost(_first: int, _below: int) -> None:
    """Return None: a `Lost` for a log that is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugs:
    """What one `Sequence` works with. `membership` and `histories` must be new. `log` is the log's identity, if known."""

    membership: Membership | None = None
    histories: Histories | None = None
    lost: Lost = nothing_lost
    snapshot_records: int = SNAPSHOT_RECORDS
    log: str | None = None
