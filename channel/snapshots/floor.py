"""The floor of a log, as its readers find it: the view from which all that is left of the log can be told.

May live here: the look at a floor. How it is moved is told in `compaction.floor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.channel.core.errors import LogAccessDenied, LogDamaged, TwinDamaged, UnfitTopic
from equipoise.channel.core.log import Log
from equipoise.channel.core.twin import LOADS_MAX, Check, Progress, unchecked, unwatched
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.twin_rows import Marker, decode_marker, view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a log has of a floor: `marker` and `view` if the log leads on from it, and the `problem` if it is damaged.

    `rows` are what it holds, also one that cannot be used. One that the log's beginning has passed is no use, and no damage.
    """

    rows: Mapping[str, bytes] = field(default_factory=dict)
    marker: Marker | None = None
    view: View | None = None
    problem: str | None = None


def floor_of(log: Log, *, check: Check = unchecked, progress: Progress = unwatched) -> Floor:
    """The floor of a log. Raises what `check` raises, and what `Log.start` and `Twin.load` raise, but for damage and what cannot be had."""
    floor = Floor()
    for _ in range(LOADS_MAX):
        start = log.start()  # Before the load: a floor is moved before the log is cut, so one below this is no floor any more.
        try:
            image = log.floor().load(check=check, progress=progress)
            if image is None:
                return Floor()
            floor = Floor(rows=image.rows)
            marker = decode_marker(image.marker)
            if marker.log != log.identity or marker.position < start:
                return floor
            view = view_of(image, check=check)
        except (TwinDamaged, LogDamaged) as error:
            floor = Floor(rows=floor.rows, problem=error.problem)
            continue
        except (LogAccessDenied, UnfitTopic) as error:  # Whoever moves the floor cannot do without; whoever only looks back can.
            return Floor(problem=str(error))
        if marker.position >= log.start():
            return Floor(rows=image.rows, marker=marker, view=view)
    return floor
