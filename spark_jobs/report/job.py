"""Run the report job: read the options, write the page and its pictures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import orjson
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from equipoise.channel.core.errors import EquipoiseError, OperatorError
from equipoise.spark_jobs.archive.tables.reading import Archive, read_again
from equipoise.spark_jobs.report.figures import Report, local_zone, period_shown
from equipoise.spark_jobs.report.page import page, summary
from equipoise.spark_jobs.report.plots import Plot, plots
from equipoise.spark_jobs.report.queries import Queries, extent
from equipoise.spark_jobs.sources.beginnings import replacing
from equipoise.spark_jobs.streams.causes import spark_failed
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveFileGone, ArchiveInUse
from equipoise.spark_jobs.streams.interrupts import interruptible
from equipoise.spark_jobs.streams.options import (
    ArchiveOptions,
    AuditOptions,
    ReportOptions,
    Screen,
    default_archive,
)
from equipoise.spark_jobs.streams.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "report"

# For a failed task Spark reports a file URL. For a file missing at planning time it reports a plain
# path.
_find_unread: Final = re.compile(
    r"\[FAILED_READ_FILE\.(?P<how>\w+)\][^\n]* file:/+(?P<address>[^\n]*\.parquet)"
).search
_find_not_found: Final = re.compile(
    r"\[PATH_NOT_FOUND\][^\n]* file:/+(?P<path>[^\n]*\.parquet)"
).search
_find_causes: Final = re.compile(
    r"^Caused by: (?:[\w.$]+: )?(?P<cause>\S[^\n]*)", re.MULTILINE
).findall
_without_call: Final = re.compile(r"\AAn error occurred while calling [^\n]*\n: ")


def run_report(options: ReportOptions, screen: Screen) -> int:
    """Write the page and its pictures. Return 0: a report shows the audit's findings but does not
    fail because of them.

    With `log_url`, archive and audit the log to its end first. Raises `NotFound`, `OperatorError`,
    and what `run_archive`, `run_audit`, `made_report` and `spark_session` raise.
    """
    _check_writable(options.out)
    archive = Archive(_archive_of(options, screen))
    spark = spark_session("equipoise report", master=options.master, note=screen.note)
    screen.note(f"reading {archive.path}")
    report = interruptible(
        partial(made_report, archive, spark, options), cancel=spark.sparkContext.cancelAllJobs
    ).result()
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


def made_report(archive: Archive, spark: SparkSession, options: ReportOptions) -> Report:
    """Return the figures of the requested period. Start again if a file was compacted meanwhile.

    Raises `ArchiveDamaged`, which names the file, and `PeerError`.
    """

    def read() -> Report:
        with _failures_named(archive.path):
            return _read_report(archive, spark, options)

    return read_again(read)


def _read_report(archive: Archive, spark: SparkSession, options: ReportOptions) -> Report:
    held = extent(archive, spark)
    period = period_shown(held, options.from_ms, options.to_ms)
    archived, audited = archive.manifest("archive"), archive.manifest("audit")
    manifest = archived or audited
    assert manifest is not None, "an archive has a manifest"
    about = Report(
        archive=str(archive.path),
        url=manifest.url,
        held=held,
        period=period,
        is_archived=archived is not None,
        is_audited=audited is not None,
    )
    if period is None:
        return about
    with closing(Queries(archive, spark, period)) as queries:
        return queries.filled(about)


@contextmanager
def _failures_named(archive: Path) -> Iterator[None]:
    """Raise `ArchiveFileGone` for a missing file, `ArchiveDamaged` for an unreadable file and
    `PeerError` for all other Spark errors.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        # PySpark raises the first if it knows the error's Java class, else the second.
        raise _named(archive, str(error)) from error


def _named(archive: Path, message: str) -> EquipoiseError:
    not_found, unread = _find_not_found(message), _find_unread(message)
    if not_found is not None:
        return ArchiveFileGone(archive=str(archive), file=f"/{not_found['path']}")
    if unread is None:
        return spark_failed(JOB, _without_call.sub("", message))
    file = f"/{unquote(unread['address'])}"
    if unread["how"] == "FILE_NOT_EXIST":
        return ArchiveFileGone(archive=str(archive), file=file)
    causes = _find_causes(message)
    return ArchiveDamaged(
        archive=str(archive),
        problem=f"its file {file} cannot be read{f': {causes[-1]}' if causes else ''}",
    )


def _archive_of(options: ReportOptions, screen: Screen) -> Path:
    """Return the archive to read. If a log is named, bring the log's own archive up to date
    first.
    """
    if options.log_url is None:
        assert options.archive is not None, "the command line takes one of the two"
        return options.archive
    # Only for a log, and it takes a second to import.
    from equipoise.spark_jobs.archive.job import run_archive  # noqa: PLC0415
    from equipoise.spark_jobs.audit.job import run_audit  # noqa: PLC0415 - the same

    archive = default_archive(options.log_url)
    aside = Screen(result=screen.note, note=screen.note, is_live=screen.is_live)
    try:
        run_archive(
            ArchiveOptions(
                log_url=options.log_url, archive=archive, to_end=True, master=options.master
            ),
            aside,
        )
    except ArchiveInUse:
        screen.note(
            "an archive job of this log is running: the page covers what it has archived so far"
        )
    try:
        run_audit(
            AuditOptions(
                log_url=options.log_url, archive=archive, to_end=True, master=options.master
            ),
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
    """Check that the page can be written, before Spark works for minutes."""
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
