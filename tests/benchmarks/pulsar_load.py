"""Real Pulsar clients as the load of a benchmark: processes of Python's client, and what they wrote
down.
"""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import orjson

from tests.load.verdicts import check_messages
from tests.pulsar.clients import Client, Consuming, Producing
from tests.pulsar.programs import Language

# So long consumers go on after the last producer, for what is under way to them.
_DRAIN_S: Final = 1.0
_CONSUMER: Final = (sys.executable, "-m", "tests.benchmarks.pulsar_consumer")


@asynccontextmanager
async def clients(
    folder: Path, tasks: Sequence[Producing | Consuming]
) -> AsyncIterator[list[Path]]:
    """Run clients, consumers first; at the end producers stop first, and what is under way still
    comes. Their histories.
    """
    started: list[Client] = []
    try:
        for task in tasks:
            client = Client(
                Language.PYTHON,
                task,
                folder,
                program=_CONSUMER if isinstance(task, Consuming) else None,
            )
            started.append(client)
            await asyncio.to_thread(client.start)
            await asyncio.to_thread(client.wait_ready)
        yield [client.history for client in started]
        for client in reversed(started):
            await asyncio.to_thread(client.stop)
            await asyncio.sleep(_DRAIN_S if isinstance(client.task, Producing) else 0)
    finally:
        for client in started:
            await asyncio.to_thread(client.kill)


def receipts(history: Path) -> dict[str, list[int]]:
    """Of each topic, when its receipts came, in order."""
    came: defaultdict[str, list[int]] = defaultdict(list)
    for line in history.read_bytes().splitlines():
        said = orjson.loads(line)
        if said["event"] == "receipted":
            came[said["topic"]].append(said["at_ns"])
    return {topic: sorted(of_topic) for topic, of_topic in came.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which a producer got no receipt."""

    length_ns: int
    ended_ns: int


def longest_gap(came_ns: Sequence[int], *, began_ns: int, ended_ns: int) -> Gap:
    """The longest time between two receipts, of those of which at least a part lies between the two
    points in time.
    """
    first = max(bisect_left(came_ns, began_ns) - 1, 0)
    last = bisect_right(came_ns, ended_ns) + 1
    gaps = [
        Gap(length_ns=after - before, ended_ns=after)
        for before, after in pairwise(came_ns[first:last])
    ]
    return max(gaps, key=lambda gap: gap.length_ns)


async def counted(histories: Sequence[Path]) -> dict[str, object]:
    """The checker's counts of messages: `lost` were receipted and never delivered, `doubled` were
    delivered twice.

    Of those that came `out_of_order` it names the first twenty, so that more than these are not
    counted.
    """
    verdict = await asyncio.to_thread(check_messages, histories)
    print(f"checker: {verdict}", file=sys.stderr)
    assert verdict.problem is None, verdict.problem
    disorder = len(verdict.violations.get("messages_keep_their_order", ()))
    counts = {
        name: verdict.totals[name]
        for name in ("receipted", "lost", "doubled", "failed", "never_settled")
    }
    return {**counts, "out_of_order": disorder}
