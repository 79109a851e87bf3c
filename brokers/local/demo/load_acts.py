"""The acts in which the cluster balances itself: it evens out use, splits hot bundles and merges cold ones.

Each act sets settings on the channel, and removes them at its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from equipoise.brokers.balancing.decisions import Decision, Kind
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.balancing.settings.settings_records import Changes
from equipoise.brokers.decision_log import open_decision_log
from equipoise.brokers.errors import DecisionLogUnavailable
from equipoise.brokers.local.demo import operator
from equipoise.brokers.local.demo.evenness import Evenness, busiest, evenness_of
from equipoise.brokers.local.demo.operator import Deed, Move
from equipoise.brokers.local.demo.stage import COUNTERS, MESSAGES, Stage
from equipoise.brokers.local.demo.tuning import BY_USE, tune
from equipoise.channel.system.deadline import Deadline

# Reports come every second. A few of them move the average most of the way.
_SEEN_MS: Final = 10_000

# The pile counts as seen at this multiple of the target deviation. On a busy machine, even brokers stay below it.
_UNEVEN: Final = 2.0

# Some rounds. Each comes a second or two after the reports that follow the previous one.
_EVEN_MS: Final = 20_000
_DIVIDED_MS: Final = 40_000

_LOOK_S: Final = 0.25

# How many decisions are searched for the effects of an act. Each broker adds at most one a second.
_DECISIONS_MAX: Final = 300

# A small share, so that the busiest bundle exceeds the limit even on a busy machine. Its halves stay below it.
_LIMIT_SHARE: Final = 0.6

# Each namespace keeps this many bundles, however cold: enough for three brokers.
_BUNDLES_MIN: Final = 6

_SHEDDING: Final = "balancing.shedding"


async def even_out(stage: Stage) -> None:
    """Pile bundles on one broker, show the plan of the balancer, and let `TransferShedder` act."""
    number = (stage.number_of_leader() + 1) % len(stage.cluster.broker_ids)
    piled_on, target = stage.cluster.broker_ids[number], float(str(BY_USE["transfer.target_deviation"]))

    def is_seen() -> bool:
        seen = evenness(stage)
        return not seen.within(_UNEVEN * target) and max(seen.used, key=seen.used.__getitem__, default=None) == piled_on

    def is_even() -> bool:
        return evenness(stage).within(target)

    await _set(stage, {**BY_USE, _SHEDDING: False})
    stage.say(f"nobody balances for a while, and {await _pile(stage, number)} bundles are piled on {piled_on}")
    await comes_true(is_seen, _SEEN_MS)
    stage.say(f"their processors are in use by {evenness(stage).text}; `equipoise plan` shows what the balancer would move:")
    stage.quote(await operator.plan(stage.cluster.log_url))
    began_s, began_ms = stage.now_s, _wall_ms()
    await _set(stage, {_SHEDDING: True})
    told = "even" if await comes_true(is_even, _EVEN_MS) else "not even yet"
    stage.say(f"{told} {stage.now_s - began_s:.1f} s after the shedder was let loose: {evenness(stage).text}")
    await _say_why(stage, "shed", since_ms=began_ms)
    await _take_off(stage, {**BY_USE, _SHEDDING: True})


async def divide(stage: Stage) -> None:
    """Let the busiest bundle exceed the limit so that it is split, and let cold neighbours be merged."""
    hot = busiest(stage.table.view, stage.summaries, MESSAGES if stage.pulsar is not None else COUNTERS)
    if hot is None:
        stage.say("nobody says what bundles carry, so that none can be too hot")
        return
    done, began_ms = stage.chronicle.done, _wall_ms()
    splits, merges = done[MoveKind.SPLIT], done[MoveKind.MERGE]
    changes: Changes = {
        "limits.messages_per_second_max": f"{max(hot.traffic.messages_per_second * _LIMIT_SHARE, 1.0):.1f}",
        "split.hits_threshold": 1,
        "balancing.merging": True,
        "merge.hits_threshold": 1,
        "merge.bundles_min": _BUNDLES_MIN,
    }
    stage.say(f"{hot.bundle} carries {hot.traffic.messages_per_second:.0f} calls or messages/s, and bundles may carry less from now on")
    await _set(stage, changes)
    if not await comes_true(lambda: done[MoveKind.SPLIT] > splits, _DIVIDED_MS):
        stage.say("no bundle has been split yet")
    if not await comes_true(lambda: done[MoveKind.MERGE] > merges, _DIVIDED_MS):
        stage.say("no neighbours have been joined yet")
    await _say_why(stage, "split", since_ms=began_ms)
    await _say_why(stage, "merge", since_ms=began_ms)
    await _take_off(stage, changes)


async def _set(stage: Stage, changes: Changes) -> None:
    """Change settings, and show each change."""
    stage.say(f"set on the channel: {'; '.join(await tune(stage.cluster.log_url, changes))}")


async def _take_off(stage: Stage, changes: Changes) -> None:
    """Restore the defaults of changed settings."""
    await tune(stage.cluster.log_url, dict.fromkeys(changes))


async def _pile(stage: Stage, number: int) -> int:
    """Move the bundles of counters to one broker, except those that fail to move. Return how many moved."""
    broker, incarnation = stage.cluster.broker_ids[number], stage.incarnation(number)
    elsewhere = [bundle.name for bundle in stage.table.view.bundles_of(COUNTERS) if bundle.owner != incarnation]
    moves = [Move(deed=Deed.TRANSFER, bundle=bundle, to=broker) for bundle in elsewhere]
    problems = [await operator.make(stage.http, stage.cluster.addresses[number], move) for move in moves]
    return problems.count(None)


async def _say_why(stage: Stage, kind: Kind, *, since_ms: int) -> None:
    """Show the decisions of one kind made since then, with the reasons of the first few."""
    decisions = await asyncio.to_thread(_decisions, stage.cluster.log_url, since_ms)
    moves = [(decision, move) for decision in decisions if decision.kind == kind for move in decision.moves]
    if moves:
        decision, move = moves[0]
        where = f"from {move.source} to {move.destination}" if move.source != move.destination else f"at {move.source}"
        more = f"; and {len(moves) - 1} more (see `equipoise decisions`)" if len(moves) > 1 else ""
        stage.say(f"{decision.strategy}: {move.bundle} {where}, because {move.reason}{more}")


def _decisions(log_url: str, since_ms: int) -> Sequence[Decision]:
    try:
        return [decision for decision in open_decision_log(log_url).newest(_DECISIONS_MAX) if decision.at_ms >= since_ms]
    except DecisionLogUnavailable:
        return ()


def evenness(stage: Stage) -> Evenness:
    """Return how evenly brokers are used by their latest reports."""
    return evenness_of(stage.table.view, stage.summaries)


async def comes_true(condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Wait for a condition. Return whether it came true in time; a busy machine may be too slow."""
    deadline = Deadline.after(timeout_ms=timeout_ms)
    while not (holds := condition()) and deadline.remaining_ms():  # noqa: ASYNC110 - what is watched has no event
        await asyncio.sleep(_LOOK_S)
    return holds


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
