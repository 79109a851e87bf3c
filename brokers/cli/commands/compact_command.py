"""Define `equipoise channel compact`.

`compaction.compactor` does the work.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.brokers.cli.options import JsonOption, LogOption, TimeoutOption, handle
from equipoise.brokers.cli.output import print_fact
from equipoise.brokers.cli.progress import progress
from equipoise.brokers.cli.standard_input import StopOnEofOption, end_with_standard_input
from equipoise.brokers.errors import counted
from equipoise.channel.system.deadline import Deadline
from equipoise.compaction.retention import (
    COMPACT_S_MAX,
    RETAIN_BY_DEFAULT,
    WAIT_MS_MAX,
    parse_retention,
)

if TYPE_CHECKING:
    from equipoise.compaction.compactor import Compacted


def compact(
    *,
    log: LogOption,
    retain: Annotated[
        str,
        typer.Option(
            metavar="HOW_MUCH",
            help=(
                "History to keep: a time (7d, 12h), a size (64MiB), or a number of offsets ('10000"
                " offsets')."
            ),
        ),
    ] = RETAIN_BY_DEFAULT,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what would be written and removed, and change nothing."
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Fail if the log belongs to another cluster.", show_default=False
        ),
    ] = None,
    timeout: TimeoutOption = COMPACT_S_MAX,
    stop_on_eof: StopOnEofOption = False,
    as_json: JsonOption = False,
) -> None:
    """Shorten the log without changing its state.

    Writes the present state to the log's snapshot, from which readers then start, and removes older
    records. Keeps what --retain names, and always the newest ten minutes. The leader compacts
    automatically; this command does it now.
    """
    from equipoise.compaction.compactor import compact as compact_log

    if stop_on_eof:
        end_with_standard_input()
    kept = parse_retention(retain)
    deadline = Deadline.after(timeout_ms=timeout * 1_000)
    with handle(log) as opened, progress("folding") as watch:
        done = compact_log(
            opened,
            retain=kept,
            timeout_ms=WAIT_MS_MAX,
            cluster=cluster,
            dry_run=dry_run,
            check=lambda: deadline.check(f"the compaction of {log}"),
            progress=watch,
        )
    print_fact(_sentence(log, done), {"log": log, **asdict(done)}, as_json=as_json)


def _sentence(log: str, done: Compacted) -> str:
    if done.horizon is None:
        return f"no broker has begun {log}: there is nothing to compact"
    writes, removes = ("would write", "would begin") if done.dry_run else ("wrote", "now begins")
    written = (
        f"{writes} {counted(done.rows, 'row')} and {counted(done.tombstones, 'tombstone')}"
        if done.rows or done.tombstones
        else None
    )
    what = written or (
        "the snapshot is up to date" if not done.records else f"{writes} the marker alone"
    )
    kept = (
        f"the log {removes} at offset {done.start}, instead of {done.start_before}"
        if done.start != done.start_before
        else (
            "nothing is removed: the newest ten minutes before the last record, and what --retain"
            " names, are kept"
        )
    )
    held = (
        f"; more is kept for the archive {done.held_by}, which has not read it"
        if done.held_by is not None
        else ""
    )
    lapsed = (
        f"; nothing is kept any longer for {', '.join(done.lapsed)}, whose hold has lapsed"
        if done.lapsed
        else ""
    )
    clock = (
        f"; the record at offset {done.ahead} has a time ahead of this machine's clock"
        if done.ahead is not None
        else ""
    )
    return (
        f"folded {counted(done.records, 'record')} up to offset {done.horizon}; {what};"
        f" {kept}{held}{lapsed}{clock}"
    )
