"""What routing by key costs a program of FastAPI under uvicorn, and to measure the CPU time of each
key: CPU time of each request over that of the bare program, and over that with `measure_cpu` off.
`make bench BENCH=key_routing` prints one JSON line, in about a minute.

The programs are asked in turns, each for a key that it owns.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import FastAPI

from equipoise import Equipoise, Keyed
from equipoise.channel.system.free_ports import free_ports
from tests.benchmarks.frame import Results, cpu_s, report, summary
from tests.load.http_load import load

HOST: Final = "127.0.0.1"
CONNECTIONS: Final = 16
ROUNDS, ROUND_S = 7, 1.5
PATH: Final = "/visits/home"
PROGRAMS: Final = ("bare", "by_key", "by_key_unmeasured", "keyed", "keyed_unmeasured")


@dataclass
class Page:
    """A small state."""

    visits: int = 0


def program(kind: str, address: str, folder: str) -> object:
    """Return one of the programs."""
    app, pages = FastAPI(), Keyed("web/pages", Page, shards=4)

    async def visit(name: str) -> dict[str, str | int]:
        return {"page": name, "visits": 1}

    async def visit_page(name: str, page: Page) -> dict[str, str | int]:
        page.visits += 1
        return {"page": name, "visits": page.visits}

    is_keyed, measures = kind.startswith("keyed"), "unmeasured" not in kind
    endpoint = pages.route("name")(visit_page) if is_keyed else visit
    app.get("/visits/{name}")(endpoint)
    if kind == "bare":
        return app
    member = Equipoise(
        f"sqlite:{folder}/{kind}.db", pages, cluster="bench", address=address, measure_cpu=measures
    )
    if not is_keyed:
        return member.wrap(app, keys={"/visits/{key}": "web/pages"})
    member.install(app)
    return app


async def measured(directory: Path) -> Results:
    """Ask all programs in turns, and count what each uses for a request."""
    ports = free_ports(len(PROGRAMS))
    costs: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    async with AsyncExitStack() as running:
        served = []
        for name, port in zip(PROGRAMS, ports, strict=True):
            words = ["-m", "tests.benchmarks.key_routing", name, str(port), str(directory)]
            process = await asyncio.create_subprocess_exec(sys.executable, *words)
            running.push_async_callback(process.wait)
            running.callback(process.kill)
            served.append((name, port, process.pid))
        for _, port, _ in served:
            await until_answered(port)
        for _ in range(ROUNDS):
            for name, port, pid in served:
                before_s = cpu_s(pid)
                done = await load(
                    HOST, port, "/visits/home", connections=CONNECTIONS, seconds=ROUND_S
                )
                assert not done.failures, done.failures[0]
                costs[name].append((cpu_s(pid) - before_s) / len(done.latencies_ms) * 1e6)
    pairs = [(name, "bare") for name in ("by_key", "keyed")]
    pairs += [(name, f"{name}_unmeasured") for name in ("by_key", "keyed")]
    return {"bare": summary(costs["bare"], "us of CPU")} | {
        f"{name}_over_{other}": summary(
            [one - less for one, less in zip(costs[name], costs[other], strict=True)], "us of CPU"
        )
        for name, other in pairs
    }


async def until_answered(port: int) -> None:
    """Wait until a program serves the key."""
    for _ in range(2_000):
        try:
            done = await load(HOST, port, PATH, connections=1, seconds=0.0)
        except OSError:
            done = None
        if done is not None and not done.failures:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the program does not start")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        kind, port, folder = sys.argv[1:]
        made = program(kind, f"http://{HOST}:{port}", folder)
        uvicorn.run(made, host=HOST, port=int(port), log_level="warning", access_log=False)  # type: ignore[arg-type]
    else:
        report(
            "key_routing", measured, f"{CONNECTIONS} connections, {ROUNDS} rounds of {ROUND_S} s"
        )
