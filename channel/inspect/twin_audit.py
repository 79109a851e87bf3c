"""What can be said of a log's twin and of its floor by themselves, whatever the log says; and how the log is compared with them.

May live here: the looks that `channel.inspect.verify` takes at both. What they should hold is told in `channel.snapshots.twin_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.channel.core.errors import LogDamaged, TwinDamaged
from equipoise.channel.core.log import Log
from equipoise.channel.core.twin import Check
from equipoise.channel.core.view import View
from equipoise.channel.inspect.findings import Kind
from equipoise.channel.snapshots.floor import floor_of
from equipoise.channel.snapshots.twin_rows import Marker, check_log, decode_marker, view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFacts:
    """What there is: a marker, if it can be read; the view at its horizon, if the rows give it; the problem, if there is one."""

    marker: Marker | None = None
    view: View | None = None
    problem: str | None = None


def facts_of_twin(log: Log, *, check: Check) -> TwinFacts:
    """What a log's twin is. Raises what `check` raises, and what `Twin.load` raises but for damage."""
    marker: Marker | None = None
    try:
        image = log.twin().load(check=check)
        if image is None:
            return TwinFacts()
        marker = decode_marker(image.marker)
        check_log(marker, log.identity)
        view = view_of(image, check=check)
    except (TwinDamaged, LogDamaged) as error:
        return TwinFacts(marker=marker, problem=error.problem)
    return TwinFacts(marker=marker, view=view)


def facts_of_floor(log: Log, *, check: Check) -> TwinFacts:
    """What a log's floor is; nothing, if the log's beginning has passed it. Raises what `floor_of` raises."""
    floor = floor_of(log, check=check)
    return TwinFacts(marker=floor.marker, view=floor.view, problem=floor.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the marker of a `kind` says the log comes to, which it is still to be compared with."""

    kind: Kind
    marker: Marker

    def is_due(self, view: View) -> bool:
        """Whether the view has come to the horizon."""
        return view.offset >= self.marker.horizon

    def broken_by(self, view: View) -> str | None:
        """What is wrong with it, once it is due; None if nothing is."""
        if view.offset > self.marker.horizon:
            return "nothing stands there on the log"
        if view.digest() != self.marker.digest:
            return f"it has digest {self.marker.digest}, and the log folds to digest {view.digest()}"
        return None
