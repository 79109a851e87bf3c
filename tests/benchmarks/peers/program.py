"""One program of the benchmark of peers: the HTTP server that is the same for all systems.

An adapter opens and closes shards. The program counts calls in memory, and writes each count to the
store before it answers, with the token of the shard if the system has one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from typing import Any, Final, Protocol

import uvloop
from aiohttp import web

from equipoise.channel.system.clocks import boot_ns
from equipoise.errors import PeerError

SHARDS: Final = 64
_LOOK_S: Final = 0.005
_STORE_S: Final = 30.0
_LINE_BYTES: Final = 1 << 22  # Some thousand requests of a shard, at the most.
_END_S: Final = 20.0


class Adapter(Protocol):
    """What decides which program has which shard."""

    async def start(self) -> None:
        """Take part. Return once this program has joined."""

    async def stop(self) -> None:
        """Give all shards away, and leave."""


@dataclass(kw_only=True, eq=False)
class Held:
    """A shard that is open here.

    * `good`: whether it may be served now.
    * `work`: a context around each call; it raises `PeerError` if the call may not be served.
    * `computing`: a context around what a call computes, in which it awaits nothing.
    """

    epoch: int
    token: int | None
    good: Callable[[], bool]
    work: Callable[[], AbstractContextManager[object]]
    computing: Callable[[], AbstractContextManager[object]]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int | None = None
    requests: set[str] = field(default_factory=set)
    is_told: bool = True


class Store:
    """The connection to the store, which also takes note of who has which shard."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def connect(self, port: int) -> None:
        """Connect, and read answers."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=_LINE_BYTES)
        self._reading = asyncio.create_task(self._read(reader))

    def tell(self, **message: Any) -> None:  # noqa: ANN401 - any JSON
        """Send a message without an answer."""
        self._writer.write(json.dumps({"program": self._name, **message}).encode() + b"\n")

    async def ask(self, **message: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
        """Send a message, and return its answer."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self.tell(number=number, **message)
        async with asyncio.timeout(_STORE_S):
            return await answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            answer = json.loads(line)
            self._answers.pop(answer["number"]).set_result(answer)
        os.kill(os.getpid(), signal.SIGKILL)  # The benchmark has ended.


class Program:
    """The shards of this process, and the server that answers for them."""

    def __init__(self, name: str, slot: int, store: Store) -> None:
        """`name` is new at each start; the program that takes the place of another one has its
        `slot`.
        """
        self.name = name
        self.slot = slot
        self.forward: Callable[[int, str], Any] | None = None
        self._store = store
        self._held: dict[int, Held] = {}
        self._epochs = count(1)
        self._due_ns = boot_ns()
        self._loop = asyncio.get_running_loop()

    def open(
        self,
        shard: int,
        *,
        token: int | None = None,
        good: Callable[[], bool] = lambda: True,
        work: Callable[[], AbstractContextManager[object]] = nullcontext,
        computing: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Serve a shard from now on."""
        held = Held(
            epoch=next(self._epochs), token=token, good=good, work=work, computing=computing
        )
        self._held[shard] = held
        self._tell("opened", shard, held)

    async def close(self, shards: Iterable[int]) -> None:
        """Serve no more calls of these shards, and wait for those under way."""
        closing = [(shard, self._held.pop(shard)) for shard in shards if shard in self._held]
        for shard, held in closing:
            async with held.lock:
                if held.is_told:
                    self._tell_end(shard, held)

    def open_soon(self, shard: int, **options: Any) -> None:  # noqa: ANN401 - as `open`
        """As `open`, from another thread."""
        self._loop.call_soon_threadsafe(lambda: self.open(shard, **options))

    def close_and_wait(self, shards: Iterable[int]) -> None:
        """As `close`, from another thread."""
        asyncio.run_coroutine_threadsafe(self.close(list(shards)), self._loop).result()

    async def look(self) -> None:
        """Tell when a shard that is open may not be served, and when it may again."""
        while True:
            self._due_ns = boot_ns() + int(_LOOK_S * 1e9)
            await asyncio.sleep(_LOOK_S)
            for shard, held in self._held.items():
                if held.is_told != held.good():
                    held.is_told = not held.is_told
                    if held.is_told:
                        self._tell("opened", shard, held)
                    else:
                        self._tell_end(shard, held)

    async def call(self, request: web.Request) -> web.Response:
        """Count one call. 503: it is not served here."""
        shard, request_id = int(request.match_info["shard"]), request.query["id"]
        if self.forward is not None:
            return web.Response(status=200 if await self.forward(shard, request_id) else 503)
        held = self._held.get(shard)
        if held is None:
            return web.Response(status=503)
        async with held.lock:
            with suppress(PeerError), held.work():
                if self._held.get(shard) is held and held.good():
                    is_counted = await self._count(shard, held, request_id)
                    with held.computing():
                        _compute(int(request.query.get("us", "0")))
                    if is_counted:
                        return web.Response()
        return web.Response(status=503)

    async def _count(self, shard: int, held: Held, request_id: str) -> bool:
        if held.count is None:
            stored = await self._store.ask(do="read", shard=shard)
            held.count, held.requests = stored["count"], set(stored["requests"])
        if request_id in held.requests:
            return True
        answer = await self._store.ask(
            do="write",
            shard=shard,
            epoch=held.epoch,
            token=held.token,
            count=held.count + 1,
            request=request_id,
        )
        if answer["accepted"]:
            held.count += 1
            held.requests.add(request_id)
        return bool(answer["accepted"])

    def _tell_end(self, shard: int, held: Held) -> None:
        """Tell that a shard is not served any more: since now, or since `look` should have seen it.
        A process that was stopped meanwhile finds out before it serves.
        """
        now_ns = boot_ns()
        ended_ns = now_ns if held.good() else min(now_ns, self._due_ns)
        self._tell("closed", shard, held, at_ns=ended_ns)

    def _tell(self, what: str, shard: int, held: Held, at_ns: int | None = None) -> None:
        self._store.tell(do=what, shard=shard, epoch=held.epoch, at_ns=at_ns or boot_ns())


def _compute(us: int) -> None:
    end_ns = time.thread_time_ns() + 1_000 * us
    while us and time.thread_time_ns() < end_ns:
        pass


async def main(options: Mapping[str, Any]) -> None:
    """Serve until SIGTERM."""
    store, ending = Store(options["name"]), asyncio.Event()
    await store.connect(options["store"])
    program = Program(options["name"], options["slot"], store)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    module = import_module(f"tests.benchmarks.peers.adapters.{options['adapter']}")
    adapter: Adapter = module.Adapter(program, options["settings"])
    app = web.Application()
    app.add_routes([web.post("/shards/{shard}", program.call)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", options["port"]).start()
    looking = asyncio.create_task(program.look())
    await adapter.start()
    store.tell(do="started")
    await ending.wait()
    async with asyncio.timeout(_END_S):
        await adapter.stop()
        await program.close(range(SHARDS))
    looking.cancel()
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
