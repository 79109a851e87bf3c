"""The steps of the demo: changes to the cluster while callers and Pulsar clients are at work.

Each step announces what it does, and ends when every bundle is owned. Steps can be played in any
order and repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from equipoise.brokers.balancing.decisions import Decision, Kind
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.balancing.settings.settings_records import Changes
from equipoise.brokers.decision_log import open_decision_log
from equipoise.brokers.errors import BrokerUnreachable, counted
from equipoise.brokers.local.demo import operator
from equipoise.brokers.local.demo.demo import COUNTERS, MESSAGES, Demo, comes_true
from equipoise.brokers.local.demo.figures import busiest
from equipoise.brokers.local.demo.operator import CPU_ONLY, QUICK, Move
from equipoise.channel.core.errors import PeerError
from equipoise.channel.system.deadline import Deadline

Step = Callable[[Demo], Awaitable[None]]

# Long enough for a few rounds of the balancer.
_BALANCE_S: Final = 4.0

# Namespaces take turns: half of the operations affect counters, half affect topics.
_TRANSFERS: Final = 8
_SPLITS: Final = 4
_BETWEEN_MOVES_S: Final = 0.25
_BETWEEN_STEPS_S: Final = 1.0

# Reports come every second. A few of them move the average most of the way.
_SEEN_MS: Final = 10_000

# The brokers count as uneven at this deviation of their use. On a busy machine, even brokers stay
# below it.
_UNEVEN: Final = 0.12

# Some rounds. Each comes a second or two after the reports that follow the previous one.
_MEASURED_MS: Final = 20_000
_WRITTEN_MS: Final = 5_000
_SPLIT_MS: Final = 40_000

# How many decisions are searched for the effects of a step. Each broker adds at most one a second.
_DECISIONS_MAX: Final = 300

# A small share, so that the busiest bundle exceeds the limit even on a busy machine. Its halves
# stay below it.
_LIMIT_SHARE: Final = 0.6

# Each namespace keeps this many bundles, however cold: enough for three brokers.
_BUNDLES_MIN: Final = 6

_SHEDDING: Final = "balancing.shedding"


async def begin(demo: Demo) -> None:
    """Change settings so that effects are visible, create the namespaces, and wait until all their
    bundles are owned.

    Raises `BrokerUnreachable` if a namespace cannot be created, and what `tune` raises.
    """
    await asyncio.to_thread(operator.tune, demo.cluster.log_url, QUICK)
    broker, address = demo.cluster.broker_ids[0], demo.cluster.addresses[0]
    for namespace, bundles in demo.bundles.items():
        problem = await operator.create_namespace(demo.http, address, namespace, bundles=bundles)
        if problem is not None:
            raise BrokerUnreachable(broker=broker, address=address, problem=problem)
    created = " and ".join(
        f"{namespace} with {bundles} bundles" for namespace, bundles in demo.bundles.items()
    )
    demo.say(f"the brokers share {created}")
    await demo.settled()


async def balance(demo: Demo) -> None:
    """Let the leader balance."""
    demo.say("no operator acts: the leader balances the load")
    await asyncio.sleep(_BALANCE_S)


async def transfer(demo: Demo) -> None:
    """Transfer bundles."""
    demo.say(f"an operator transfers {_TRANSFERS} bundles in use")
    await _move(demo, MoveKind.TRANSFER, _TRANSFERS)


async def split(demo: Demo) -> None:
    """Split bundles."""
    demo.say(
        f"an operator splits {_SPLITS} bundles; their callers and clients go on, under the same"
        " token"
    )
    await _move(demo, MoveKind.SPLIT, _SPLITS)


async def merge(demo: Demo) -> None:
    """Merge bundles."""
    demo.say(
        f"an operator merges {_SPLITS} pairs of neighbours, after a transfer where they have two"
        " owners"
    )
    await _move(demo, MoveKind.MERGE, _SPLITS)


async def _move(demo: Demo, kind: MoveKind, times: int) -> None:
    """Make a move so many times, and report how long those that were done took."""
    took_ms: list[float] = []
    for _ in range(times):
        ms = await demo.move(kind)
        took_ms += [] if ms is None else [ms]
        await asyncio.sleep(_BETWEEN_MOVES_S)
    if took_ms:
        demo.say(
            f"{len(took_ms)} {kind}s done, each in {min(took_ms):.0f} to {max(took_ms):.0f} ms"
        )


async def drain(demo: Demo) -> None:
    """Drain a broker, stop it, and restart it."""
    number = _follower(demo)
    broker, incarnation = demo.cluster.broker_ids[number], demo.incarnation(number)
    bundles = demo.table.view.held_count(incarnation)
    gives = f"its {counted(bundles, 'bundle')} move away" if bundles else "it has no bundles"
    demo.say(f"{broker} drains: {gives}, and it takes no new ones")
    problem = await operator.drain(demo.http, demo.cluster.addresses[number])
    if problem is not None:
        demo.say(f"{broker} does not drain: {problem}")
    await demo.settled(without=incarnation)
    demo.say(f"{broker} is empty, leaves, and comes back")
    await asyncio.to_thread(demo.cluster.restart, number)
    await asyncio.sleep(_BETWEEN_STEPS_S)


async def kill(demo: Demo) -> None:
    """Kill a broker that does not lead, and restart it."""
    await _kill(demo, _follower(demo))


async def kill_leader(demo: Demo) -> None:
    """Kill the leader, and restart it."""
    await _kill(demo, demo.number_of_leader())


async def _kill(demo: Demo, number: int) -> None:
    broker, incarnation = demo.cluster.broker_ids[number], demo.incarnation(number)
    leads = ", the leader," if number == demo.number_of_leader() else ""
    demo.say(f"kill -9 of {broker}{leads} with {demo.table.view.held_count(incarnation)} bundles")
    began_s = demo.now_s
    with demo.killing():
        await asyncio.to_thread(demo.cluster.kill, number)
        await demo.settled(without=incarnation)
        owned_ms = (demo.now_s - began_s) * 1_000
        await demo.messages_flow()
    back = (
        ""
        if demo.pulsar is None
        else f"all Pulsar clients are back after {(demo.now_s - began_s) * 1_000:.0f} ms, "
    )
    demo.say(
        f"all bundles are owned again after {owned_ms:.0f} ms, {back}and {broker} is restarted"
    )
    await asyncio.to_thread(demo.cluster.restart, number)
    await asyncio.sleep(_BETWEEN_STEPS_S)


def _follower(demo: Demo) -> int:
    return (demo.number_of_leader() + 1) % len(demo.cluster.broker_ids)


# --- what the balancer does: each step sets settings on the channel, and removes them at its end
# ---


async def even_out(demo: Demo) -> None:
    """Move bundles to one broker, show the plan of the balancer, let it act, and compare its
    predictions with what was measured.
    """
    number = _follower(demo)
    loaded = demo.cluster.broker_ids[number]

    def is_seen() -> bool:
        seen = demo.utilization
        return (
            not seen.within(_UNEVEN)
            and max(seen.used, key=seen.used.__getitem__, default=None) == loaded
        )

    await _set(demo, {**CPU_ONLY, _SHEDDING: False})
    demo.say(
        f"balancing is off for a while, and an operator moves {await _move_all_to(demo, number)}"
        f" bundles to {loaded}"
    )
    await comes_true(is_seen, _SEEN_MS)
    demo.say(
        f"their processors are in use by {demo.utilization.text}; `equipoise plan` shows what the"
        " balancer would move:"
    )
    demo.screen.quote(await asyncio.to_thread(operator.plan, demo.cluster.log_url))
    began_s, began_ms = demo.now_s, _wall_ms()
    await _set(demo, {_SHEDDING: True})
    outcome = await _outcome(demo, since_ms=began_ms)
    await _say_why(demo, "shed", since_ms=began_ms)
    if outcome is None:
        demo.say(f"the load after moves has not been measured yet: {demo.utilization.text}")
    else:
        demo.say(f"{demo.now_s - began_s:.1f} s after balancing was turned on: {outcome}")
    await _reset(demo, {**CPU_ONLY, _SHEDDING: True})


async def split_hot_bundles(demo: Demo) -> None:
    """Let the busiest bundle exceed the limit so that the balancer splits it, and let it merge cold
    neighbours.
    """
    hot = busiest(
        demo.table.view, demo.summaries, MESSAGES if demo.pulsar is not None else COUNTERS
    )
    if hot is None:
        demo.say("no broker reports the load of its bundles, so the balancer cannot split any")
        return
    done, began_ms = demo.counts.done, _wall_ms()
    splits, merges = done[MoveKind.SPLIT], done[MoveKind.MERGE]
    changes: Changes = {
        "limits.messages_per_second_max": (
            f"{max(hot.traffic.messages_per_second * _LIMIT_SHARE, 1.0):.1f}"
        ),
        "split.hits_threshold": 1,
        "balancing.merging": True,
        "merge.hits_threshold": 1,
        "merge.bundles_min": _BUNDLES_MIN,
    }
    demo.say(
        f"{hot.bundle} carries {hot.traffic.messages_per_second:.0f} calls or messages/s; the limit"
        " of a bundle is now lower"
    )
    await _set(demo, changes)
    if not await comes_true(lambda: done[MoveKind.SPLIT] > splits, _SPLIT_MS):
        demo.say("no bundle has been split yet")
    if not await comes_true(lambda: done[MoveKind.MERGE] > merges, _SPLIT_MS):
        demo.say("no neighbours have been merged yet")
    await _say_why(demo, "split", since_ms=began_ms)
    await _say_why(demo, "merge", since_ms=began_ms)
    await _reset(demo, changes)


async def _set(demo: Demo, changes: Changes) -> None:
    demo.say(
        "set on the channel:"
        f" {'; '.join(await asyncio.to_thread(operator.tune, demo.cluster.log_url, changes))}"
    )


async def _reset(demo: Demo, changes: Changes) -> None:
    await asyncio.to_thread(operator.tune, demo.cluster.log_url, dict.fromkeys(changes))


async def _move_all_to(demo: Demo, number: int) -> int:
    """Move all bundles to one broker, except those that fail to move. Return how many moved."""
    broker, incarnation = demo.cluster.broker_ids[number], demo.incarnation(number)
    view = demo.table.view
    elsewhere = [
        bundle.name
        for namespace in demo.bundles
        for bundle in view.bundles_of(namespace)
        if bundle.owner != incarnation
    ]
    moves = [Move(kind=MoveKind.TRANSFER, bundle=bundle, to=broker) for bundle in elsewhere]
    problems = [
        await operator.make(demo.http, demo.cluster.addresses[number], move) for move in moves
    ]
    return problems.count(None)


async def _say_why(demo: Demo, kind: Kind, *, since_ms: int) -> None:
    """Show the first move of the decisions of one kind made since then, and its reason. A decision
    is written after its moves.
    """
    decisions = await _decided(
        demo,
        lambda each: each.kind == kind and bool(each.moves),
        since_ms=since_ms,
        within_ms=_WRITTEN_MS,
    )
    moves = [(decision, move) for decision in decisions for move in decision.moves]
    if moves:
        decision, move = moves[0]
        where = (
            f"from {move.source} to {move.destination}"
            if move.source != move.destination
            else f"at {move.source}"
        )
        more = f"; and {len(moves) - 1} more (see `equipoise decisions`)" if len(moves) > 1 else ""
        demo.say(f"{decision.strategy}: {move.bundle} {where}, because {move.reason}{more}")


async def _outcome(demo: Demo, *, since_ms: int) -> str | None:
    """Wait until all brokers of a round made since then are measured: no later round disturbs them.

    Return what was predicted and measured; None if that takes too long.
    """

    def is_whole(decision: Decision) -> bool:
        return bool(decision.brokers) and all(
            broker.measured is not None for broker in decision.brokers
        )

    outcomes = await _decided(demo, is_whole, since_ms=since_ms, within_ms=_MEASURED_MS)
    return "; ".join(broker.sentence for broker in outcomes[-1].brokers) if outcomes else None


async def _decided(
    demo: Demo, is_wanted: Callable[[Decision], bool], *, since_ms: int, within_ms: int
) -> Sequence[Decision]:
    """Wait for such decisions made since then, and return them; empty if that takes too long."""
    deadline = Deadline.after(timeout_ms=within_ms)
    while True:
        newest = await asyncio.to_thread(_decisions, demo.cluster.log_url, since_ms)
        decisions = [decision for decision in newest if is_wanted(decision)]
        if decisions or not deadline.remaining_ms():
            return decisions
        await asyncio.sleep(_BETWEEN_MOVES_S)


def _decisions(log_url: str, since_ms: int) -> Sequence[Decision]:
    try:
        return [
            decision
            for decision in open_decision_log(log_url).newest(_DECISIONS_MAX)
            if decision.at_ms >= since_ms
        ]
    except PeerError:
        return ()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


STEPS: Final[tuple[Step, ...]] = (
    balance,
    even_out,
    transfer,
    split,
    kill,
    split_hot_bundles,
    merge,
    drain,
    kill_leader,
)
