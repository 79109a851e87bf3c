"""Run real Pulsar clients against the demo's cluster: processes that produce, consume and record
numbered messages.

The client program is `tests/pulsar/python_client.py`, and `tests/pulsar/README.md` defines the
format of its lines. Like the checker, it is part of a checkout, not of the installed package.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import orjson

import equipoise
from equipoise.brokers.local.demo.callers import end
from equipoise.brokers.runtime.services import PULSAR, default_service
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

_ERROR_BYTES: Final = 2_000

# How often the demo checks whether messages flow again.
_LOOK_S: Final = 0.01


# A message with a receipt this shortly before a kill may still have been in the consumer's process.
BEFORE_A_KILL_NS: Final = 500_000_000

_NS_PER_MS: Final = 1_000_000
_NEVER_NS: Final = 1 << 63


class MessageTally:
    """Counts receipts of messages, and the longest time that a message waited for its receipt. The
    checker finds what was lost.

    * Times are nanoseconds of CLOCK_MONOTONIC.
    * Each topic has one producer, which numbers its messages from 0, and one subscription.
    * Pauses while brokers are killed are separate: non-persistent topics promise nothing there.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._sent_ns: dict[tuple[str, int], int] = {}
        # By event and topic, the highest number of a message.
        self._highest = {
            event: dict.fromkeys(topics, -1) for event in ("sent", "receipted", "received")
        }
        self._kills: list[tuple[int, int]] = []
        self.receipted = 0
        self.recent_pause_ms = 0.0
        self.longest_pause_ms = 0.0
        self.longest_pause_in_kills_ms = 0.0

    def note(self, line: Mapping[str, object]) -> None:
        """Process one line of a client. Raises KeyError or TypeError if it is not valid."""
        if line["event"] == "ready":
            return
        event, topic, n, at_ns = line["event"], line["topic"], line["n"], line["at_ns"]
        if not (
            isinstance(event, str)
            and isinstance(topic, str)
            and isinstance(n, int)
            and isinstance(at_ns, int)
        ):
            raise TypeError(f"a client printed {line!r:.200}")
        if event == "sent":
            self._sent_ns[topic, n] = at_ns
        elif event == "receipted":
            self._receipt(self._sent_ns.pop((topic, n), at_ns), at_ns)
        elif event == "failed":
            self._sent_ns.pop((topic, n), None)
            return
        self._highest[event][topic] = max(self._highest[event][topic], n)

    def _receipt(self, sent_ns: int, at_ns: int) -> None:
        self.receipted += 1
        pause_ms = (at_ns - sent_ns) / _NS_PER_MS
        self.recent_pause_ms = max(self.recent_pause_ms, pause_ms)
        if any(start <= at_ns and sent_ns <= end for start, end in self._kills):
            self.longest_pause_in_kills_ms = max(self.longest_pause_in_kills_ms, pause_ms)
        else:
            self.longest_pause_ms = max(self.longest_pause_ms, pause_ms)

    def note_waiting(self, now_ns: int) -> None:
        """Count the oldest message without a receipt as a pause until now: else an outage would
        show none until its end.
        """
        oldest_ns = next(iter(self._sent_ns.values()), now_ns)
        self.recent_pause_ms = max(self.recent_pause_ms, (now_ns - oldest_ns) / _NS_PER_MS)

    def kill_begins(self, now_ns: int) -> None:
        """Note that a broker is about to be killed."""
        self._kills.append((now_ns - BEFORE_A_KILL_NS, _NEVER_NS))

    def kill_ends(self, now_ns: int) -> None:
        """Note that all clients are back."""
        self._kills[-1] = self._kills[-1][0], now_ns

    def windows(self, now_ns: int) -> Sequence[tuple[int, int]]:
        """Return the periods that kills affected, from and to. One that has not ended lasts until
        now.
        """
        return [(start, min(end, now_ns)) for start, end in self._kills]

    def sent(self) -> Mapping[str, int]:
        """Return the highest number sent on each topic, -1 for none."""
        return dict(self._highest["sent"])

    def flows_after(self, sent: Mapping[str, int]) -> bool:
        """Return whether on every topic a message above these numbers has been receipted, and one
        delivered.
        """
        return all(
            numbers[topic] > n for numbers in self._highest.values() for topic, n in sent.items()
        )


def lacking() -> str | None:
    """Return what is missing for Pulsar clients, here or in the brokers; None if nothing is. Raises
    `OperatorError` in CI.
    """
    problem = None
    if default_service() != PULSAR:
        problem = (
            "the extra `pulsar` is not installed, and brokers need it to accept Pulsar clients"
        )
    elif find_spec("pulsar") is None:
        problem = "the package pulsar-client is not installed"
    elif not _CLIENT_FILE.exists():
        problem = "the clients' program is missing: it is part of a checkout, not of the package"
    if problem is not None and os.environ.get("CI", "").lower() == "true":
        raise OperatorError(
            f"the demo cannot start Pulsar clients: {problem}; run `make setup`, or unset CI"
        )
    return problem


class _Client:
    """One client process. Its lines go into `history` and into the tally."""

    def __init__(
        self, name: str, arguments: Sequence[str], folder: Path, tally: MessageTally
    ) -> None:
        self.name = name
        self.history = folder / f"{name}.jsonl"
        self.ready = asyncio.Event()
        self._arguments = arguments
        self._errors = folder / f"{name}.log"
        self._tally = tally
        self._process: Process | None = None
        self._reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_started(self) -> bool:
        """Whether it has been started and must be stopped."""
        return self._process is not None

    async def start(self) -> None:
        """Start it, and wait until it produces or consumes. Raises `PeerError` or OSError."""
        with self._errors.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _CLIENT, *self._arguments, "--name", self.name),
                stdin=PIPE,  # We hold its other end, so a client never outlives us.
                stdout=PIPE,
                stderr=errors,
                cwd=_ROOT,
                # Ctrl-C is for the demo, which then ends its clients in order.
                start_new_session=True,
            )
        self._reading = asyncio.ensure_future(self._read(self._process))
        ready = asyncio.ensure_future(self.ready.wait())
        await asyncio.wait(
            [ready, self._reading], timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED
        )
        ready.cancel()
        if not self.ready.is_set():
            raise self._failure(
                "ended at once"
                if self._reading.done()
                else f"was not ready within {_READY_S:.0f} s"
            )

    async def stop(self) -> str | None:
        """Stop it, and read its remaining lines. Return its problem: it ended early, hangs, or has
        failed.

        Do nothing if it was not started.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        ended_early = process.returncode is not None
        code = await end(process, timeout_s=_END_S)
        problem = (
            None
            if code == 0
            else f"ended with code {code}"
            if code is not None
            else f"did not end within {_END_S:.0f} s"
        )
        if ended_early:
            problem = "ended before it was stopped"
        (read,) = await asyncio.gather(self._reading, return_exceptions=True)
        if isinstance(read, Exception):
            problem = f"printed a line that is not valid: {read!r}"
        return None if problem is None else str(self._failure(problem))

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None, "it was started with one"
        os.mknod(self.history, private_files.MODE)
        with self.history.open("ab") as history:
            async for line in process.stdout:
                history.write(line)
                self._tally.note(orjson.loads(line))
                self.ready.set()

    def _failure(self, problem: str) -> PeerError:
        printed = self._errors.read_bytes()[-_ERROR_BYTES:].decode(errors="replace").strip()
        return PeerError(
            f"the Pulsar client {self.name} {problem}; it printed: {printed or 'no error'}"
        )


class PulsarClients:
    """A producer and consumers of two kinds, as an async context.

    Half of the topics have an Exclusive subscription, with one consumer for all of them. The other
    half have a Shared one, with two consumers. `tally` counts the messages.
    """

    def __init__(self, *, url: str, namespace: str, folder: Path) -> None:
        """Start nothing yet. `url` is a Pulsar service URL. `folder` must not exist yet, and gets
        the histories.
        """
        orders, events = (
            [f"non-persistent://{namespace}/{kind}-{number}" for number in range(_TOPICS)]
            for kind in ("orders", "events")
        )
        self.topics = (*orders, *events)
        self.tally = MessageTally(self.topics)
        self._folder = folder

        def client(name: str, command: str, *options: str, topics: Sequence[str]) -> _Client:
            return _Client(
                name,
                [command, "--url", url, "--topics", ",".join(topics), *options],
                folder,
                self.tally,
            )

        self._consumers = (
            client(
                "ledger",
                "consume",
                "--subscription",
                "ledger",
                "--type",
                "Exclusive",
                topics=orders,
            ),
            client(
                "worker-1",
                "consume",
                "--subscription",
                "workers",
                "--type",
                "Shared",
                topics=events,
            ),
            client(
                "worker-2",
                "consume",
                "--subscription",
                "workers",
                "--type",
                "Shared",
                topics=events,
            ),
        )
        self._producer = client(
            "producer", "produce", "--rate", str(_MESSAGES_PER_SECOND_AND_TOPIC), topics=self.topics
        )

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
        """Start the producer after all consumers. Wait for every consumer before a failure is
        raised.
        """
        started = await asyncio.gather(
            *(consumer.start() for consumer in self._consumers), return_exceptions=True
        )
        for problem in filter(None, started):
            raise problem
        await self._producer.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> str | None:
        """Stop the producer, then the consumers once the last messages have arrived. Return the
        first problem of a client, if any.

        Do nothing if all have stopped.
        """
        ended = []
        if self._producer.is_started:
            ended = [await self._producer.stop()]
            await asyncio.sleep(_LAST_DELIVERIES_S)
        ended += await asyncio.gather(*(consumer.stop() for consumer in self._consumers))
        return next((problem for problem in ended if problem is not None), None)

    async def messages_flow(self, *, timeout_ms: int) -> None:
        """Wait until a message sent from now on has been delivered on every topic. Raises
        `DeadlineExceeded`.
        """
        sent = self.tally.sent()
        deadline = Deadline.after(timeout_ms=timeout_ms)
        while not self.tally.flows_after(sent):
            deadline.check(f"messages on each of {len(self.topics)} topics")
            await asyncio.sleep(_LOOK_S)
