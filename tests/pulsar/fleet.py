"""Run several clients at once, and have the checker judge their messages at the end."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson

from tests.load.verdicts import Verdict, check_messages
from tests.pulsar.clients import Client, ClientFailedError, Consuming, Event, Producing, Type
from tests.pulsar.programs import Language

Crew = Sequence[tuple[Language, Producing | Consuming]]

# Several times a lease with its grace period (16 s on Kafka, 3.5 s elsewhere) and the clients'
# back-off. Rust's client tries the address of a dead broker for up to a minute before it looks up
# again.
FLOW_S: Final = 120.0
# After the last receipt, some messages are still in sockets and queues of this machine.
QUIET_S: Final = 0.5
_LOOK_S: Final = 0.02
# A client may read the last bytes of a dead broker this much later. The broker may have kept
# messages this long after their receipts.
_SLACK_NS: Final = 250_000_000
# Each consumer of these types gets messages of every topic. Of the other types only one consumer
# does.
_EVERYBODY_GETS: Final = frozenset({Type.EXCLUSIVE, Type.SHARED})


class Fleet:
    """Clients, from `start` to `finish`. Call `kill` in any case.

    Consumers start before producers and end after them, so that every consumer must get everything.
    """

    def __init__(self, folder: Path, crew: Crew) -> None:
        clients = [Client(language, task, folder) for language, task in crew]
        self.producers = [client for client in clients if isinstance(client.task, Producing)]
        self.consumers = [client for client in clients if isinstance(client.task, Consuming)]
        self.windows: list[tuple[int, int]] = []
        self.is_excused = False

    @property
    def clients(self) -> list[Client]:
        """All clients, consumers first."""
        return [*self.consumers, *self.producers]

    def start(self) -> None:
        """Start all. Wait until each topic has had receipts, and each subscription its messages."""
        for clients in (self.consumers, self.producers):
            for client in clients:
                client.start()
            for client in clients:
                client.wait_ready()
        self.wait_flowing(time.monotonic_ns())

    # --- progress ---

    def stalled(self, since_ns: int) -> list[str]:
        """Return which producers have had no receipts since then, and which consumers no messages,
        with the topics.
        """
        found: list[str] = []
        groups: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for client in self.producers:
            found += _late(
                f"receipts of {client.name}",
                client.last_ns(Event.RECEIPTED),
                client.task.topics,
                since_ns,
            )
        for client in self.consumers:
            task, last_ns = client.task, client.last_ns(Event.RECEIVED)
            assert isinstance(task, Consuming), "as sorted"
            if task.type in _EVERYBODY_GETS:
                found += _late(
                    f"messages for {client.name}", last_ns, _expected(task, last_ns), since_ns
                )
            else:
                group = groups[task.subscription]
                group |= {
                    topic: max(at_ns, group.get(topic, 0)) for topic, at_ns in last_ns.items()
                }
        for subscription, last_ns in groups.items():
            found += _late(
                f"messages for {subscription}", last_ns, last_ns or ("any topic",), since_ns
            )
        return found

    def wait_flowing(self, since_ns: int, *, timeout_s: float = FLOW_S) -> None:
        """Wait until no client is `stalled` since then. Raises `ClientFailedError`."""
        _wait(lambda: self.stalled(since_ns), self.clients, timeout_s)

    def wait_receipts(self, more: int, *, timeout_s: float = FLOW_S) -> None:
        """Wait until each producer has had `more` receipts. Raises `ClientFailedError`."""
        for client, before in [
            (client, client.count(Event.RECEIPTED)) for client in self.producers
        ]:
            client.wait_count(Event.RECEIPTED, before + more, timeout_s=timeout_s)

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Excuse losses until all clients make progress again, because a broker dies or a bundle is
        unloaded in the body.
        """
        began_ns = time.monotonic_ns()
        self.is_excused = True
        yield
        self.wait_flowing(time.monotonic_ns() + _SLACK_NS)
        self.windows.append((began_ns - _SLACK_NS, time.monotonic_ns()))
        self.is_excused = False

    # --- the end ---

    def finish(self, *, evidence: Callable[[], Sequence[Path]] = tuple) -> Verdict:
        """Stop producers, then consumers. Return the checker's verdict on their histories and on
        the `evidence` after their end.
        """
        self._stop(self.producers)
        _wait(self._noise, self.consumers, FLOW_S)
        self._stop(self.consumers)
        return check_messages(
            [client.history for client in self.clients], evidence=evidence(), windows=self.windows
        )

    def failures(self) -> list[str]:
        """Return why sends failed, with their messages. Call it after `finish`."""
        said = [
            orjson.loads(line)
            for client in self.producers
            for line in client.history.read_bytes().splitlines()
        ]
        return [
            f"{each['topic']} {each['n']}: {each['why']}"
            for each in said
            if each["event"] == Event.FAILED
        ]

    def longest_pauses_ms(self) -> dict[str, float]:
        """Return each producer's longest time between two receipts on one topic without an excused
        loss. Call it after `finish`.
        """
        longest = dict.fromkeys((client.name for client in self.producers), 0)
        for client in self.producers:
            last_ns: dict[str, int] = {}
            for said in map(orjson.loads, client.history.read_bytes().splitlines()):
                if said["event"] == Event.RECEIPTED:
                    before_ns, at_ns = last_ns.get(said["topic"], said["at_ns"]), said["at_ns"]
                    if not any(before_ns <= end and start <= at_ns for start, end in self.windows):
                        longest[client.name] = max(longest[client.name], at_ns - before_ns)
                    last_ns[said["topic"]] = at_ns
        return {name: pause_ns / 1e6 for name, pause_ns in longest.items()}

    def _noise(self) -> list[str]:
        """Return which consumers have received a message lately."""
        since_ns = time.monotonic_ns() - int(QUIET_S * 1e9)
        return [
            f"silence of {client.name}"
            for client in self.consumers
            if max(client.last_ns(Event.RECEIVED).values(), default=0) > since_ns
        ]

    @staticmethod
    def _stop(clients: Sequence[Client]) -> None:
        with ThreadPoolExecutor(len(clients)) as pool:
            for stopping in [pool.submit(client.stop) for client in clients]:
                stopping.result()

    def kill(self) -> None:
        """Kill all clients that still run."""
        for client in self.clients:
            client.kill()


def _expected(task: Consuming, seen: dict[str, int]) -> Sequence[str]:
    """Return the topics of a consumer. For patterns and partitions these are the topics that it has
    seen.
    """
    unseen = [
        topic
        for topic in task.topics
        if not any(one.startswith(f"{topic}-partition-") for one in seen)
    ]
    return [*unseen, *(topic for topic in seen if topic not in unseen)] or ["any topic"]


def _late(
    what: str, last_ns: dict[str, int], topics: Sequence[str] | dict[str, int], since_ns: int
) -> list[str]:
    return [f"{what} of {topic}" for topic in topics if last_ns.get(topic, 0) <= since_ns]


def _wait(missing: Callable[[], list[str]], clients: Sequence[Client], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while found := missing():
        for client in clients:
            client.check()
        if time.monotonic() > deadline_s:
            raise ClientFailedError(
                f"nothing came within {timeout_s:.0f} s: {'; '.join(found[:20])} ({len(found)} in"
                " all)"
            )
        time.sleep(_LOOK_S)
