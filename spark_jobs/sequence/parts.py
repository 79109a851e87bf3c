"""Define the parts that plug into a `Sequence`: they see every record in order, and keep state of their own.

A part's state is rows, each under a key with the part's own prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from equipoise.spark_jobs.rules.facts import Raw
from equipoise.spark_jobs.rules.membership.members import Standing
from equipoise.spark_jobs.sequence.emitted import Emitted

Lost = Callable[[int, int], bytes | None]
"""Ask whether entries were lost at the missing physical offsets from the first argument to below the second.

Return None if not (a log may skip offsets), else a snapshot of the view from which the rest can be folded. Raise `ChannelIncomplete`,
`LevelTooNew` or `LogClosed` if nothing leads on, and `LogUnavailable` if it is not known now.
"""

LoadRows = Callable[[bytes], tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None]
"""Turn a load summary into rows of `broker_load` and of `bundle_load`. Return None for another document."""

StateRow = tuple[str, bytes | None]
"""A key of a state and its value; None if it is removed."""

SNAPSHOT_RECORDS: Final = 100_000
"""Records between two snapshots of an archive: about a second of folding, so that a long verification has many parts."""


class Part(Protocol):
    """A part whose state outlives its process."""

    def changed_rows(self) -> Iterable[StateRow]:
        """Return the rows that changed since the last call. The last row of a key counts."""
        ...

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Restore the state from all rows of a `Sequence`. Ignore rows of other parts."""
        ...


class SecondOpinion(Part, Protocol):
    """The second membership: `spark_jobs.rules.membership.view.Membership`."""

    def begin(self, standing: Standing) -> None:
        """Forget everything and continue from `standing`: reading begins here, or what came before was lost."""
        ...

    def judge(self, offset: int, at_ms: int, raw: Raw | None, *, behind_ms: int = 0) -> Raw:
        """Return the context for each fact of this record. Call it once per folded record, before `follow`.

        `at_ms` is the log's time; `behind_ms` is how far the record's own time is below it.
        """
        ...

    def follow(self, offset: int, raw: Raw | None, verdict: str) -> Iterable[str]:
        """Apply the fold's verdict on the record. Return further bundles that need a fact of it."""
        ...


class Histories(Part, Protocol):
    """Make rows from what records changed: `spark_jobs.sequence.histories.Histories`."""

    def begin(self, view: View) -> None:
        """Continue from `view`."""
        ...

    def feed(self, folded: Folded, at_ms: int) -> Iterable[Emitted]:
        """Return the rows of a record with changes. Do not call it for others."""
        ...


def nothing_lost(_first: int, _below: int) -> None:
    """Return None: a `Lost` for a log that is whole."""


def no_load_rows(_document: bytes) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Return no rows: a `LoadRows` for callers that want none."""
    return (), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugs:
    """What one `Sequence` works with. Its parts must be new. `log` is the log's identity, if known."""

    opinion: SecondOpinion | None = None
    histories: Histories | None = None
    lost: Lost = nothing_lost
    load_rows: LoadRows = no_load_rows
    snapshot_records: int = SNAPSHOT_RECORDS
    log: str | None = None
