"""The vectors of the four split algorithms, asked of `brokers.balancing.splitting.split_points`."""

from __future__ import annotations

from dataclasses import replace

from equipoise.brokers.balancing.splitting.split_points import (
    MIB,
    BundleLimits,
    SplitQuestion,
    TopicLoad,
    split_points,
)
from equipoise.channel.core.errors import CallerError
from tests.vectors.cases import Case

# Pulsar's exception where we raise `CallerError`.
_NO_POSITIONS = {"error": "IllegalArgumentException"}


def replay(case: Case) -> object:
    """The cuts; Pulsar says by null what we say by no cuts. It drops positions outside the range,
    which we refuse.
    """
    question = question_of(case)
    positions = question.positions
    if positions:
        inside = sorted(each for each in positions if question.low < each < question.high)
        if not inside:
            return {"boundaries": None}
        question = replace(question, positions=inside)
    try:
        cuts = split_points(case["input"]["algorithm"], question)
    except CallerError:
        return _NO_POSITIONS
    return {"boundaries": list(cuts) or None}


def question_of(case: Case) -> SplitQuestion:
    """What a case asks."""
    asked = case["input"]
    limits = BundleLimits()
    if "maxMsgRate" in asked:
        limits = BundleLimits(
            messages_per_second_max=asked["maxMsgRate"],
            bytes_per_second_max=asked["maxBandwidthMbytes"] * MIB,
        )
    return SplitQuestion(
        low=asked["lower"],
        high=asked["upper"],
        topics=tuple(
            _topic(point, asked.get("topicStats", {}).get(name))
            for name, point in asked["topicHashes"].items()
        ),
        positions=asked.get("positions"),
        force=asked.get("force", False),
        limits=limits,
        margin=asked.get("differenceThresholdPercentage", 0) / 100,
    )


def _topic(point: int, stats: list[float] | None) -> TopicLoad:
    if stats is None:
        return TopicLoad(point=point)
    messages_in, messages_out, bytes_in, bytes_out = stats
    return TopicLoad(
        point=point,
        messages_per_second=messages_in + messages_out,
        bytes_per_second=bytes_in + bytes_out,
    )
