"""Where the log of a test or a benchmark lies: the kinds of log that processes can share, and how
each is taken away for a while.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from compose.local_kafka.cluster import Cluster
from equipoise.brokers.agent.timing import timing_of
from tests.kafka.finding import local_kafka, some_kafka
from tests.load.lock_holder import write_lock_held

# What a machine that is busy with all this takes for what takes no time elsewhere.
_BUSY_MS: Final = 40_000
_LEASES: Final = 6


class LogKind(StrEnum):
    """What keeps the log."""

    SQLITE = "sqlite"
    KAFKA = "kafka"


class LogPlace(Protocol):
    """A log of one's own, which can be taken away from everybody."""

    @property
    def url(self) -> str:
        """As brokers are given it."""
        ...

    def away(self, *, stopped: bool = False) -> AbstractAsyncContextManager[None]:
        """Nobody can append in the body; with `stopped` because a process hangs (SIGSTOP) that all
        others wait for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A file; while another process holds its lock, it can be read and not be written to."""

    path: Path

    @property
    def url(self) -> str:
        """See `LogPlace.url`."""
        return f"sqlite:{self.path}"

    def away(self, *, stopped: bool = False) -> AbstractAsyncContextManager[None]:
        """See `LogPlace.away`."""
        return write_lock_held(self.path, stopped=stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTopic:
    """A topic of a Kafka that nobody else uses; while that is killed (`kill -9`) or hangs, it can
    be neither read nor written to.
    """

    cluster: Cluster
    topic: str

    @property
    def url(self) -> str:
        """See `LogPlace.url`."""
        return f"kafka://{self.cluster.address}/{self.topic}"

    @asynccontextmanager
    async def away(self, *, stopped: bool = False) -> AsyncIterator[None]:
        """See `LogPlace.away`. Raises as `Cluster.start` does."""
        if stopped:
            for node in self.cluster.nodes:
                node.suspend()
        else:
            await asyncio.to_thread(self.cluster.kill)
        try:
            yield
        finally:
            for node in self.cluster.nodes:
                node.resume()
            await asyncio.to_thread(self.cluster.start)  # Which does nothing to a node that runs.


@contextmanager
def breakable_place(kind: LogKind, folder: Path) -> Iterator[LogPlace]:
    """A new log in `folder`, which exists; on Kafka with a node of its own. Raises as
    `Cluster.start` does.
    """
    if kind is LogKind.SQLITE:
        yield LogFile(path=folder / "channel.db")
        return
    with local_kafka(folder / "kafka") as cluster:
        yield LogTopic(cluster=cluster, topic="equipoise")


@contextmanager
def new_log(kind: LogKind, folder: Path) -> Iterator[str]:
    """The URL of a new log in `folder`, or on a Kafka that tests find (see `some_kafka`, which says
    what it raises).
    """
    if kind is LogKind.SQLITE:
        yield f"sqlite:{folder}/channel.db"
        return
    with some_kafka(folder / "kafka") as address:
        yield f"kafka://{address}/equipoise-{uuid.uuid4().hex}"


def add_log_option(parser: argparse.ArgumentParser) -> None:
    """Have a program ask for the kind of its log, as `log`."""
    parser.add_argument(
        "--log",
        type=LogKind,
        choices=list(LogKind),
        default=LogKind.SQLITE,
        help="what keeps the log (default: sqlite)",
    )


def settled_ms(log_url: str) -> int:
    """How long anything may take that waits for leases of brokers with default settings to run
    out.
    """
    timing = timing_of(log_url)
    return _BUSY_MS + _LEASES * (timing.lease_ms + timing.grace_ms)
