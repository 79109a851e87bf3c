"""Hold the write lock of an SQLite file: `python lock_holder.py FILE SECONDS` prints a line when it
holds the lock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

# A holder whose parent was killed lets go by itself.
_HELD_S_MAX = 120.0


@asynccontextmanager
async def write_lock_held(path: Path, *, stopped: bool = False) -> AsyncIterator[None]:
    """Nobody can write to `path` within this context; `stopped` has the holder stopped by SIGSTOP,
    as a stalled writer is.
    """
    holder = await asyncio.create_subprocess_exec(
        sys.executable, __file__, str(path), str(_HELD_S_MAX), stdout=PIPE
    )
    assert holder.stdout is not None, "it was asked for"
    try:
        said = await asyncio.wait_for(holder.stdout.readline(), _HELD_S_MAX)
        assert said, f"the lock of {path} was not to be had"
        if stopped:
            os.kill(holder.pid, signal.SIGSTOP)
        yield
    finally:
        if holder.returncode is None:
            holder.kill()  # Ends what is stopped, too, and SQLite's locks with it.
            await holder.wait()


def main() -> None:
    """Take the lock, say so, and keep it."""
    path, seconds = sys.argv[1:]
    connection = sqlite3.connect(path, timeout=_HELD_S_MAX, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    # It is inside a write; nobody will ever see the table.
    connection.execute("CREATE TABLE held_up(note)")
    os.write(1, b"held\n")
    time.sleep(float(seconds))


if __name__ == "__main__":
    main()
