"""Test an archive in object storage, against an S3 server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.free_ports import free_ports
from equipoise.spark_jobs.archive.run import ArchiveRun
from equipoise.spark_jobs.audit.findings_table import open_findings
from equipoise.spark_jobs.audit.reporting import Reach
from equipoise.spark_jobs.plain import archive as plain
from equipoise.spark_jobs.plain.audit import run_audit
from equipoise.spark_jobs.plain.reading import Tail
from equipoise.spark_jobs.report.job import made_report
from equipoise.spark_jobs.sequence.rows import Positions, Table
from equipoise.spark_jobs.sources.reading import Batch
from equipoise.spark_jobs.streams.errors import ArchiveInUse
from equipoise.spark_jobs.streams.options import ArchiveOptions, AuditOptions, ReportOptions, Screen
from equipoise.spark_jobs.tables import delta, writing
from tests.spark.archived import writer_of
from tests.spark.spark_logs import WrittenStream
from tests.unit.spark.test_archiving import archive, rows_of, run, write_log


def use(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Name the object storage at a port of this machine."""
    settings = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def answers(port: int) -> bool:
    """Return whether a server listens."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Serve object storage in a process of its own, because `deltalake` waits for it with Python's
    lock.
    """
    (port,) = free_ports(1)
    use(monkeypatch, port)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            give_up_s = time.monotonic() + 60
            while not answers(port):
                assert time.monotonic() < give_up_s
                time.sleep(0.1)
            yield running
        finally:
            running.kill()


@pytest.fixture
def bucket(server: subprocess.Popen[bytes]) -> str:
    """Make an empty bucket. Return its URL."""
    place = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    with urlopen(Request(f"http://{place}/archives", method="PUT")):
        return "s3://archives/one"


def test_an_archive_in_object_storage_has_the_same_rows(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a restart, and with joined files."""
    url = write_log(tmp_path, 120)
    archive(url, tmp_path / "archive")
    monkeypatch.setattr(writing, "FILES_MAX", 3)
    with pytest.raises(StopIteration):
        archive(url, bucket, cuts=iter([30, 30]))
    archive(url, bucket, cuts=iter([30] * 9))
    assert rows_of(tmp_path / "archive") == rows_of(bucket)
    run(ArchiveOptions(log_url=url, archive=bucket, to_end=True))
    assert rows_of(tmp_path / "archive")[Table.RECORDS] == rows_of(bucket)[Table.RECORDS]


def test_an_audit_keeps_its_findings_and_its_reach_in_object_storage(
    bucket: str, tmp_path: Path
) -> None:
    """A report then knows how far the audit came."""
    url = f"sqlite:{tmp_path}/log.db"
    with closing(open_log(url)) as log:
        stream = WrittenStream(log, bundles=8, brokers=3)
        stream.go_on(100)
        end = stream.garbage()
    archive(url, bucket)
    report = ReportOptions(out=tmp_path / "page.html", archive=bucket)
    assert made_report(report, bucket).reach is None
    for found in (1, 0):
        options = AuditOptions(log_url=url, archive=bucket, to_end=True)
        assert found == run_audit(options, Screen(result=print, note=print))
    report_of = made_report(report, bucket)
    assert (Reach(audited=end, end=end), True, 1) == (
        report_of.reach,
        report_of.is_whole,
        report_of.findings.count,
    )
    with (
        pytest.raises(OperatorError, match="belongs to the log"),
        open_findings(bucket, log="another", url=url),
    ):
        pass


def test_a_second_writer_in_object_storage_is_refused_at_its_first_commit(bucket: str) -> None:
    with writer_of(bucket) as first:
        first.save_state({"key": b"1"})
        with writer_of(bucket) as second:
            first.save_state({"key": b"2"})
            with pytest.raises(ArchiveInUse):
                second.save_state({"key": b"3"})
        assert {"key": b"2"} == first.state()


def test_object_storage_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, 9)
    options = ArchiveOptions(log_url=write_log(tmp_path, 20), archive="s3://away/x", to_end=True)
    with pytest.raises(PeerError, match="the archive s3://away/x does not answer"):
        plain.run_archive(options, Screen(result=print, note=print))


def test_object_storage_that_goes_away_and_comes_back_has_every_row(
    bucket: str,
    server: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a live archive. What was asked of it meanwhile is done late."""
    url, outages, after = write_log(tmp_path, 40), list[str](), Tail.after
    monkeypatch.setattr(plain, "BATCH_S", 0.0)
    monkeypatch.setitem(delta._PATIENCE, "timeout", "1s")  # noqa: SLF001 - not to wait for long

    def stop_server(_run: ArchiveRun, _rows: object) -> None:
        if not outages:
            server.send_signal(signal.SIGSTOP)
            with closing(open_log(url)) as log:
                log.append([b"later"], timeout_ms=5_000)

    def note(line: str) -> None:
        if "does not answer" in line:
            outages.append(line)
            server.send_signal(signal.SIGCONT)

    def until_all_is_archived(tail: Tail, position: Positions) -> Batch | None:
        batch = after(tail, position)
        if outages and batch is not None and not batch.arrivals:
            raise KeyboardInterrupt
        return batch

    monkeypatch.setattr(ArchiveRun, "written", stop_server)
    monkeypatch.setattr(Tail, "after", until_all_is_archived)
    with pytest.raises(KeyboardInterrupt):
        plain.run_archive(
            ArchiveOptions(log_url=url, archive=bucket), Screen(result=print, note=note)
        )
    assert outages[0].startswith("the batch is repeated: the object storage of the archive")
    archive(url, tmp_path / "archive")
    assert rows_of(tmp_path / "archive")[Table.RECORDS] == rows_of(bucket)[Table.RECORDS]
