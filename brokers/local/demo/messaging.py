"""Run real Pulsar clients against the demo's cluster: processes that produce, consume and record numbered messages.

The client program is `tests/pulsar/python_client.py`. Like the checker, it is part of a checkout, not of the installed package.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import orjson

import equipoise
from equipoise.brokers.local.demo.messages import MessageTally
from equipoise.brokers.server.services import PULSAR, default_service
from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.system import private_files
from equipoise.channel.system.deadline import Deadline

_ROOT: Final = Path(equipoise.__file__).resolve().parent.parent
_CLIENT: Final = "tests.pulsar.python_client"
_CLIENT_FILE: Final = _ROOT / "tests" / "pulsar" / "python_client.py"

# Of each kind. Eight bundles hold about two topics each.
_TOPICS: Final = 8
_MESSAGES_PER_SECOND_AND_TOPIC: Final = 20.0

# Clients import a library of 60 MB, and start while the cluster runs its first rounds.
_READY_S: Final = 30.0

# The last messages arrive within a network round trip. This allows for a busy machine.
_LAST_DELIVERIES_S: Final = 1.0

# A producer waits 10 s for its last receipts, and each client 5 s for its closing.
_END_S: Final = 20.0

_LAST_WORDS_BYTES: Final = 2_000

# How often the demo checks whether messages flow again.
_LOOK_S: Final = 0.01


class PulsarClientMissing(OperatorError):
    """Pulsar clients are required but not available."""

    def __init__(self, *, problem: str) -> None:
        """`problem` is what is missing."""
        super().__init__(f"the demo is to show Pulsar clients, and {problem}; install what `make setup` does, or unset CI")


class PulsarClientFailed(PeerError):
    """A client ended too early or did not start."""

    def __init__(self, *, client: str, problem: str, last_words: str) -> None:
        """`last_words` is the end of its standard error."""
        self.client = client
        super().__init__(f"the Pulsar client {client} {problem}; its last words: {last_words or 'none'}")


def lacking() -> str | None:
    """Return what is missing for Pulsar clients, here or in the brokers; None if nothing is. Raises `PulsarClientMissing` in CI."""
    problem = None
    if default_service() != PULSAR:
        problem = "the extra `pulsar` is not installed, without which no broker takes Pulsar's clients"
    elif find_spec("pulsar") is None:
        problem = "the package pulsar-client is not installed"
    elif not _CLIENT_FILE.exists():
        problem = "their program is not shipped, it is part of a checkout"
    if problem is not None and os.environ.get("CI", "").lower() == "true":
        raise PulsarClientMissing(problem=problem)
    return problem


class _Client:
    """One client process. Its lines go into `history` and into the tally."""

    def __init__(self, name: str, words: Sequence[str], folder: Path, tally: MessageTally) -> None:
        self.name = name
        self.history = folder / f"{name}.jsonl"
        self.ready = asyncio.Event()
        self._words = words
        self._complaints = folder / f"{name}.log"
        self._tally = tally
        self._process: Process | None = None
        self._reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_started(self) -> bool:
        """Whether it has been started and must be stopped."""
        return self._process is not None

    async def start(self) -> None:
        """Start it, and wait until it produces or consumes. Raises `PulsarClientFailed` or OSError."""
        with self._complaints.open("wb") as complaints:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _CLIENT, *self._words, "--name", self.name),
                stdin=PIPE,  # We hold its other end, so a client never outlives us.
                stdout=PIPE,
                stderr=complaints,
                cwd=_ROOT,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its clients in order.
            )
        self._reading = asyncio.ensure_future(self._read(self._process))
        ready = asyncio.ensure_future(self.ready.wait())
        await asyncio.wait([ready, self._reading], timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not self.ready.is_set():
            raise self._failed("ended at once" if self._reading.done() else f"was not ready within {_READY_S:.0f} s")

    async def stop(self) -> str | None:
        """Stop it, and read its remaining lines. Return its problem: it ended early, hangs, or has failed.

        Do nothing if it was not started.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None, "it was started with one"
        problem = "ended before it was told to" if process.returncode is not None else None
        process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                if await process.wait() and problem is None:
                    problem = f"ended with code {process.returncode}"
        except TimeoutError:
            process.kill()
            await process.wait()
            problem = f"did not end within {_END_S:.0f} s"
        (heard,) = await asyncio.gather(self._reading, return_exceptions=True)
        if isinstance(heard, Exception):
            problem = f"could not be understood: {heard!r}"
        return None if problem is None else str(self._failed(problem))

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None, "it was started with one"
        os.mknod(self.history, private_files.MODE)
        with self.history.open("ab") as history:
            async for line in process.stdout:
                history.write(line)
                self._tally.note(orjson.loads(line))
                self.ready.set()

    def _failed(self, problem: str) -> PulsarClientFailed:
        words = self._complaints.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip()
        return PulsarClientFailed(client=self.name, problem=problem, last_words=words)


class PulsarClients:
    """A producer and consumers of two kinds, as an async context.

    Half of the topics have an Exclusive subscription, with one consumer for all of them. The other half have a Shared one, with two
    consumers. `tally` counts the messages.
    """

    def __init__(self, *, url: str, namespace: str, folder: Path) -> None:
        """Start nothing yet. `url` is a Pulsar service URL. `folder` must not exist yet, and gets the histories."""
        orders, events = ([f"non-persistent://{namespace}/{kind}-{number}" for number in range(_TOPICS)] for kind in ("orders", "events"))
        self.topics = (*orders, *events)
        self.tally = MessageTally(self.topics)
        self._folder = folder

        def client(name: str, *words: str, topics: Sequence[str]) -> _Client:
            return _Client(name, [words[0], "--url", url, "--topics", ",".join(topics), *words[1:]], folder, self.tally)

        self._consumers = (
            client("ledger", "consume", "--subscription", "ledger", "--type", "Exclusive", topics=orders),
            client("worker-1", "consume", "--subscription", "workers", "--type", "Shared", topics=events),
            client("worker-2", "consume", "--subscription", "workers", "--type", "Shared", topics=events),
        )
        self._producer = client("producer", "produce", "--rate", str(_MESSAGES_PER_SECOND_AND_TOPIC), topics=self.topics)

    @property
    def histories(self) -> Sequence[Path]:
        """The files that the clients write for the checker, complete when the context has ended."""
        return [client.history for client in (*self._consumers, self._producer)]

    async def __aenter__(self) -> Self:
        self._folder.mkdir(mode=0o700)
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def _start(self) -> None:
        """Start the producer after all consumers. Wait for every consumer before a failure is raised."""
        started = await asyncio.gather(*(consumer.start() for consumer in self._consumers), return_exceptions=True)
        for problem in filter(None, started):
            raise problem
        await self._producer.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> str | None:
        """Stop the producer, then the consumers once the last messages have arrived. Return the first problem of a client, if any.

        Do nothing if all have stopped.
        """
        ended = []
        if self._producer.is_started:
            ended = [await self._producer.stop()]
            await asyncio.sleep(_LAST_DELIVERIES_S)
        ended += await asyncio.gather(*(consumer.stop() for consumer in self._consumers))
        return next((problem for problem in ended if problem is not None), None)

    async def flow_again(self, *, timeout_ms: int) -> None:
        """Wait until a message sent from now on has been delivered on every topic. Raises `DeadlineExceeded`."""
        since_ns = time.monotonic_ns()
        deadline = Deadline.after(timeout_ms=timeout_ms)
        while not self.tally.flow_since(since_ns):
            deadline.check(f"messages on each of {len(self.topics)} topics")
            await asyncio.sleep(_LOOK_S)
