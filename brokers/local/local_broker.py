"""Start, signal and describe one broker process of a local cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import orjson

from equipoise.brokers.errors import InvalidConfig, cannot_listen
from equipoise.brokers.runtime.config import SECRET_VARIABLES, WorkerConfig
from equipoise.channel.system import private_files
from equipoise.channel.system.free_ports import HOST, free_ports

RESTART_MS_MIN: Final = 500
RESTART_MS_MAX: Final = 10_000
"""The pause doubles each time the process lived for less than `STEADY_MS`."""

STEADY_MS: Final = 30_000


_OUTPUT_BYTES: Final = 16_384  # A traceback in a JSON line takes several kilobytes.
_ERRORS: Final = ("error", "critical")


class LocalBroker:
    """One broker: its place, and its processes, one after the other. `watch` is the thread that
    waits for the end of the present one.
    """

    def __init__(self, directory: Path, port: int, pulsar_port: int | None = None) -> None:
        """Define the broker `127.0.0.1:PORT`, with data and log in `directory`. With `pulsar_port`,
        it accepts Pulsar's clients.
        """
        self.directory = directory
        self.file = directory / "broker.log"
        self.port = port
        self.pulsar_port = pulsar_port
        self.id = f"{HOST}:{port}"
        self.ended = True
        self.ready = False
        self.end_expected = False
        self.will_restart = False
        self.started_at_offset = -1
        self.process: subprocess.Popen[bytes] | None = None
        self.watch: threading.Thread | None = None
        self._starts = 0
        self._begin = 0
        self._started_ns = 0
        self._pause_ms = RESTART_MS_MIN

    @property
    def is_over(self) -> bool:
        """Whether it has ended and will not be restarted."""
        return self.ended and not self.will_restart

    def config(self, *, log_url: str, settings: Mapping[str, str | int]) -> WorkerConfig:
        """Return the settings of its process. Raises `InvalidConfig` if the process would refuse
        them.
        """
        own = {
            "log_url": log_url,
            "data_dir": self.directory,
            "broker_id": self.id,
            "host": HOST,
            "http_port": self.port,
        }
        if self.pulsar_port is not None:
            own["pulsar_port"] = self.pulsar_port
        if taken := sorted(own.keys() & settings.keys()):
            raise InvalidConfig(
                problems=tuple(
                    f"{setting}: it is each broker's own in a local cluster" for setting in taken
                )
            )
        return WorkerConfig.model_validate({**settings, **own})

    def check_port(self) -> None:
        """Raise `OperatorError` if one of its ports is taken."""
        for setting, port in (("http_port", self.port), ("pulsar_port", self.pulsar_port)):
            if port is None:
                continue
            try:
                socket.create_server((HOST, port)).close()
            except OSError as error:
                problem = str(error) if error.errno is None else os.strerror(error.errno)
                raise cannot_listen(
                    address=f"{HOST}:{port}", problem=problem, setting=setting
                ) from error

    def start(
        self,
        *,
        log_url: str,
        services: Sequence[str],
        settings: Mapping[str, str | int],
        environment: Mapping[str, str],
        evidence: bool,
        at_offset: int,
    ) -> subprocess.Popen[bytes]:
        """Start a process. Only an incarnation after `at_offset` is its own. Raises OSError on
        failure.
        """
        self._starts += 1
        own = {
            "log": log_url,
            "data": self.directory,
            "id": self.id,
            "host": HOST,
            "http-port": self.port,
            "pulsar-port": self.pulsar_port,
            # A new file for each process: a killed one may have left half a line.
            "evidence": self.directory / f"accepts-{self._starts}.jsonl" if evidence else None,
        }
        shown = {name: value for name, value in settings.items() if name not in SECRET_VARIABLES}
        secrets = {
            SECRET_VARIABLES[name]: str(value)
            for name, value in settings.items()
            if name in SECRET_VARIABLES
        }
        options = [
            *((name, value) for name, value in own.items() if value is not None),
            *(("service", service) for service in services),
            *(("set", f"{name}={value}") for name, value in shown.items()),
        ]
        words = [word for name, value in options for word in (f"--{name}", str(value))]
        command = ["broker", "--stop-on-eof", *words]
        self.process = self.of_process(command, {**environment, **secrets})
        self.ended = self.ready = self.end_expected = False
        self.started_at_offset = at_offset
        return self.process

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.process is not None:
            self.process.send_signal(number)

    def pause_ms(self) -> int:
        """Return how long to wait before the next start, in milliseconds."""
        lived_ms = (time.monotonic_ns() - self._started_ns) // 1_000_000
        pause_ms = RESTART_MS_MIN if lived_ms >= STEADY_MS else self._pause_ms
        self._pause_ms = min(2 * pause_ms, RESTART_MS_MAX)
        return pause_ms

    def of_process(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command of `equipoise` whose output is appended to the file. Raises OSError."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_files.make(self.file)
        with self.file.open("ab") as file:
            self._begin, self._started_ns = file.tell(), time.monotonic_ns()
            return subprocess.Popen(
                # -P keeps the working folder from hiding an installed package. Services are still
                # found there.
                [sys.executable, "-P", "-m", "equipoise.brokers.cli", *command],
                # We hold its other end, so the process never outlives its parent.
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env={**os.environ, **environment},
                # Ctrl-C is for the parent, which then stops its processes in one way.
                start_new_session=True,
            )

    def last_output(self) -> str | None:
        """Return the last error that the last process printed, or else its last line; None if it
        printed nothing.
        """
        lines = self._last_lines()
        return _last_error(lines) or (lines[-1] if lines else None)

    def reason(self, code: int) -> str | None:
        """Return why the last process ended, by the return value of `Popen.wait`; None if it ended
        normally or printed no reason.
        """
        if code == 0:
            return None
        # If a signal killed the process, only an error among its lines is a reason.
        return self.last_output() if code > 0 else _last_error(self._last_lines())

    def ending(self, code: int) -> str:
        """Describe how the last process ended, with the reason and the log file if it failed."""
        reason = self.reason(code)
        why = "" if reason is None else f": {reason}"
        return f"{ending_of(code)}{why}; its log: {self.file}" if code else ending_of(code)

    def _last_lines(self) -> Sequence[str]:
        data = self.file.read_bytes()[self._begin :][-_OUTPUT_BYTES:] if self.file.exists() else b""
        return data.decode(errors="replace").strip().splitlines()


def _last_error(lines: Sequence[str]) -> str | None:
    return next((error for line in reversed(lines) if (error := _error_in(line)) is not None), None)


def _error_in(line: str) -> str | None:
    """Return the error in a line: a command's error, or the event of a JSON line with level error
    or critical.
    """
    if line.startswith("error: "):
        return line
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    is_error = isinstance(entry, dict) and entry.get("level") in _ERRORS
    return str(entry.get("event")) if is_error else None


def end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process of a program, and return its code as `Popen.wait` does."""
    code = process.wait()
    assert process.stdin is not None, "it was started with one"
    process.stdin.close()
    return code


def ports_of(
    http_port: int, pulsar_port: int | None, count: int
) -> Sequence[tuple[int, int | None]]:
    """Return the HTTP and Pulsar ports of `count` brokers: consecutive from the given ones, any
    free ones for 0, None for None.

    No port occurs twice. Raises `InvalidConfig` if the two ranges overlap.
    """
    firsts = [http_port] if pulsar_port is None else [http_port, pulsar_port]
    named = [port for first in firsts if first for port in range(first, first + count)]
    if len(set(named)) < len(named):
        problem = (
            f"pulsar_port: the ports of {count} brokers from {pulsar_port} on overlap with those"
            f" from http_port={http_port} on"
        )
        raise InvalidConfig(problems=(problem,))
    free = iter(free_ports(count * firsts.count(0), besides=named))
    rows: list[list[int]] = [
        list(range(first, first + count) if first else islice(free, count)) for first in firsts
    ]
    return list(zip(rows[0], rows[1] if len(rows) > 1 else [None] * count, strict=True))


def ending_of(code: int) -> str:
    """Describe how a process ended, from its exit code, or minus the number of the signal that
    killed it (`Popen.wait`).
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
