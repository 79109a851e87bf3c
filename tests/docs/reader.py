"""Follow a page as its reader does: save its code, and type its commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from equipoise.channel.system.free_ports import free_row
from tests.docs.code_blocks import Block

PATIENCE_S: Final = 60
# The reader has done these already.
SET_UP: Final = (
    "make setup",
    ". .venv/bin/activate",
    "python -m venv env && . env/bin/activate",
    "pip install 'PATH/OF/THE/CLONE' fastapi uvicorn",
    "pip install 'PATH/OF/THE/CLONE' fastapi uvicorn pytest",
)
# What runs until it is stopped, and what its output shows when the reader may go on.
RUNNING: Final = {
    "equipoise up": "ready",
    "python orders.py": "order 9",
    "EQUIPOISE_ADDRESS=": "Uvicorn running",
}


class Reader:
    """Somebody who follows a page, in a folder, at ports that are free."""

    def __init__(self, folder: Path, programs: Path) -> None:
        """`programs` is the folder of what is installed."""
        self.folder = folder
        self.answers: list[str] = []
        self._http = free_row(6)
        self._pulsar = self._http + 3
        self._environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }
        self._running: list[tuple[str, subprocess.Popen[str], Path]] = []

    def follow(self, block: Block) -> None:
        """Save the code of a block, or type its commands."""
        if block.save:
            (self.folder / block.save).write_text(self._at_free_ports(block.text), encoding="utf-8")
        elif block.language == "console":
            for command in block.commands():
                self._type(self._at_free_ports(command))

    def output_of(self, command: str) -> str:
        """Return what a running command has printed so far."""
        return next(
            path.read_text(encoding="utf-8")
            for running, _, path in self._running
            if running.startswith(command)
        )

    def interrupt_first(self) -> None:
        """Press Ctrl-C in the terminal that was opened first, and wait for the end."""
        _, process, path = self._running.pop(0)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) in (0, -signal.SIGINT), path.read_text(encoding="utf-8")

    def stop(self) -> None:
        """Press Ctrl-C in the terminal of the cluster, as the page says, once the clients are gone.

        A client is killed: pulsar-client can hang at Ctrl-C, and the page does not say how to stop
        it.
        """
        while self._running:
            command, process, _ = self._running.pop()
            try:
                if command.startswith("equipoise "):
                    process.send_signal(signal.SIGINT)
                    process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.wait()

    def _at_free_ports(self, text: str) -> str:
        text = re.sub(r"\b808(\d)\b", lambda match: str(self._http + int(match[1])), text)
        text = re.sub(
            r"(127\.0\.0\.1:)665(\d)\b",
            lambda match: f"{match[1]}{self._pulsar + int(match[2])}",
            text,
        )
        if text.startswith("equipoise up") and "--http-port" not in text:
            text += f" --http-port {self._http}"
        serves_pulsar = text.startswith("equipoise up") and "--service" not in text
        return f"{text} --pulsar-port {self._pulsar}" if serves_pulsar else text

    def _type(self, command: str) -> None:
        name, _, value = command.removeprefix("export ").partition("=")
        if command in SET_UP:
            return
        if command.startswith("export "):
            self._environment[name] = value
            return
        shown = next((text for start, text in RUNNING.items() if command.startswith(start)), None)
        if shown is not None:
            self._start(command, shown)
            return
        words = ("sh", "-c", command)
        run = subprocess.run(
            words,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert run.returncode == 0, f"{command}\n{run.stdout}\n{run.stderr}"
        self.answers.append(run.stdout)

    def _start(self, command: str, shown: str) -> None:
        path = self.folder / f"terminal-{len(self._running)}"
        with path.open("w") as output:
            words = (
                "sh",
                "-c",
                f"exec env {command}" if "=" in command.split(maxsplit=1)[0] else f"exec {command}",
            )
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._running.append((command, process, path))
        give_up = time.monotonic() + PATIENCE_S
        while shown not in path.read_text(encoding="utf-8"):
            assert process.poll() is None, f"{command}\n{path.read_text(encoding='utf-8')}"
            assert time.monotonic() < give_up, f"{command} did not print {shown!r}"
            time.sleep(0.05)


@contextmanager
def reader(folder: Path, programs: Path = Path(sys.executable).parent) -> Iterator[Reader]:
    """A reader, who stops everything in the end."""
    following = Reader(folder, programs)
    try:
        yield following
    finally:
        following.stop()
