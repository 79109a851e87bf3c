"""A broker that forks a child of a pool at the first line of its input: `python -m
tests.integration.forking_broker FOLDER PORT`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from equipoise.brokers.runtime.embedding.embedded import Worker
from tests.unit.runtime.service_bench import Plain


async def run(folder: Path, port: int) -> None:
    """Say `ready`, and then the child's id, and serve until the end."""
    loop = asyncio.get_running_loop()
    async with Worker(
        f"sqlite:{folder / 'log.db'}",
        Plain(),
        broker_id="forks",
        data_dir=folder / "data",
        http_port=port,
    ):
        os.write(1, b"ready\n")
        await loop.run_in_executor(None, sys.stdin.readline)
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        os.write(1, b"%d\n" % await loop.run_in_executor(pool, os.getpid))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))
