"""Define `equipoise channel export`, `import` and `copy`.

`compaction.exporting`, `compaction.importing` and `compaction.copying` do the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from equipoise.brokers.cli.options import (
    TIMEOUT_S,
    AsOption,
    ErrorsAsJsonOption,
    JsonOption,
    LogOption,
    TimeoutOption,
    handle,
    publisher,
    shared,
)
from equipoise.brokers.cli.outcome import output_failed
from equipoise.brokers.cli.output import print_fact
from equipoise.brokers.cli.progress import progress
from equipoise.brokers.errors import counted
from equipoise.channel.core.log import Log
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.channel.log.open_log import log_path
from equipoise.channel.system.deadline import Deadline

_STREAM: Final = "-"

FromUrlArgument = Annotated[
    str, typer.Argument(metavar="FROM_URL", help="The cluster's present log.", show_default=False)
]
ToUrlArgument = Annotated[
    str,
    typer.Argument(
        metavar="TO_URL", help="The new log. It must not exist, or be empty.", show_default=False
    ),
]


class ExportFormat(StrEnum):
    """The formats of exported records."""

    JSONL = "jsonl"


def export(
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE]",
            help="File to create; compressed if its name ends in .zst.  [default: standard output]",
            show_default=False,
        ),
    ] = _STREAM,
    *,
    log: LogOption,
    form: Annotated[
        ExportFormat, typer.Option("--format", help="Output format: one JSON object per line.")
    ] = ExportFormat.JSONL,
    start: Annotated[
        int,
        typer.Option(
            "--from", min=0, max=INTEGER_MAX, metavar="OFFSET", help="First offset to export."
        ),
    ] = 0,
    zstd: Annotated[
        bool,
        typer.Option("--zstd", help="Compress the output, even if its name does not end in .zst."),
    ] = False,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: ErrorsAsJsonOption = False,
) -> None:
    """Export every record and the verdict on it, as lines of JSON.

    `import` restores the log from it byte by byte, but not from a partial export (--from).
    """
    from equipoise.compaction.compressed import is_compressed, written
    from equipoise.compaction.exporting import exported

    assert form is ExportFormat.JSONL, "there is no other form"
    del as_json  # The output is always JSON.
    check = partial(Deadline.after(timeout_ms=timeout * 1_000).check, f"the export of {log}")
    with handle(log) as exported_log, progress("exporting") as watch:
        lines = exported(exported_log, first=start, check=check, progress=watch)
        with _written(file) as raw, written(raw, compressed=zstd or is_compressed(file)) as stream:
            for line in lines:
                stream.write(line)


def import_export(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="An export, compressed or not; - reads standard input.",
            show_default=False,
        ),
    ],
    to: ToUrlArgument,
    *,
    ahead: Annotated[
        int | None,
        typer.Option(
            "--ahead",
            min=0,
            max=INTEGER_MAX // 4,
            metavar="OFFSETS",
            help=(
                "First offset of the new log on Kafka, counted from the end of the export. "
                " [default: 1,000,000,000]"
            ),
        ),
    ] = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Create a log from an export.

    Checks all digests. On SQLite the new log has the same records at the same offsets. On Kafka it
    is a copy of the state at the end of the export. Its offsets then start far above: records
    appended after the export are missing, and no fencing token may be issued twice.
    """
    from equipoise.compaction.compressed import lines
    from equipoise.compaction.importing import AHEAD, import_to

    with _read(file) as raw, progress("importing") as watch:
        imported = import_to(
            shared(to),
            lines(raw),
            file=file,
            deadline=Deadline.after(timeout_ms=timeout * 1_000),
            ahead=AHEAD if ahead is None else ahead,
            progress=watch,
        )
    how = (
        "the same log"
        if imported.same
        else f"a copy of the channel, whose offsets go on above {imported.base}"
    )
    what = (
        f"{counted(imported.entries, 'record')} up to offset {imported.offset}, digest"
        f" {imported.digest}"
    )
    sentence = f"imported {file} to {to}: {what}; it is {how}"
    print_fact(sentence, {"to": to, **asdict(imported)}, as_json=as_json)


def copy(
    source: FromUrlArgument,
    to: ToUrlArgument,
    *,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat a copy that closed the old log and did not finish."),
    ] = False,
    other_is_lost: Annotated[
        bool,
        typer.Option(
            "--other-is-lost",
            help="With --again: the first target is lost for good; copy to another one.",
        ),
    ] = False,
    name: AsOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Copy a channel to another log, and close the old one.

    Use it to move a cluster from SQLite to Kafka, or back. Stop all brokers first: the command
    waits for a broker that looks alive, and fails if that broker appends a record. Then start the
    brokers on the new log. They find the same namespaces, bundles and policies, and all new fencing
    tokens are above the old ones.
    """
    from equipoise.compaction.copying import copy as copy_channel

    deadline = Deadline.after(timeout_ms=timeout * 1_000)
    with (
        handle(source) as old,
        _target(to) as (new, name_target),
        progress("reading the old log") as watch,
    ):
        done = copy_channel(
            old,
            new,
            publisher=publisher(name),
            deadline=deadline,
            again=again,
            other_is_lost=other_is_lost,
            name_target=name_target,
            progress=watch,
        )
    held = (
        f"{counted(done.namespaces, 'namespace')}, {counted(done.bundles, 'bundle')},"
        f" {counted(done.brokers, 'broker')}"
    )
    declared_dead = (
        f"; declared down, because silent: {', '.join(done.declared_dead)}"
        if done.declared_dead
        else ""
    )
    only = "; let brokers work on one copy only" if other_is_lost else ""
    sentence = (
        f"copied cluster {done.cluster} to {to}: {held}, above offset {done.base}; {source} is"
        f" closed{declared_dead}{only}"
    )
    print_fact(
        sentence,
        {"from": source, "to": to, **asdict(done), "digest": f"0x{done.digest:016x}"},
        as_json=as_json,
    )


@contextmanager
def _target(url: str) -> Iterator[tuple[Log, Callable[[], Log] | None]]:
    """Open the log to copy to.

    For a new log also yield the function that gives it its name. Without that call the new log is
    removed.
    """
    from equipoise.compaction.importing import made_aside

    path = log_path(shared(url))
    if path is None or os.path.lexists(path):
        with handle(url, create=True) as log:
            yield log, None
    else:
        with made_aside(url) as aside:
            yield aside.log, aside.named


def _path(file: str) -> Path:
    path = Path(file)
    try:
        os.fsencode(path)
        is_there = path.is_file()
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file!r:.200} is no file: {error}") from error
    if not path.name or (path.exists() and not is_there):
        raise typer.BadParameter(f"{file!r} is no file; name a file")
    return path


@contextmanager
def _read(file: str) -> Iterator[BinaryIO]:
    """Open standard input or an existing file."""
    if file == _STREAM:
        yield sys.stdin.buffer
        return
    path = _path(file)
    if not path.exists():
        raise typer.BadParameter(
            f"there is no file {file}; name an export, or - for the standard input"
        )
    try:
        stream = path.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from error
    with stream:
        yield stream


@contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    """Open standard output, or a file that gets its name once it is complete. A failed export
    leaves no file.

    Raises `OperatorError`.
    """
    if file == _STREAM:
        yield sys.stdout.buffer
        return
    path = _path(file)
    _check_free(path, file)
    if not path.parent.is_dir():
        raise typer.BadParameter(
            f"there is no folder {path.parent}; create it, or name a file in another one"
        )
    # Unique, because another export to the same file may be running.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            try:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                _check_free(path, file)
            except BaseException:
                part.unlink()
                raise
        part.replace(path)
    except OSError as error:
        raise output_failed(file, error) from error


def _check_free(path: Path, file: str) -> None:
    """Raise `typer.BadParameter` if the file exists."""
    if path.exists():
        raise typer.BadParameter(
            f"there is a file {file}, which may be a backup; remove it, or name another one"
        )
