"""A program that computes beside its work: the balancer leaves it room, and says so."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from equipoise import Equipoise, Keyed

pytestmark = [pytest.mark.integration, pytest.mark.soak]

CAPACITY = 20
"""Percent of a core, which a busy machine gives to a program that computes."""
WINDOW_MS = 20_000


async def serve(log_url: str, name: str) -> None:
    """Serve, and compute outside of any ownership if this is the busy program."""
    member = Equipoise(
        log_url,
        Keyed("web/pages", dict[str, int], shards=4),
        cluster="other",
        broker_id=name,
        capacity=CAPACITY,
        balancing={"reports.cost_window_ms": WINDOW_MS},
    )
    async with member:
        while True:
            began_s = time.monotonic()
            while name == "busy" and time.monotonic() < began_s + 0.04:
                pass
            await asyncio.sleep(0.01)


async def shown(*words: str) -> dict[str, object]:
    """Return what a command prints as JSON."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "equipoise.brokers.cli", *words, "--json"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    found: dict[str, object] = json.loads(output) if process.returncode == 0 else {}
    return found


async def test_what_a_program_computes_beside_its_work_lowers_its_capacity(tmp_path: Path) -> None:
    """It is other work of this program, and no cost of bundles anywhere."""
    log_url = f"sqlite:{tmp_path / 'channel.db'}"
    async with AsyncExitStack() as running, asyncio.timeout(180):
        for name in ("busy", "idle"):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.integration.test_other_work", log_url, name
            )
            running.push_async_callback(process.wait)
            running.callback(process.kill)
        log, other = ("--log", log_url), dict[str, float]()
        while other.get("busy", 0.0) <= 40:
            await asyncio.sleep(0.5)
            rows = [await shown("brokers", "show", name, *log) for name in ("busy", "idle")]
            other = {str(row.get("broker")): float(str(row.get("other_work") or 0)) for row in rows}
        assert other["idle"] < other["busy"] / 2
        plan = await shown("plan", *log)
    brokers = {each["broker"]: each["capacity"] for each in plan["brokers"]}  # type: ignore[attr-defined]
    assert brokers["busy"] < brokers["idle"] <= CAPACITY


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
