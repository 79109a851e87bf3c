"""Load workers as processes, for tests on a real Kafka."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

STARTED: Final = "load worker started"
SHARED_OUT: Final = "load worker has partitions"

_START_S: Final = 90.0
_STOP_S: Final = 30.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class LoadWorker:
    """A load worker process, and its log file."""

    process: subprocess.Popen[bytes]
    log_file: Path

    @classmethod
    def start(
        cls,
        log_url: str,
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> LoadWorker:
        """Start a process that logs to a file in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=folder, prefix="load-worker-", suffix=".log", delete=False
        ) as log_file:
            process = subprocess.Popen(
                [sys.executable, "-m", "equipoise.brokers.cli", "load-worker", "--log", log_url],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        return cls(process=process, log_file=Path(log_file.name))

    def lines(self) -> list[Mapping[str, object]]:
        return [
            orjson.loads(line)
            for line in self.log_file.read_bytes().splitlines()
            if line.startswith(b"{")
        ]

    def events(self) -> list[object]:
        return [line["event"] for line in self.lines()]

    def partitions(self) -> object:
        """The last assigned partitions of samples; None before."""
        return next(
            (line["partitions"] for line in reversed(self.lines()) if line["event"] == SHARED_OUT),
            None,
        )

    def await_started(self) -> None:
        give_up_s = time.monotonic() + _START_S
        while STARTED not in self.events():
            assert self.process.poll() is None, self.log_file.read_text(encoding="utf-8")
            assert time.monotonic() < give_up_s, self.log_file.read_text(encoding="utf-8")
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(_STOP_S)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)


@contextmanager
def a_load_worker(log_url: str) -> Iterator[LoadWorker]:
    with tempfile.TemporaryDirectory() as folder:
        worker = LoadWorker.start(log_url, Path(folder))
        try:
            worker.await_started()
            yield worker
        finally:
            worker.kill()
