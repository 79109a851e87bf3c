"""Kill jobs with SIGKILL at their steps: before and after whatever they write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from equipoise.spark_jobs.archive import archiving
from equipoise.spark_jobs.archive import job as archive_job
from equipoise.spark_jobs.archive import run as archive_run
from equipoise.spark_jobs.audit import job as audit_job
from equipoise.spark_jobs.audit import run as audit_run
from equipoise.spark_jobs.audit.findings_out import FindingsOut
from equipoise.spark_jobs.audit.state import StateFile
from equipoise.spark_jobs.sources import tail
from equipoise.spark_jobs.streams.options import ArchiveOptions, AuditOptions
from equipoise.spark_jobs.tables.writing import Writer
from tests.repeats import times
from tests.spark.spark_logs import silent, tables, write_log

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1_200)]

STEPS = (
    (StateFile, "commit"),
    (StateFile, "delivered"),
    (FindingsOut, "put"),
    (Writer, "_written"),
    (Writer, "_commit"),
)


HOSTS = {
    "plain": (audit_run.run_audit, archive_run.run_archive),
    "spark": (audit_job.run_audit, archive_job.run_archive),
}


def run(job: str, host: str, url: str, archive: str, kill_at: int = 0) -> None:
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
        patched.enter_context(patch.multiple(tail, ENTRIES_MAX=100, IN_SPARK_ENTRIES_MAX=100))
        patched.enter_context(patch.multiple(archiving, WRITE_BYTES=1, STATE_RECORDS=100))
        options: Any = {"log_url": url, "archive": archive, "to_end": True}
        if job == "audit":
            HOSTS[host][0](AuditOptions(**options), silent())
        else:
            HOSTS[host][1](ArchiveOptions(**options), silent())


@pytest.mark.repeats
@pytest.mark.parametrize("job", ["audit", "archive"])
def test_a_process_that_is_killed_at_any_step_loses_and_doubles_nothing(
    job: str, tmp_path: Path
) -> None:
    """Each process continues after the one before, and is killed some steps later."""
    kills = count(1, times(4, many=1))
    assert killed(job, "plain", tmp_path, kills) > len(STEPS)


@pytest.mark.soak
@pytest.mark.usefixtures("spark")  # Where there is no Java it is skipped with the others.
@pytest.mark.parametrize("job", ["audit", "archive"])
def test_a_driver_that_is_killed_loses_and_doubles_nothing(job: str, tmp_path: Path) -> None:
    never = 10_000
    assert never == killed(job, "spark", tmp_path, iter((11, never)))


def killed(job: str, host: str, folder: Path, kills: Iterator[int]) -> int:
    """Run a job in processes that are killed at these steps, until one ends. Return the last step.

    The tables are then those of an undisturbed run.
    """
    url = f"sqlite:{folder}/log"
    write_log(url, records=300)
    run(job, "plain", url, str(folder / "whole"))
    program = [sys.executable, "-m", "tests.integration.spark.test_kills", job, host, url]
    for kill_at in kills:
        ended = subprocess.run([*program, folder / "cut", str(kill_at)], check=False).returncode
        if not ended:
            break
        assert -signal.SIGKILL == ended
    assert tables(folder / "whole", job) == tables(folder / "cut", job)
    return kill_at


if __name__ == "__main__":
    _, name, place, log, archive_folder, last = sys.argv
    run(name, place, log, archive_folder, int(last))
