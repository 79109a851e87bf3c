"""What `Client.request` costs at a steady rate, beside a bare aiohttp client in the same run: `make
bench BENCH=client_calls`, in a minute.

Three servers answer at once. So the figures are those of the clients. Calls are due at fixed times,
and a call is measured from when it is due: a client that falls behind shows it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import uvloop
from aiohttp import web

from equipoise.brokers.client.calls import UNANSWERED_MAX
from equipoise.brokers.client.client import Client
from equipoise.brokers.client.table import Assigned
from equipoise.brokers.runtime.service import Peer
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.system.free_ports import free_ports
from tests.benchmarks.frame import Figures, report, summary

SERVERS: Final = 3
RATES: Final = (200, 800, 3_000)
ROUND_S, ROUNDS = 3.0, 2
NAMESPACE: Final = "bench/calls"
PAGES: Final = 80
SAMPLE_S: Final = 0.1

Call = Callable[[int], Awaitable[None]]


async def serve(port: int) -> None:
    """Answer each request at once, until this process is ended."""

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"visits": 1})

    app = web.Application()
    app.add_routes([web.post("/visits/{page}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


class Fixed:
    """A source that knows all owners. See `equipoise.brokers.client.table.Source`."""

    def __init__(self, addresses: list[str]) -> None:
        step = HASH_MAX // len(addresses) + 1
        self._step = step
        self._owners = [
            Assigned(
                bundle=str(number),
                low=number * step,
                high=(number + 1) * step,
                token=1,
                peer=Peer(broker=str(number), addresses={"http": address}),
            )
            for number, address in enumerate(addresses)
        ]

    async def start(self, *, timeout_ms: int) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    def unserved(self, namespace: str) -> str | None:
        """Return None."""

    def find(self, _namespace: str, point: int) -> Assigned | None:
        return self._owners[point // self._step]

    def refresh(self, _namespace: str) -> None:
        """Do nothing."""


@asynccontextmanager
async def servers() -> AsyncIterator[list[str]]:
    """Yield the addresses of servers in processes of their own."""
    ports = free_ports(SERVERS)
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-m", __spec__.name, str(port))
        for port in ports
    ]
    try:
        addresses = [f"http://127.0.0.1:{port}" for port in ports]
        async with aiohttp.ClientSession() as session:
            for address in addresses:
                while True:
                    try:
                        async with session.post(f"{address}/visits/me"):
                            break
                    except aiohttp.ClientError:
                        await asyncio.sleep(SAMPLE_S)
        yield addresses
    finally:
        for process in started:
            process.kill()
            await process.wait()


async def at_rate(call: Call, rate: int) -> Figures:
    """Call at a rate for some seconds. Return the length of the calls."""
    lengths_ms: list[float] = []

    async def timed(number: int, due_s: float) -> None:
        await call(number)
        lengths_ms.append(1e3 * (time.perf_counter() - due_s))

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as calls:
        for number in range(int(rate * ROUND_S)):
            due_s = began_s + number / rate
            await asyncio.sleep(max(due_s - time.perf_counter(), 0))
            calls.create_task(timed(number, due_s))
    return summary(lengths_ms, "ms")


@asynccontextmanager
async def bare(addresses: list[str]) -> AsyncIterator[Call]:
    """Yield calls of aiohttp, with as many connections at the most as `Client` has."""
    limit = SERVERS * UNANSWERED_MAX
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit)) as session:

        async def call(number: int) -> None:
            async with session.post(
                f"{addresses[number % SERVERS]}/visits/page-{number % PAGES}", json={"by": 1}
            ) as answer:
                assert {"visits": 1} == await answer.json()

        yield call


@asynccontextmanager
async def ours(addresses: list[str]) -> AsyncIterator[Call]:
    """Yield calls of `Client.request`."""
    client = Client(*addresses)
    client._source = Fixed(addresses)  # noqa: SLF001 - the table is not what is measured
    async with client:

        async def call(number: int) -> None:
            page = f"page-{number % PAGES}"
            answer = await client.request(
                "POST", NAMESPACE, page, f"/visits/{page}", json={"by": 1}
            )
            assert {"visits": 1} == answer.json()

        yield call


async def measure() -> dict[str, object]:
    """Measure both clients at each rate, in turns."""
    results: dict[str, object] = {}
    async with servers() as addresses:
        for rate in RATES:
            for turn in range(ROUNDS):
                for name, calls in (("aiohttp", bare), ("client", ours)):
                    async with calls(addresses) as call:
                        results[f"{name}_at_{rate}_{turn + 1}"] = await at_rate(call, rate)
    return results


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvloop.run(serve(int(sys.argv[1])))
    report(
        "client_calls",
        lambda _: uvloop.run(measure()),
        f"{SERVERS} servers on the same CPUs, {ROUND_S:.0f} s at each rate",
    )
