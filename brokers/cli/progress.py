"""Show a progress bar on standard error if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from equipoise.channel.core.snapshot_store import Progress, unwatched


@contextmanager
def progress(what: str, *, unit: str = "records") -> Iterator[Progress]:
    """Draw a progress bar for `what` while the block runs, then remove it."""
    if not sys.stderr.isatty():
        yield unwatched
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn(f"{what}  "),
        BarColumn(),
        TextColumn(f"{{task.completed:,}} {unit}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
