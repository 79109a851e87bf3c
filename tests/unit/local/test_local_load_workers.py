"""The load workers of a local cluster, whose processes end at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.local.local_broker import Program
from equipoise.brokers.local.local_load_workers import LocalLoadWorkers

PATIENCE_S = 60.0


@pytest.mark.parametrize(
    ("code", "restarts"),
    [(ExitCode.USAGE, False), (ExitCode.UNAVAILABLE, True), (ExitCode.OPERATOR, True)],
)
def test_a_load_worker_with_wrong_settings_is_not_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ExitCode, restarts: bool
) -> None:
    """Its settings stay as they are, so that it would end again and again. Whatever else ends it
    may pass.
    """
    started = list[int]()

    def ending(
        output: Program, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"raise SystemExit({code:d})"], stdin=subprocess.PIPE
        )
        started.append(process.pid)
        return process

    is_over = threading.Event()

    def report(text: str, details: Mapping[str, str | int | None]) -> None:
        if (
            "is not restarted: nothing is balanced until you correct its settings" in text
            or len(started) == 2
        ):
            is_over.set()

    monkeypatch.setattr(Program, "of_process", ending)
    workers = LocalLoadWorkers(
        tmp_path, count=1, log_url="kafka://nowhere:1/topic", environment={}, report=report
    )
    try:
        workers.start()
        assert is_over.wait(PATIENCE_S)
        assert (2 if restarts else 1) == len(started)
    finally:
        workers.stop()
