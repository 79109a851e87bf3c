"""The counter example over real sockets, under load, while its bundles move."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from equipoise import Worker
from equipoise.examples.counter import Counter
from equipoise.examples.counter_store import CounterStore

pytestmark = pytest.mark.integration

NAMESPACE = "shop/orders"
KEYS = ("hot", "warm", "cold", "colder")
CHECKER = Path(__file__).resolve().parent.parent / "checker" / "checker.py"
TRANSFERS = 12
HOPS_MAX = 5


@dataclass(kw_only=True)
class Counters:
    """Brokers that count into one store, and the history of their callers."""

    folder: Path
    session: aiohttp.ClientSession
    workers: list[Worker] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    stopping: bool = False

    @property
    def brokers(self) -> list[str]:
        """Return the ids of the brokers, which are their addresses."""
        return [worker.broker_id for worker in self.workers]

    async def call(self, broker: str, key: str, request: str) -> tuple[int | None, str | None]:
        """Call once, and note it for the checker. Return the status, and the broker of a
        redirect.
        """
        line: dict[str, object] = {
            "request": request,
            "key": f"{NAMESPACE}/{key}",
            "target": broker,
            "caller": "test",
        }
        status, location = None, None
        line["call_ns"] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            url = f"http://{broker}/counter/{NAMESPACE}/{key}"
            async with self.session.post(
                url, headers={"X-Request-Id": request}, allow_redirects=False
            ) as response:
                status, location, text = (
                    response.status,
                    response.headers.get("Location"),
                    await response.text(),
                )
        except aiohttp.ClientError:
            text = ""
        answer = json.loads(text) if status == 200 else {}
        line |= {"return_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "status": status}
        self.history.append(
            json.dumps(
                {**line, **{name: answer.get(name) for name in ("broker", "token", "value")}}
            )
        )
        return status, None if location is None else location.split("/")[2]

    async def keep_calling(self, key: str, *, stubborn: bool = False) -> None:
        """Count again and again, following redirects. With `stubborn`, ask every broker in turn."""
        broker = self.brokers[0]
        while not self.stopping:
            request = f"{key}-{next(self.numbers)}"
            for _ in range(HOPS_MAX):
                status, onward = await self.call(broker, key, request)
                if status in (200, 503):
                    break  # After a refusal the next request is a new one.
                broker = onward or self.brokers[next(self.numbers) % len(self.brokers)]
            if stubborn:
                broker = self.brokers[next(self.numbers) % len(self.brokers)]

    async def transfer(self, key: str) -> None:
        """Move the bundle of a key to the other broker, over HTTP."""
        (owner, bundle) = next(
            (worker.broker_id, found.bundle.name)
            for worker in self.workers
            if (found := worker.ownership(NAMESPACE, key)) is not None
        )
        other = next(broker for broker in self.brokers if broker != owner)
        path = f"admin/v2/namespaces/{bundle}/unload?destinationBroker={other}"
        # A busy machine may keep the log from everybody for too long. Then nothing was appended.
        status, text = 503, ""
        while status == 503:
            async with self.session.put(f"http://{owner}/{path}") as response:
                status, text = response.status, await response.text()
        assert 204 == status, text

    def checked(self) -> subprocess.CompletedProcess[str]:
        """Run the checker."""
        history = self.folder / "history.jsonl"
        history.write_text("".join(f"{line}\n" for line in self.history))
        evidence = [str(path) for path in sorted(self.folder.glob("accepts-*.jsonl"))]
        command = [
            sys.executable,
            str(CHECKER),
            str(history),
            "--store",
            str(self.folder / "counter.db"),
            "--evidence",
            *evidence,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@asynccontextmanager
async def counters(folder: Path, log_url: str) -> AsyncIterator[Counters]:
    """Yield two brokers that serve a namespace of four bundles."""
    async with AsyncExitStack() as parts:
        session = await parts.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        made = Counters(folder=folder, session=session)
        for name in ("a", "b"):
            store = CounterStore(folder / "counter.db")
            parts.callback(store.close)
            worker = Worker(
                log_url,
                Counter(store),
                data_dir=folder / name,
                http_port=0,
                evidence=folder / f"accepts-{name}.jsonl",
                balance=False,
            )
            made.workers.append(await parts.enter_async_context(worker))
        for worker in made.workers:
            await worker.create_namespace(NAMESPACE, bundles=4)
            for key in KEYS:
                await worker.route(NAMESPACE, key)
        yield made


async def test_transfers_under_load_pass_the_checker(tmp_path: Path, log_url: str) -> None:
    """Each acknowledged count is stored once, and no key has two owners."""
    async with counters(tmp_path, log_url) as brokers:
        callers = [
            asyncio.ensure_future(brokers.keep_calling(key)) for key in KEYS for _ in range(2)
        ]
        callers.append(asyncio.ensure_future(brokers.keep_calling("hot", stubborn=True)))
        for key, _ in zip(itertools.cycle(KEYS), range(TRANSFERS), strict=False):
            answered = len(brokers.history)
            await brokers.transfer(key)
            while len(brokers.history) < answered + 20:
                assert not any(caller.done() for caller in callers)
                await asyncio.sleep(0.002)
        brokers.stopping = True
        await asyncio.gather(*callers)
    verdict = brokers.checked()
    assert 0 == verdict.returncode, verdict.stdout + verdict.stderr
    assert ["double owners: 0", "verdict: clean, no violation"] == verdict.stdout.splitlines()[-2:]


async def test_a_caller_only_needs_to_follow_redirects(tmp_path: Path, log_url: str) -> None:
    async with counters(tmp_path, log_url) as brokers:
        values = []
        for broker in (*brokers.brokers, *brokers.brokers):
            async with brokers.session.post(f"http://{broker}/counter/{NAMESPACE}/hot") as response:
                values.append((await response.json())["value"])
        assert [1, 2, 3, 4] == values


async def test_an_unknown_namespace_is_404(tmp_path: Path, log_url: str) -> None:
    async with counters(tmp_path, log_url) as brokers:
        for path, status in (("shop/returns/k", 404), ("shop/%20/k", 404), ("%FF/%FE/k", 404)):
            async with brokers.session.post(
                f"http://{brokers.brokers[0]}/counter/{path}"
            ) as response:
                assert status == response.status, await response.text()
