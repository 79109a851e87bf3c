"""The acts of the demo in which the cluster balances by itself: what is uneven becomes even, what is hot is cut, what is cold is joined.

May live here: such acts, which put settings on the channel as an operator would, and take them away again at their end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from shlex import quote
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

# Reports come each second; a few of them carry an average most of the way.
_SEEN_MS: Final = 10_000

# The pile is seen when the deviation is so many times the target: what a busy machine makes of brokers that are even is less.
_UNEVEN: Final = 2.0

# Some rounds, each a second or two after the reports that follow from the one before.
_EVEN_MS: Final = 20_000
_DIVIDED_MS: Final = 40_000

_LOOK_S: Final = 0.25

# How much of the decision log is looked through for what an act has brought about: each broker adds one a second at most.
_DECISIONS_MAX: Final = 300
_REASONS_MAX: Final = 2

# The busiest bundle carries far more than it may, so that it is seen on a busy machine, too; and its halves carry less.
_LIMIT_SHARE: Final = 0.6

# Of each namespace so many bundles stay, however cold: enough for three brokers.
_BUNDLES_MIN: Final = 6

_SHEDDING: Final = "balancing.shedding"


async def even_out(stage: Stage) -> None:
    """Pile bundles on one broker, show what would be done about that, and leave it to `TransferShedder`."""
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
    """Let the busiest bundle exceed what a bundle may carry, and neighbours that carry little be joined."""
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
    """Change settings, and say what became of each."""
    stage.say(f"set on the channel: {'; '.join(await tune(stage.cluster.log_url, changes))}")


async def _take_off(stage: Stage, changes: Changes) -> None:
    """Let the defaults hold again for what was changed."""
    await tune(stage.cluster.log_url, dict.fromkeys(changes))
    stage.say("what was set for this is taken off the channel again")


async def _pile(stage: Stage, number: int) -> int:
    """Move bundles of counters to one broker, until it has all but a few; how many were moved."""
    broker, incarnation = stage.cluster.broker_ids[number], stage.incarnation(number)
    elsewhere = [bundle.name for bundle in stage.table.view.bundles_of(COUNTERS) if bundle.owner != incarnation]
    moves = [Move(deed=Deed.TRANSFER, bundle=bundle, to=broker) for bundle in elsewhere]
    problems = [await operator.make(stage.http, stage.cluster.addresses[number], move) for move in moves]
    return problems.count(None)


async def _say_why(stage: Stage, kind: Kind, *, since_ms: int) -> None:
    """Say what was decided since of one kind, and the reasons of the first few."""
    decisions = await asyncio.to_thread(_decisions, stage.cluster.log_url, since_ms)
    moves = [(decision, move) for decision in decisions if decision.kind == kind for move in decision.moves]
    for decision, move in moves[:_REASONS_MAX]:
        where = f"from {move.source} to {move.destination}" if move.source != move.destination else f"at {move.source}"
        stage.say(f"{decision.strategy}: {move.bundle} {where}, because {move.reason}")
    if len(moves) > _REASONS_MAX:
        stage.say(f"and {len(moves) - _REASONS_MAX} more of kind {kind}: see `equipoise decisions --log {quote(stage.cluster.log_url)}`")


def _decisions(log_url: str, since_ms: int) -> Sequence[Decision]:
    try:
        return [decision for decision in open_decision_log(log_url).newest(_DECISIONS_MAX) if decision.at_ms >= since_ms]
    except DecisionLogUnavailable:
        return ()


def evenness(stage: Stage) -> Evenness:
    """How evenly brokers are used, as they have said last."""
    return evenness_of(stage.table.view, stage.summaries)


async def comes_true(condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Wait for a condition; whether it came true in time. What a busy machine does not come to is no fault of the cluster."""
    deadline = Deadline.after(timeout_ms=timeout_ms)
    while not (holds := condition()) and deadline.remaining_ms():  # noqa: ASYNC110 - what is watched has no event
        await asyncio.sleep(_LOOK_S)
    return holds


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
