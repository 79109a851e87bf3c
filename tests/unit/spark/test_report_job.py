"""The report as a job, as far as it goes without Spark: what it asks of the jobs that bring an archive up to its log's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.spark_jobs.archive import job as archive
from equipoise.spark_jobs.archive.tables.manifest import Manifest, Store, write_manifest
from equipoise.spark_jobs.audit import job as audit
from equipoise.spark_jobs.report.job import run_report
from equipoise.spark_jobs.streams.archive_errors import NoArchive
from equipoise.spark_jobs.streams.options import ArchiveOptions, AuditOptions, ReportOptions, Screen, default_archive

SILENT = Screen(result=list[str]().append, note=list[str]().append)


@pytest.mark.parametrize("store", ["parquet", "delta", None])
def test_an_archive_is_gone_on_with_in_its_own_form(store: Store | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--log` the archive beside the log stays what it is, Parquet files or Delta tables; a new one is of Parquet files."""
    url = f"sqlite:{tmp_path}/channel.db"
    if store is not None:
        default_archive(url).mkdir()
        write_manifest(default_archive(url), Manifest(writer="archive", log="log", url=url, store=store))
    asked: list[ArchiveOptions] = []

    def run_archive(options: ArchiveOptions, _screen: Screen) -> int:
        asked.append(options)
        raise NoArchive(archive="far enough")

    def run_audit(options: AuditOptions, _screen: Screen) -> int:
        raise AssertionError(options)

    monkeypatch.setattr(archive, "run_archive", run_archive)
    monkeypatch.setattr(audit, "run_audit", run_audit)
    with pytest.raises(NoArchive, match="far enough"):
        run_report(ReportOptions(out=tmp_path / "page.html", log_url=url), SILENT)
    assert [store == "delta"] == [options.delta for options in asked]
