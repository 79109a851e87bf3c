"""A process that uses a log: `python -m tests.integration.log_process COMMAND ...`."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing

from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.log.open_log import open_log

TIMEOUT_MS = 20_000


def say(line: str) -> None:
    """Print a line at once and whole, even if the process is killed after it."""
    os.write(1, f"{line}\n".encode())


def write(url: str, writer: str, count: str, batch_size: str) -> None:
    """Append `count` records in batches, and say each offset with its record once it is
    acknowledged.
    """
    with closing(open_log(url)) as log:
        say("ready")
        for first in range(0, int(count), int(batch_size)):
            records = [
                f"{writer}:{number}".encode() for number in range(first, first + int(batch_size))
            ]
            for offset, record in zip(
                log.append(records, timeout_ms=TIMEOUT_MS), records, strict=True
            ):
                say(f"{offset} {record.decode()}")


def tail(url: str, count: str) -> None:
    """Read `count` entries as they come, and say a digest of all that was seen, in its order."""
    with closing(open_log(url)) as log:
        say("ready")
        digest = hashlib.sha256()
        seen = 0
        position = FIRST_OFFSET
        while seen < int(count) and log.wait(position, timeout_ms=TIMEOUT_MS):
            for offset, data in log.read(position, limit=100):
                digest.update(b"%d %s\n" % (offset, data))
                position = offset + 1
                seen += 1
        say(digest.hexdigest())


def hold(path: str) -> None:
    """Stop in the middle of an append, and finish it when a line comes in."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE log SET end_offset = end_offset + 1")
    connection.execute(
        "INSERT INTO entries SELECT end_offset, x'68656C64', 0, appended_ms FROM log"
    )
    say("holding")
    sys.stdin.readline()
    connection.execute("COMMIT")
    say("done")


def fill(url: str) -> None:
    """Append until the log refuses, and say what was acknowledged and why it ended."""
    acknowledged = 0
    try:
        log = open_log(url)
        while acknowledged < 1_000_000:
            log.append([b"r" * 1_000] * 10, timeout_ms=TIMEOUT_MS)
            acknowledged += 10
    except EquipoiseError as error:
        say(f"{acknowledged} {type(error).__name__}")


COMMANDS: dict[str, Callable[..., None]] = {
    "write": write,
    "tail": tail,
    "hold": hold,
    "fill": fill,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
