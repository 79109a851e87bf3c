"""Run the load workers of a local cluster on Kafka: start, restart and stop their processes.

One thread per worker waits for the end of its process and starts the next. One condition guards the
state that it shares with the caller's thread.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from equipoise.brokers.local.local_broker import Program, end_of

STOP_MS: Final = 15_000
"""How long a load worker may take to end before it is killed: three times its own limit."""

_MISCONFIGURED: Final = 2
"""The exit code of a command whose settings are wrong. They stay as they are: the next process
would end the same way."""

ReportOfWorker = Callable[[str, Mapping[str, str | int | None]], None]
"""Receives what happened to a load worker, as text and as details for programs."""


def can_run() -> bool:
    """Return whether the extra `load`, which a load worker needs, is installed."""
    # Once it is imported, Faust has no spec to find.
    return "faust" in sys.modules or find_spec("faust") is not None


class _Worker(Program):
    """One worker, and its processes."""

    def __init__(self, number: int, directory: Path) -> None:
        super().__init__(directory / f"load-worker-{number}.log")
        self.number = number


class LocalLoadWorkers:
    """The load workers of one log, identified by number."""

    def __init__(
        self,
        directory: Path,
        *,
        count: int,
        log_url: str,
        environment: Mapping[str, str],
        report: ReportOfWorker,
    ) -> None:
        """Start nothing yet. Worker i logs to `directory/load-worker-i.log`. `report` is called
        from several threads.
        """
        self._log_url = log_url
        self._environment = environment
        self._report = report
        self._workers = tuple(_Worker(number, directory) for number in range(count))
        self._changed = threading.Condition()
        self._restarts = False  # Whether a worker that ends is restarted.

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the running processes."""
        with self._changed:
            return tuple(
                worker.process.pid for worker in self._workers if worker.process is not None
            )

    def start(self) -> None:
        """Start all, and return at once. Raises OSError on failure. The caller must call `stop` in
        any case.
        """
        self._restarts = True
        for worker in self._workers:
            self._spawn(worker)
            worker.watch = threading.Thread(
                target=self._watch,
                args=(worker,),
                name=f"watch load worker {worker.number}",
                daemon=True,
            )
            worker.watch.start()

    def stop(self) -> None:
        """Stop all at once, and kill those that take longer than `STOP_MS`."""
        self._stop_restarts()
        self.signal(signal.SIGCONT)  # A paused process would not receive SIGTERM.
        self.signal(signal.SIGTERM)
        give_up_s = time.monotonic() + STOP_MS / 1_000
        for worker in self._workers:
            if worker.watch is not None:
                worker.watch.join(max(0.0, give_up_s - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill all (SIGKILL), and wait until they are gone. None runs until the next `start`."""
        self._stop_restarts()
        self.signal(signal.SIGKILL)
        for worker in self._workers:
            if worker.watch is not None:
                worker.watch.join()

    def signal(self, number: int) -> None:
        """Send a signal to all that run. One that ends because of it is restarted, unless all are
        being stopped.
        """
        with self._changed:
            for worker in self._workers:
                worker.signal(number)

    def _stop_restarts(self) -> None:
        with self._changed:
            self._restarts = False
            self._changed.notify_all()

    def _spawn(self, worker: _Worker) -> None:
        with self._changed:
            if not self._restarts:
                return
            worker.process = worker.of_process(
                ["load-worker", "--stop-on-eof", "--log", self._log_url], self._environment
            )
            pid = worker.process.pid
        self._report_on(worker, f"started as process {pid}, log in {worker.file}", pid=pid)

    def _watch(self, worker: _Worker) -> None:
        """Wait for the end of each process of one worker, and start the next, until all are to
        stop.
        """
        while (process := worker.process) is not None:
            code = end_of(process)
            with self._changed:
                worker.process = None
                restarts = self._restarts
            self._report_on(
                worker,
                worker.ending(code),
                exit_code=code,
                reason=worker.reason(code),
                log=str(worker.file),
            )
            if not restarts:
                return
            if code == _MISCONFIGURED:
                self._report_on(
                    worker,
                    "is not restarted: nothing is balanced until you correct its settings and run"
                    " the command again",
                )
                return
            with self._changed:
                self._changed.wait_for(lambda: not self._restarts, worker.pause_ms() / 1_000)
            try:
                self._spawn(worker)
            except OSError as error:
                self._report_on(worker, f"could not be restarted: {error}")

    def _report_on(self, worker: _Worker, text: str, **details: str | int | None) -> None:
        self._report(
            f"load worker {worker.number} {text}", {"load_worker": worker.number, **details}
        )
