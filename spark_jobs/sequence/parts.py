"""What is plugged into a `Sequence`: parts that see every record in order, and keep a state of their own.

May live here: the ports of these parts. What a part's state comes to is its own business: rows, each under a key that begins
with the part's own prefix.
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
"""Asked about the positions from the first on, below the second (physical offsets), that no entry stands at: were there any?

None: nothing is lost, the log leaves out numbers. Else a snapshot of the view from which what is left of the log can be told.
Raises `ChannelIncomplete`, `LevelTooNew` or `LogClosed` where nothing leads on, and `LogUnavailable` where it cannot be known now.
"""

LoadRows = Callable[[bytes], tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None]
"""A load summary as rows of `broker_load` and of `bundle_load`; None if it is none."""

StateRow = tuple[str, bytes | None]
"""One key of a state and what it now is; None: it is gone."""

SNAPSHOT_RECORDS: Final = 100_000
"""Records between two snapshots of an archive: about a second of folding, so that a verification of some millions has many parts."""


class Part(Protocol):
    """A part whose state outlives its process."""

    def changed_rows(self) -> Iterable[StateRow]:
        """What changed since it was last asked; of several rows of one key the last counts."""
        ...

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Take up the state that all rows of a `Sequence` hold; those of other parts are none of its business."""
        ...


class SecondOpinion(Part, Protocol):
    """The second membership: `spark_jobs.rules.membership.view.Membership`."""

    def begin(self, standing: Standing) -> None:
        """Forget what was, and go on from here: the log is read from here on, or what lay between was lost."""
        ...

    def judge(self, offset: int, at_ms: int, raw: Raw | None, *, behind_ms: int = 0) -> Raw:
        """What goes with each fact of this record; asked before `follow`, once for each record that is folded.

        `at_ms` is the log's time, and `behind_ms` by how much the record's own time is less than that.
        """
        ...

    def follow(self, offset: int, raw: Raw | None, verdict: str) -> Iterable[str]:
        """Take over what the fold said of the record; further bundles that are to be told of it."""
        ...


class Histories(Part, Protocol):
    """Who makes rows of what records changed: `spark_jobs.sequence.histories.Histories`."""

    def begin(self, view: View) -> None:
        """As that of a second opinion."""
        ...

    def feed(self, folded: Folded, at_ms: int) -> Iterable[Emitted]:
        """The rows of one record that changed something; it is not asked about others."""
        ...


def nothing_lost(_first: int, _below: int) -> None:
    """The `Lost` of those whose log is whole."""


def no_load_rows(_document: bytes) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """The `LoadRows` of those who want none."""
    return (), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugs:
    """What one `Sequence` works with. Parts are its own: each is made anew for it. `log` is the log's identity, where it is known."""

    opinion: SecondOpinion | None = None
    histories: Histories | None = None
    lost: Lost = nothing_lost
    load_rows: LoadRows = no_load_rows
    snapshot_records: int = SNAPSHOT_RECORDS
    log: str | None = None
