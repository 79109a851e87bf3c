"""Run the report job: read the options, write the page and its pictures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import tzinfo
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.audit.reporting import reach_in
from equipoise.spark_jobs.report.figures import Report, local_zone, period_shown
from equipoise.spark_jobs.report.page import page, summary
from equipoise.spark_jobs.report.plots import Plot, plots
from equipoise.spark_jobs.report.queries import Queries, extent, opened
from equipoise.spark_jobs.sources.beginnings import replacing
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveInUse
from equipoise.spark_jobs.streams.options import (
    ArchiveOptions,
    AuditOptions,
    ReportOptions,
    Screen,
    default_archive,
)
from equipoise.spark_jobs.tables.reading import Tables


def run_report(options: ReportOptions, screen: Screen) -> int:
    """Write the page and its pictures. Return 0: a report shows the audit's findings but does not
    fail because of them.

    With `log_url`, archive and audit the log to its end first. Raises `NotFound`, `OperatorError`,
    and what `run_archive`, `run_audit` and `made_report` raise.
    """
    _check_writable(options.out)
    archive = _archive_of(options, screen)
    screen.note(f"reading {archive}")
    report = made_report(options, archive)
    screen.note("drawing")
    zone = _zone(report)
    drawn = plots(report, zone)
    text = page(report, drawn, zone=zone, written_ms=time.time_ns() // 1_000_000)
    pictures = _write(options.out, text, drawn)
    if options.as_json:
        about = {
            "page": str(options.out),
            "pictures": [str(path) for path in pictures],
            **summary(report),
        }
        screen.result(orjson.dumps(about).decode())
    else:
        screen.result(
            f"wrote {options.out}, and {len(pictures)} pictures in {_pictures_of(options.out)}"
            if pictures
            else f"wrote {options.out}; there was nothing to draw"
        )
    return 0


def made_report(options: ReportOptions, place: str | Path) -> Report:
    """Return the figures of the requested period of the archive at `place`.

    Raises `NotFound`, and `ArchiveDamaged`, which names the file.
    """
    tables = Tables(place)
    with _failures_named(place), opened(tables) as db:
        held = extent(db)
        period = period_shown(held, options.from_ms, options.to_ms)
        about = Report(
            archive=str(place),
            url=tables.url or "URL",
            held=held,
            period=period,
            is_archived=tables.is_written("archive"),
            is_audited=tables.is_written("audit"),
            reach=reach_in(place),
        )
        return about if period is None else Queries(db, period).filled(about)


@contextmanager
def _failures_named(archive: str | Path) -> Iterator[None]:
    """Raise `ArchiveDamaged` for an unreadable file. DuckDB names it."""
    try:
        yield
    except (pa.ArrowException, duckdb.InvalidInputException) as error:
        raise ArchiveDamaged(archive=str(archive), problem=str(error)) from error


def _archive_of(options: ReportOptions, screen: Screen) -> str | Path:
    """Return the archive to read. If a log is named, bring the log's own archive up to date
    first.
    """
    if options.log_url is None:
        assert options.archive is not None, "the command line takes one of the two"
        return options.archive
    # Only for a log.
    from equipoise.spark_jobs.plain.archive import run_archive  # noqa: PLC0415
    from equipoise.spark_jobs.plain.audit import run_audit  # noqa: PLC0415

    archive = default_archive(options.log_url)
    aside = Screen(result=screen.note, note=screen.note, is_live=screen.is_live)
    try:
        run_archive(
            ArchiveOptions(log_url=options.log_url, archive=archive, to_end=True),
            aside,
        )
    except ArchiveInUse:
        screen.note(
            "an archive job of this log is running: the page covers what it has archived so far"
        )
    try:
        run_audit(
            AuditOptions(log_url=options.log_url, archive=archive, to_end=True),
            aside,
        )
    except ArchiveInUse:
        screen.note("an audit of this log is running: the page shows what it has found so far")
    return archive


def _zone(report: Report) -> tzinfo:
    """Return the local zone at the end of the period shown."""
    shown = report.period or report.held
    return local_zone(time.time_ns() // 1_000_000 if shown is None else shown.to_ms)


def _check_writable(out: Path) -> None:
    """Check that the page can be written, before a log is archived for minutes."""
    if not out.parent.is_dir():
        raise _unwritable(out, f"there is no folder {out.parent}")
    # The page replaces an existing file, which must not be a device.
    if out.exists() and not out.is_file():
        raise _unwritable(out, "it is not an ordinary file")


def _unwritable(path: Path, problem: str) -> OperatorError:
    return OperatorError(f"{path} cannot be written: {problem}; name another file with --out")


def _pictures_of(out: Path) -> Path:
    return out.with_name(f"{out.stem}-plots")


def _write(out: Path, text: str, drawn: tuple[Plot, ...]) -> list[Path]:
    """Write the page, and each picture as a PNG file in the folder named after it. Return the
    pictures' paths.
    """
    folder = _pictures_of(out)
    pictures = []
    writing = out
    try:
        if drawn:
            writing = folder
            folder.mkdir(exist_ok=True)
        for plot in drawn:
            writing = folder / f"{plot.name}.png"
            writing.write_bytes(plot.light)
            pictures.append(writing)
        writing = out.with_name(f".{out.name}.part")
        with replacing(out, part=writing) as file:
            file.write(text.encode())
    except OSError as error:
        raise _unwritable(writing, error.strerror or str(error)) from error
    return pictures
