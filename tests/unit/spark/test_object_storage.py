"""Test an archive in object storage, against an S3 server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from equipoise.channel.core.errors import PeerError
from equipoise.channel.system.free_ports import free_ports
from equipoise.spark_jobs.plain import archive as plain
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.errors import ArchiveInUse
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.tables import writing
from tests.spark.archived import writer_of
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
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve an empty bucket in a process of its own, because `deltalake` waits for it with
    Python's lock. Yield its URL.
    """
    (port,) = free_ports(1)
    use(monkeypatch, port)
    server = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(server, stderr=subprocess.DEVNULL) as running:
        try:
            give_up_s = time.monotonic() + 60
            while not answers(port):
                assert time.monotonic() < give_up_s
                time.sleep(0.1)
            url = f"http://127.0.0.1:{port}/archives"
            with urlopen(Request(url, method="PUT")):
                yield "s3://archives/one"
        finally:
            running.kill()


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
