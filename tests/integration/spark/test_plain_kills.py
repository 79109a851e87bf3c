"""Kill the plain processes with SIGKILL at their steps: before and after whatever they write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from equipoise.spark_jobs.archive import archiving
from equipoise.spark_jobs.audit.findings_out import FindingsOut
from equipoise.spark_jobs.audit.state import StateFile
from equipoise.spark_jobs.plain import reading
from equipoise.spark_jobs.plain.archive import run_archive
from equipoise.spark_jobs.plain.audit import run_audit
from equipoise.spark_jobs.streams.options import ArchiveOptions, AuditOptions
from equipoise.spark_jobs.tables.writing import Writer
from tests.repeats import times
from tests.spark.spark_kills import silent, tables, write_log

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1_200)]

STEPS = (
    (StateFile, "commit"),
    (StateFile, "delivered"),
    (FindingsOut, "put"),
    (Writer, "_written"),
    (Writer, "_commit"),
)


def run(job: str, url: str, archive: str, kill_at: int = 0) -> None:
    """Run a job to the log's end in many batches. End this process at its step `kill_at`."""
    left = kill_at

    def step() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def stepping(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object, **named: object) -> object:
            step()
            done = method(*arguments, **named)
            step()
            return done

        return call

    with ExitStack() as patched:
        for owner, name in STEPS:
            patched.enter_context(patch.object(owner, name, stepping(getattr(owner, name))))
        patched.enter_context(patch.object(reading, "ENTRIES_MAX", 100))
        patched.enter_context(patch.multiple(archiving, WRITE_BYTES=1, STATE_RECORDS=100))
        if job == "audit":
            run_audit(AuditOptions(log_url=url, archive=archive, to_end=True), silent())
        else:
            run_archive(ArchiveOptions(log_url=url, archive=archive, to_end=True), silent())


@pytest.mark.repeats
@pytest.mark.parametrize("job", ["audit", "archive"])
def test_a_process_that_is_killed_at_any_step_loses_and_doubles_nothing(
    job: str, tmp_path: Path
) -> None:
    """Each process continues after the one before, and is killed some steps later."""
    url = f"sqlite:{tmp_path}/log"
    write_log(url, records=300)
    run(job, url, str(tmp_path / "whole"))
    program = [sys.executable, "-m", "tests.integration.spark.test_plain_kills", job, url]
    for kill_at in count(1, times(4, many=1)):
        ended = subprocess.run([*program, tmp_path / "cut", str(kill_at)], check=False).returncode
        if not ended:
            break
        assert -signal.SIGKILL == ended
    assert kill_at > len(STEPS)
    assert tables(tmp_path / "whole", job) == tables(tmp_path / "cut", job)


if __name__ == "__main__":
    _, name, log, folder, last = sys.argv
    run(name, log, folder, int(last))
