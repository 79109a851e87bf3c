"""How fast lookups are, plain and over TLS: `make bench BENCH=lookup` prints one JSON line, in less
than two minutes.

python -m tests.benchmarks.lookup --bare PORT      (the yardstick: an aiohttp app with one route,
until it is killed)
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import aiohttp
import uvloop
from aiohttp import web

from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.system.free_ports import free_row
from tests.benchmarks.frame import report, summary
from tests.load.cluster import counters, running
from tests.load.http_load import Load, load
from tests.tls.authority import Authority

HOST: Final = "127.0.0.1"
NAMESPACE: Final = "bench/lookup"
BUNDLES: Final = 64
CONNECTIONS: Final = 32
ROUNDS, ROUND_S = 7, 2.0
TOPICS: Final = 16
ROUTE: Final = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic:[^/]+}"


async def serve_bare(port: int) -> None:
    """The least that an aiohttp app can do for this path."""
    body = b"x" * 128

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get(ROUTE, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    await asyncio.Event().wait()


@contextmanager
def bare_server(port: int) -> Iterator[None]:
    """The yardstick, as a process."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.lookup", "--bare", str(port)]
    )
    try:
        yield
    finally:
        server.kill()
        server.wait()


async def until_answered(port: int, path: str, tls: ssl.SSLContext | None) -> Load:
    """One answer, as soon as there is one: a server needs a moment to start."""
    for _ in range(200):
        try:
            return await load(HOST, port, path, connections=1, seconds=0.0, tls=tls)
        except OSError:
            await asyncio.sleep(0.05)
    raise AssertionError("the server does not start")


async def measured(directory: Path, bare_port: int) -> dict[str, object]:
    """Ask all three in turns."""
    plain, encrypted = directory / "plain", directory / "tls"
    authority = Authority(directory)
    tls = ssl.create_default_context(cafile=authority.ca)
    cluster = LocalCluster(counters(plain, brokers=1))
    over_tls = LocalCluster(
        replace(counters(encrypted, brokers=1), settings=authority.process_settings("broker"))
    )
    session = partial(trusting, tls)
    async with (
        running(cluster, NAMESPACE, bundles=BUNDLES),
        running(over_tls, NAMESPACE, bundles=BUNDLES, session=session),
    ):
        servers = (
            ("bare", bare_port, None),
            ("lookup", port_of(cluster), None),
            ("tls", port_of(over_tls), tls),
        )
        rounds: dict[str, list[Load]] = {name: [] for name, _, _ in servers}
        for number in range(ROUNDS):
            path = f"/lookup/v2/topic/persistent/{NAMESPACE}/topic-{number % TOPICS}"
            for name, of_server, context in servers:
                await until_answered(of_server, path, context)
                measured = await load(
                    HOST, of_server, path, connections=CONNECTIONS, seconds=ROUND_S, tls=context
                )
                assert not measured.failures, measured.failures[0]
                rounds[name].append(measured)
    assert cluster.addresses[0].encode() in rounds["lookup"][0].body, rounds["lookup"][0].body
    return {
        "lookup_rate": summary([one.rate for one in rounds["lookup"]], "lookups/s"),
        "bare_rate": summary([one.rate for one in rounds["bare"]], "answers/s"),
        "share": shares(rounds["lookup"], rounds["bare"], "of the bare app's rate"),
        "tls_share": shares(rounds["tls"], rounds["lookup"], "of the rate without TLS"),
        "lookup_latency": summary(
            [latency for one in rounds["lookup"] for latency in one.latencies_ms], "ms"
        ),
    }


def trusting(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """Return a session that trusts the CA of a context."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))


def port_of(cluster: LocalCluster) -> int:
    """Return the port of the first broker."""
    return int(cluster.broker_ids[0].rpartition(":")[2])


def shares(loads: list[Load], of: list[Load], unit: str) -> dict[str, object]:
    """Return the rates of one server as shares of those of another in the same rounds."""
    found = [one.rate / other.rate for one, other in zip(loads, of, strict=True)]
    return {
        "unit": unit,
        "median": round(median(found), 3),
        "worst": round(min(found), 3),
        "repeats": len(found),
    }


def measure(folder: Path) -> dict[str, object]:
    """Measure beside the yardstick."""
    port = free_row(1)
    with bare_server(port):
        return uvloop.run(measured(folder, port))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        uvloop.run(serve_bare(int(sys.argv[2])))
    report(
        "lookup",
        measure,
        f"{CONNECTIONS} connections, rounds of {ROUND_S} s, client and server on the same CPUs,"
        f" {BUNDLES} bundles",
    )
