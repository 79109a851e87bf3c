"""The streaming audit on a standalone cluster of two workers that have nothing of ours but a packed
environment, and share nothing with the driver but a folder for the archive.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.audit.reporting import Reach, reach_in
from equipoise.spark_jobs.streams.connector import connector_jars
from tests.house.house_rules import ROOT
from tests.integration.spark.conftest import lacking
from tests.kafka.fixtures import Kafka
from tests.spark.spark_kills import findings
from tests.spark.spark_logs import WrittenStream
from tests.spark.two_workers import forwarded

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1_200)]

WAIT_S_MAX = 600.0
UNUSED = (
    *("*duckdb*", "fontTools", "matplotlib", "PIL", "pillow.libs", "__pycache__"),
    *("tests", "include", "*.pyx"),
)


def done(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a command, which must succeed."""
    run = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert 0 == run.returncode, run.stderr
    return run.stdout


@pytest.fixture
def packed_environment(tmp_path: Path) -> Path:
    """A packed environment as the documentation says, with the wheel and the locked versions."""
    uv = (sys.executable, "-m", "uv")
    done(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    locked = tmp_path / "locked.txt"
    locked.write_text(
        done(
            *(*uv, "export", "-q", "--frozen", "--no-emit-project", "--no-hashes", "--no-dev"),
            *("--extra", "kafka", "--extra", "spark"),
        ),
        encoding="utf-8",
    )
    environment = tmp_path / "environment"
    done(*uv, "venv", "--quiet", "--python", sys.executable, environment)
    done(
        # Without their dependencies, which are all there: to resolve them takes a minute.
        *(*uv, "pip", "install", "--quiet", "--no-deps", "--python", environment),
        *("-r", locked, wheel),
    )
    packed = tmp_path / "environment.tar.gz"
    # What this job's workers do not import is half of it.
    excluded = [f"--exclude={name}" for name in ("pyspark", *UNUSED)]
    done("tar", "-I", "gzip -1", "-cf", packed, *excluded, "-C", environment, ".")
    shutil.rmtree(environment)
    return packed


def until(met: Callable[[], bool], what: str, log: Path) -> None:
    """Wait for a condition, unless the audit ends."""
    end = time.monotonic() + WAIT_S_MAX
    while not met():
        is_over = time.monotonic() > end or "error: " in log.read_text()
        assert not is_over, f"{what} did not happen:\n{log.read_text()}"
        time.sleep(0.2)


@contextmanager
def auditing(shared: Path, command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run an audit beside the cluster; its output goes to `shared/said`."""
    unshare = ["unshare", "--net", "--mount", "--fork", "--kill-child"]
    if os.geteuid():
        unshare = ["unshare", "--user", "--map-root-user", *unshare[1:]]
    cluster = [*unshare, sys.executable, "-m", "tests.spark.two_workers", str(shared)]
    with (shared / "said").open("wb") as said:
        running = subprocess.Popen(
            [*cluster, str(ROOT), sys.prefix, "--", *command],
            cwd=ROOT,
            env={**os.environ, "KAFKA": str(port)},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield running
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def test_an_audit_goes_on_when_a_worker_is_killed(
    kafka: Kafka, tmp_path: Path, packed_environment: Path
) -> None:
    if not all(map(shutil.which, ("unshare", "ip", "java", "mvn"))):
        lacking(RuntimeError("the machine lacks unshare, ip, java or mvn"))
    connector_jars()
    shared, topic = tmp_path / "shared", kafka.topic("cluster")
    shared.mkdir()
    archive, said = shared / "archive", shared / "said"
    kafka.topics.append(f"{topic}-findings")
    url, port = f"kafka://{kafka.address}/{topic}", int(kafka.address.rpartition(":")[2])
    program = f"{Path(sys.executable).parent}/equipoise"
    audit = f"{program} spark audit --master $MASTER --log {url} --archive {archive}"
    line = f"exec {audit} --environment {packed_environment}"
    with (
        closing(open_log(url)) as log,
        forwarded(shared / "kafka", port),
        auditing(shared, ["sh", "-c", line], port) as running,
    ):
        stream = WrittenStream(log)
        stream.go_on(2_000)
        first = stream.garbage()
        until(lambda: f"malformed at {first}" in said.read_text(), "the first finding", said)
        worker = int((shared / "worker-1").read_text())
        stream.go_on(2_000)
        os.kill(worker, signal.SIGKILL)
        stream.go_on(2_000)
        last = stream.garbage()
        until(lambda: f"malformed at {last}" in said.read_text(), "the last finding", said)
        whole = Reach(audited=last, end=last)
        until(lambda: whole == reach_in(archive), "the end of the last batch", said)
        assert running.poll() is None
    assert [first, last] == [row["log_offset"] for row in findings(archive)]
