"""Machines that lose power, are restarted, and get an older copy of the log, until an offset is
issued that somebody has seen before. See tests.channels.hunting.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from equipoise.brokers.runtime.data_directory import DataDirectory, LogMark
from equipoise.brokers.runtime.snapshots import open_marked, reader_on
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.sqlite.log import SqliteLog
from tests.channels import hunting
from tests.channels.hunting import ViolationError

SCENARIO = "power-loss"
DEEDS_MAX = 12
RECORDS_MAX = 8
TIMEOUT_MS = 10_000

Files = dict[str, bytes]


class Machine:
    """A machine with one log and one broker's data directory.

    `synced` is what the disk has of the log: its files when the last commit that waited for the
    disk was done. Everything that the data directory writes is synced. `seen` are the offsets that
    somebody knows, `used` those that a service may have got as tokens.
    """

    def __init__(self, folder: Path, *, synchronous: str) -> None:
        self.folder = folder
        self.path = folder / "log.db"
        self.url = f"sqlite:{self.path}?synchronous={synchronous}"
        self.boots = 0
        self.synced: Files = {}
        self.seen: set[int] = set()
        self.used: set[int] = set()
        self.log: SqliteLog | None = None

    def files(self) -> Files:
        return {
            suffix: file.read_bytes()
            for suffix in ("", "-wal")
            if (file := Path(f"{self.path}{suffix}")).exists()
        }

    def put_back(self, files: Files) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        for suffix, data in files.items():
            Path(f"{self.path}{suffix}").write_bytes(data)

    def boot(self) -> None:
        self.boots += 1
        (self.folder / "boot").write_text(f"boot-{self.boots}")

    def start(self) -> None:
        """Start the broker. Raises `OperatorError` if it refuses the log."""
        machine = self

        class Connection(sqlite3.Connection):
            """One that notes what the disk has after each commit that waits for it."""

            waits = True

            def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
                # As it was called.
                cursor = super().execute(statement, *values)  # type: ignore[arg-type]
                if statement.startswith("PRAGMA synchronous = "):
                    self.waits = statement.endswith("FULL")
                elif statement == "COMMIT" and self.waits:
                    machine.synced = machine.files()
                return cursor

        boot_id = partial(SqliteLog, boot_id=self.folder / "boot")
        with (
            DataDirectory(self.folder / "data") as directory,
            mock.patch("sqlite3.connect", partial(sqlite3.connect, factory=Connection)),
            mock.patch("equipoise.channel.log.open_log.SqliteLog", boot_id),
        ):
            log = open_marked(self.url, directory)
            assert isinstance(log, SqliteLog)
            try:
                reader_on(directory, log, cluster="test")
            except OperatorError:
                log.close()
                raise
        self.log = log

    def append(self, rng: random.Random) -> None:
        """Append records. Perhaps their offsets become tokens, once the data directory notes
        them.
        """
        assert self.log is not None
        offsets = list(
            self.log.append([b"a record"] * rng.randrange(1, RECORDS_MAX), timeout_ms=TIMEOUT_MS)
        )
        if self.seen.intersection(offsets):
            raise ViolationError(f"no offset is issued twice: {offsets}")
        self.seen.update(offsets)
        if rng.random() < 1 / 2:
            with DataDirectory(self.folder / "data") as directory:
                directory.write_mark(
                    LogMark(log=self.log.identity, offset=offsets[-1], physical=offsets[-1])
                )
            self.used.update(offsets)

    def crash(self) -> None:
        """Kill all processes. What they have written stays with the operating system."""
        if self.log is not None:
            files = self.files()
            self.log.close()
            self.put_back(files)
            self.log = None

    def lose_power(self) -> None:
        """As a crash, and the disk has only what was waited for."""
        self.crash()
        self.put_back(self.synced)
        self.boot()

    def restore(self, older: Files) -> None:
        """Kill all, and put an older copy in the place of the log, or nothing. If the broker
        refuses that, put the newest back.
        """
        self.crash()
        newest = self.files()
        self.put_back(older)
        try:
            self.start()
        except OperatorError:
            self.put_back(newest)
            self.start()
        else:
            self.seen = set(self.used)
        self.synced = self.files()  # What was copied is on the disk.


def another_log(folder: Path) -> Files:
    """Return the files of a log that somebody else has begun."""
    path = folder / "other.db"
    with closing(SqliteLog(str(path), name="another log")) as other:
        other.append([b"a record"] * RECORDS_MAX, timeout_ms=TIMEOUT_MS)
    return {"": path.read_bytes()}


def play(seed: int, folder: Path) -> None:
    """One machine and what happens to it."""
    rng = random.Random(seed)
    machine = Machine(folder, synchronous=rng.choice(("normal", "full")))
    machine.boot()
    machine.start()
    copies: list[Files] = [{}, another_log(folder)]
    for _ in range(rng.randrange(2, DEEDS_MAX)):
        deed = rng.choice(
            ("append", "append", "crash", "restart", "lose power", "lose power", "copy", "restore")
        )
        if deed == "append":
            machine.append(rng)
        elif deed == "copy":
            machine.crash()
            copies.append(machine.files())
        elif deed == "restore":
            machine.restore(rng.choice(copies))
        elif deed == "lose power":
            machine.lose_power()
        else:
            machine.crash()
            if deed == "restart":
                machine.synced = machine.files()
                machine.boot()
        if machine.log is None:
            machine.start()
    machine.append(rng)
    machine.crash()


def hunt(seed: int) -> None:
    """Play one seed in a folder of its own."""
    with TemporaryDirectory(prefix="power-") as folder:
        play(seed, Path(folder))


if __name__ == "__main__":
    sys.exit(hunting.hunt(SCENARIO, hunt, no_error="a whole log is accepted"))
