"""The acts of the demo: changes to the cluster while callers and Pulsar clients are at work.

Each act announces what it does, and ends when every bundle is owned.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from compose.demo.demo import Demo, comes_true
from compose.local_kafka.cluster import Cluster
from equipoise.brokers.balancing.decisions import Decision, Kind
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.balancing.settings.settings_records import Changes
from equipoise.brokers.decision_log import newest_decisions
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.view import View
from equipoise.channel.system.clocks import Deadline, unix_ms
from tests.load import admin_requests
from tests.load.admin_requests import CPU_ONLY, Move

Act = Callable[[Demo], Awaitable[None]]

COUNTERS: Final = "demo/counters"
MESSAGES: Final = "demo/messages"

_BALANCE_S: Final = 4.0  # A few rounds of the balancer.
_TRANSFERS, _SPLITS = 8, 4
_BETWEEN_MOVES_S: Final = 0.25
_BETWEEN_ACTS_S: Final = 1.0
_SHEDDING: Final = "balancing.shedding"

# The brokers count as uneven at this deviation of their use. Reports come every second; a few of
# them move the average most of the way.
_UNEVEN: Final = 0.12
_SEEN_MS: Final = 10_000

# Some rounds. Each comes a second or two after the reports that follow the previous one.
_DECIDED_MS: Final = 20_000
_SPLIT_MS: Final = 40_000
_DECISIONS_MAX: Final = 300  # Each broker adds at most one a second.

# A small share, so that the busiest bundle exceeds the limit even on a busy machine. Its halves
# stay below it. Each namespace keeps enough bundles for three brokers, however cold.
_LIMIT_SHARE: Final = 0.6
_BUNDLES_MIN: Final = 6

# A dry run folds the channel and reads load reports: one second, more on a busy machine. Of each of
# its tables, two lines of headings and six rows are shown.
_PLAN_S: Final = 20.0
_PLAN_LINES_MAX: Final = 8

# Kafka is away for many leases, and for less than the extension (30 s): all brokers serve on, and
# none may be declared dead afterwards.
_AWAY_S: Final = 20.0
_BACK_MS: Final = 60_000


async def balance(demo: Demo) -> None:
    """Let the leader balance."""
    demo.say("no operator acts: the leader balances the load")
    await asyncio.sleep(_BALANCE_S)


# --- what operators do ---


async def transfer(demo: Demo) -> None:
    """Transfer bundles."""
    demo.say(f"an operator transfers {_TRANSFERS} bundles in use")
    await _move(demo, MoveKind.TRANSFER, _TRANSFERS)


async def split(demo: Demo) -> None:
    """Split bundles."""
    demo.say(f"an operator splits {_SPLITS} bundles; their callers and clients go on")
    await _move(demo, MoveKind.SPLIT, _SPLITS)


async def merge(demo: Demo) -> None:
    """Merge bundles."""
    demo.say(
        f"an operator merges {_SPLITS} pairs of neighbours, after a transfer where they have two"
        " owners"
    )
    await _move(demo, MoveKind.MERGE, _SPLITS)


async def _move(demo: Demo, kind: MoveKind, times: int) -> None:
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
    number = demo.follower()
    broker, incarnation = demo.cluster.broker_ids[number], demo.incarnation(number)
    bundles = demo.table.view.held_count(incarnation)
    demo.say(f"{broker} drains: its {bundles} bundles move away, and it takes no new ones")
    problem = await admin_requests.drain(demo.http, demo.cluster.addresses[number])
    if problem is not None:
        demo.say(f"{broker} does not drain: {problem}")
    await demo.settled(without=incarnation)
    demo.say(f"{broker} is empty, leaves, and comes back")
    await asyncio.to_thread(demo.cluster.restart, number)
    await asyncio.sleep(_BETWEEN_ACTS_S)


# --- what fails ---


async def kill(demo: Demo) -> None:
    """Kill a broker that does not lead, and restart it."""
    await _kill(demo, demo.follower(), "")


async def kill_leader(demo: Demo) -> None:
    """Kill the leader, and restart it."""
    await _kill(demo, demo.leader(), ", the leader,")


async def _kill(demo: Demo, number: int, leads: str) -> None:
    broker, incarnation = demo.cluster.broker_ids[number], demo.incarnation(number)
    demo.say(f"kill -9 of {broker}{leads} with {demo.table.view.held_count(incarnation)} bundles")
    began_s = demo.screen.now_s
    async with demo.killing():
        await asyncio.to_thread(demo.cluster.kill, number)
        await demo.settled(without=incarnation)
        owned_ms = (demo.screen.now_s - began_s) * 1_000
        await demo.messages_flow()
        flow_ms = (demo.screen.now_s - began_s) * 1_000
    demo.say(
        f"all bundles are owned again after {owned_ms:.0f} ms, all clients are back after"
        f" {flow_ms:.0f} ms, and {broker} is restarted"
    )
    await asyncio.to_thread(demo.cluster.restart, number)
    await asyncio.sleep(_BETWEEN_ACTS_S)


async def kill_kafka(demo: Demo, kafka: Cluster) -> None:
    """Kill Kafka, restart it, and wait until every broker has renewed its lease and serves."""
    deaths, view = demo.deaths, demo.table.view
    lasts = {broker.broker: broker.last for broker in view.live_brokers()}
    demo.say(
        f"kill -9 of Kafka for {_AWAY_S:.0f} s: no broker can decide anything; each serves while"
        " all assure each other that Kafka is away, at most 30 s"
    )
    began_s = demo.screen.now_s
    async with demo.killing():
        await asyncio.to_thread(kafka.kill)
        await asyncio.sleep(_AWAY_S)
        await asyncio.to_thread(kafka.start)
        demo.say(f"Kafka is back after {demo.screen.now_s - began_s:.1f} s")
        if not await comes_true(lambda: _have_renewed(demo.table.view, lasts), _BACK_MS):
            demo.say("NOT ALL BROKERS HAVE RENEWED their leases")
        await demo.settled()
        await demo.messages_flow()
    died = f"{demo.deaths - deaths} BROKERS WERE" if demo.deaths > deaths else "no broker was"
    demo.say(f"all serve {demo.screen.now_s - began_s:.1f} s after the kill; {died} declared dead")


def _have_renewed(view: View, lasts: dict[str, int]) -> bool:
    return all(view.brokers[broker].last > last for broker, last in lasts.items())


# --- what the balancer does: an act sets settings on the channel, and removes them at its end ---


async def even_out(demo: Demo) -> None:
    """Move bundles to one broker, show the plan of the balancer, let it act, and compare its
    predictions with what was measured.
    """
    number = demo.follower()
    loaded, address = demo.cluster.broker_ids[number], demo.cluster.addresses[number]
    await _set(demo, {**CPU_ONLY, _SHEDDING: False})
    elsewhere = [
        bundle.name
        for namespace in demo.bundles
        for bundle in demo.table.view.bundles_of(namespace)
        if bundle.owner != demo.incarnation(number)
    ]
    demo.say(
        f"balancing is off for a while, and an operator moves {len(elsewhere)} bundles to {loaded}"
    )
    for bundle in elsewhere:
        move = Move(kind=MoveKind.TRANSFER, bundle=bundle, to=loaded)
        await admin_requests.make(demo.http, address, move)
    await comes_true(lambda: demo.deviation > _UNEVEN, _SEEN_MS)
    demo.say(f"their processors are in use by {demo.use}; `equipoise plan` shows what would move:")
    demo.screen.quote(await asyncio.to_thread(_plan, demo.cluster.log_url))
    began_s, began_ms = demo.screen.now_s, unix_ms()
    await _set(demo, {_SHEDDING: True})
    measured = await _decided(demo, _is_measured, since_ms=began_ms)
    await _say_why(demo, "shed", since_ms=began_ms)
    what = "; ".join(broker.sentence for broker in measured[-1].brokers) if measured else demo.use
    demo.say(f"{demo.screen.now_s - began_s:.1f} s after balancing was turned on: {what}")
    await _set(demo, dict.fromkeys((*CPU_ONLY, _SHEDDING)))


async def split_hot_bundles(demo: Demo) -> None:
    """Let the busiest bundle exceed the limit so that the balancer splits it, and let it merge cold
    neighbours.
    """
    namespace = COUNTERS if demo.fleet is None else MESSAGES
    hottest = max(
        (
            (bundle.traffic.messages_per_second, bundle.bundle)
            for load in demo.reports
            for bundle in load.bundles
            if bundle.topics != 1 and bundle.bundle.startswith(f"{namespace}/")
        ),
        default=None,
    )
    if hottest is None:
        demo.say("no broker reports the load of its bundles, so the balancer cannot split any")
        return
    rate, hot = hottest
    splits, merges, began_ms = demo.done[MoveKind.SPLIT], demo.done[MoveKind.MERGE], unix_ms()
    changes: Changes = {
        "limits.messages_per_second_max": f"{max(rate * _LIMIT_SHARE, 1.0):.1f}",
        "split.hits_threshold": 1,
        "balancing.merging": True,
        "merge.hits_threshold": 1,
        "merge.bundles_min": _BUNDLES_MIN,
    }
    demo.say(f"{hot} carries {rate:.0f} calls or messages/s; the limit of a bundle is now lower")
    await _set(demo, changes)
    if not await comes_true(lambda: demo.done[MoveKind.SPLIT] > splits, _SPLIT_MS):
        demo.say("no bundle has been split yet")
    if not await comes_true(lambda: demo.done[MoveKind.MERGE] > merges, _SPLIT_MS):
        demo.say("no neighbours have been merged yet")
    await _say_why(demo, "split", since_ms=began_ms)
    await _say_why(demo, "merge", since_ms=began_ms)
    await _set(demo, dict.fromkeys(changes))


async def _set(demo: Demo, changes: Changes) -> None:
    made = await asyncio.to_thread(admin_requests.tune, demo.cluster.log_url, changes)
    demo.say(f"set on the channel: {'; '.join(made)}")


def _plan(log_url: str) -> Sequence[str]:
    """Run `equipoise plan`, a dry run. Return its tables, shortened, and its conclusion."""
    command = (sys.executable, "-P", "-m", "equipoise.brokers.cli", "plan", "--log", log_url)
    try:
        ended = subprocess.run(
            ("env", "COLUMNS=120", *command),
            capture_output=True,
            text=True,
            timeout=_PLAN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"the dry run did not end within {_PLAN_S:.0f} s"]
    # An error has one section.
    *sections, conclusion = (ended.stdout + ended.stderr).rstrip().split("\n\n")
    shown: list[str] = []
    for section in sections:
        if section.startswith(("brokers\n", "moves\n")):
            lines = section.splitlines()
            left_out = len(lines) - _PLAN_LINES_MAX
            shown += [*lines[:_PLAN_LINES_MAX], f"and {left_out} more"] if left_out > 1 else lines
    return [*shown, *conclusion.splitlines()]


async def _say_why(demo: Demo, kind: Kind, *, since_ms: int) -> None:
    """Show the first move of the decisions of one kind made since then, and its reason."""
    decisions = await _decided(
        demo, lambda each: each.kind == kind and bool(each.plan.moves), since_ms=since_ms
    )
    if decisions:
        decision, (move, *_) = decisions[0], decisions[0].plan.moves
        where = (
            f"at {move.source}"
            if move.source == move.destination
            else f"from {move.source} to {move.destination}"
        )
        more = sum(len(decision.plan.moves) for decision in decisions) - 1
        demo.say(
            f"{decision.strategy}: {move.bundle} {where}, because {move.reason}; and {more} more"
            " (see `equipoise decisions`)"
        )


def _is_measured(decision: Decision) -> bool:
    """Return whether all brokers of a round are measured: no later round disturbs them."""
    return bool(decision.brokers) and all(
        broker.measured is not None for broker in decision.brokers
    )


async def _decided(
    demo: Demo, is_wanted: Callable[[Decision], bool], *, since_ms: int
) -> Sequence[Decision]:
    """Wait for such decisions made since then, and return them; empty if that takes too long."""
    deadline = Deadline.after(timeout_ms=_DECIDED_MS)
    while deadline.remaining_ms():
        try:
            newest = await asyncio.to_thread(newest_decisions, demo.cluster.log_url, _DECISIONS_MAX)
        except PeerError:
            newest = ()
        if found := [each for each in newest if each.at_ms >= since_ms and is_wanted(each)]:
            return found
        await asyncio.sleep(_BETWEEN_MOVES_S)
    return ()


_BEFORE: Final = (balance, even_out)
_AFTER: Final = (kill, split_hot_bundles, merge, drain, kill_leader)
ON_A_FILE: Final[Sequence[Act]] = (*_BEFORE, transfer, split, *_AFTER)


def on_kafka(kafka: Cluster) -> Sequence[Act]:
    """Return the acts of a demo on this Kafka."""
    outage = partial(kill_kafka, kafka=kafka)
    return (*_BEFORE, transfer, split, outage, *_AFTER)
