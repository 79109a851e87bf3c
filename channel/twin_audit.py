"""What can be said of a log's twin by itself, whatever the log says.

May live here: the looks that `channel.verify` takes at a twin. What a twin should hold is told in `channel.twin_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

from channel.errors import LogDamaged, TwinDamaged
from channel.log import Log
from channel.twin import Check
from channel.twin_rows import Marker, check_log, decode_marker, view_of
from channel.view import View


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
