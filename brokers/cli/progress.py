"""How far something long has come: a bar on the standard error, where that is a terminal; elsewhere nothing.

May live here: `progress` alone. What is counted is its caller's business.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from equipoise.channel.core.snapshot_store import Progress, unwatched


@contextmanager
def progress(what: str, *, unit: str = "records") -> Iterator[Progress]:
    """A `Progress` that draws a bar for `what` while the block runs, and takes it away at its end."""
    if not sys.stderr.isatty():
        yield unwatched
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn(f"{what}  "), BarColumn(), TextColumn(f"{{task.completed:,}} {unit}"), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
