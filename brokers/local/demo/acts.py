"""The acts of the demo: changes to the cluster while callers and Pulsar clients are at work.

Each act announces what it does, and ends when every bundle is owned. Acts can be played in any order and repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from equipoise.brokers.errors import BrokerUnreachable
from equipoise.brokers.local.demo import operator
from equipoise.brokers.local.demo.load_acts import divide, even_out
from equipoise.brokers.local.demo.operator import Deed
from equipoise.brokers.local.demo.stage import Stage
from equipoise.brokers.local.demo.tuning import QUICK, tune

Act = Callable[[Stage], Awaitable[None]]

# Long enough for a few rounds of the balancer.
_BALANCE_S: Final = 4.0

# Namespaces take turns: half of the operations affect counters, half affect topics.
_TRANSFERS: Final = 8
_CUTS: Final = 4
_BETWEEN_MOVES_S: Final = 0.25
_BETWEEN_ACTS_S: Final = 1.0


async def balance(stage: Stage) -> None:
    """Let the leader balance."""
    stage.say("nobody does anything: the leader levels the load by itself")
    await asyncio.sleep(_BALANCE_S)


async def transfer(stage: Stage) -> None:
    """Transfer bundles."""
    stage.say(f"an operator transfers {_TRANSFERS} bundles in use")
    await _move(stage, Deed.TRANSFER, _TRANSFERS)


async def split(stage: Stage) -> None:
    """Split bundles."""
    stage.say(f"{_CUTS} bundles are cut in two; their callers and clients go on, under the same token")
    await _move(stage, Deed.SPLIT, _CUTS)


async def merge(stage: Stage) -> None:
    """Merge bundles."""
    stage.say(f"{_CUTS} pairs of neighbours become one bundle each, after a transfer where they have two owners")
    await _move(stage, Deed.MERGE, _CUTS)


async def drain(stage: Stage) -> None:
    """Drain a broker, stop it, and restart it."""
    number = (stage.number_of_leader() + 1) % len(stage.cluster.broker_ids)
    broker, incarnation = stage.cluster.broker_ids[number], stage.incarnation(number)
    held = stage.table.view.held_count(incarnation)
    stage.say(f"{broker} drains: its {held} bundles move away, and it takes nothing new")
    problem = await operator.drain(stage.http, stage.cluster.addresses[number])
    if problem is not None:
        stage.say(f"{broker} does not drain: {problem}")
    await stage.settled(without=incarnation)
    stage.say(f"{broker} is empty, leaves, and comes back")
    await asyncio.to_thread(stage.cluster.restart, number)
    await asyncio.sleep(_BETWEEN_ACTS_S)


async def kill(stage: Stage) -> None:
    """Kill a broker that does not lead, and restart it."""
    await _kill(stage, (stage.number_of_leader() + 1) % len(stage.cluster.broker_ids))


async def kill_leader(stage: Stage) -> None:
    """Kill the leader, and restart it."""
    await _kill(stage, stage.number_of_leader())


async def _kill(stage: Stage, number: int) -> None:
    broker, incarnation = stage.cluster.broker_ids[number], stage.incarnation(number)
    leads = " which leads," if number == stage.number_of_leader() else ""
    stage.say(f"kill -9 of {broker},{leads} with {stage.table.view.held_count(incarnation)} bundles")
    began_s = stage.now_s
    with stage.killing():
        await asyncio.to_thread(stage.cluster.kill, number)
        await stage.settled(without=incarnation)
        owned_ms = (stage.now_s - began_s) * 1_000
        await stage.flow_again()
    back = "" if stage.pulsar is None else f"all Pulsar clients are back after {(stage.now_s - began_s) * 1_000:.0f} ms, "
    stage.say(f"all bundles are owned again after {owned_ms:.0f} ms, {back}and {broker} is started again")
    await asyncio.to_thread(stage.cluster.restart, number)
    await asyncio.sleep(_BETWEEN_ACTS_S)


async def _move(stage: Stage, deed: Deed, times: int) -> None:
    """Do a deed so many times, and report how long those that were done took."""
    took_ms: list[float] = []
    for _ in range(times):
        ms = await stage.move(deed)
        took_ms += [] if ms is None else [ms]
        await asyncio.sleep(_BETWEEN_MOVES_S)
    if took_ms:
        stage.say(f"{len(took_ms)} {deed}s done, each in {min(took_ms):.0f} to {max(took_ms):.0f} ms")


async def begin(stage: Stage) -> None:
    """Change settings so that effects are visible, create the namespaces, and wait until all their bundles are owned.

    Raises `BrokerUnreachable` if a namespace cannot be created, and what `tune` raises.
    """
    await tune(stage.cluster.log_url, QUICK)
    broker, address = stage.cluster.broker_ids[0], stage.cluster.addresses[0]
    for namespace, bundles in stage.bundles.items():
        problem = await operator.create_namespace(stage.http, address, namespace, bundles=bundles)
        if problem is not None:
            raise BrokerUnreachable(broker=broker, address=address, problem=problem)
    made = " and ".join(f"{namespace} with {bundles} bundles" for namespace, bundles in stage.bundles.items())
    stage.say(f"the brokers share {made}")
    await stage.settled()


ACTS: Final[tuple[Act, ...]] = (balance, even_out, transfer, split, kill, divide, merge, drain, kill_leader)
