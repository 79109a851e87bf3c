"""Random logs on Kafka whose nodes are cut off from one another, or lose the log's end, until a
reader is told what is not so. See tests.channels.hunting.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

import pytest

from equipoise.channel.core.errors import LogUnavailable, LogWentBack
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.kafka.log import KafkaLog
from tests.channels.hunting import hunt, require
from tests.kafka.fake_kafka import SILENCE, FakeKafka

SCENARIO = "deposed-leader"
DEEDS_MAX = 40
READERS = 3
TIMEOUT_MS = 1_000


@dataclass
class Reader:
    """One handle, and how far it has read. A restart gives it another handle, and leaves the
    position.
    """

    log: KafkaLog
    position: int = FIRST_OFFSET
    ended: bool = False


def read(reader: Reader, kafka: FakeKafka) -> None:
    """Read on, and judge what became of it. The topic's end may be lost, which another's append may
    have hidden since.
    """
    is_lost = len(kafka.messages) < reader.position
    try:
        entries = reader.log.read(reader.position, limit=10)
    except LogUnavailable:
        # Where a lost end has been written anew, a reader may wait for what it takes to be there.
        require(
            kafka.has_lost or (kafka.old_end is not None and kafka.refusal is not None),
            "only an end in doubt is an outage",
        )
    except LogWentBack:
        reader.ended = True
        require(
            kafka.has_lost, "nobody takes the end of a node that is cut off for that of the log"
        )
    else:
        # Entries may have been read ahead, and a node that is cut off may still have them.
        is_seen = (
            is_lost
            and not entries
            and (kafka.old_end is None or kafka.old_end + 1 < reader.position)
        )
        require(not is_seen, "who has read what is lost is told")
        reader.position = entries[-1].offset + 1 if entries else reader.position


def append(reader: Reader, kafka: FakeKafka) -> None:
    """Append, and judge whether offsets rise."""
    try:
        first, *_ = reader.log.append([b"a"] * 2, timeout_ms=TIMEOUT_MS)
    except LogUnavailable:
        require(kafka.refusal is not None, "an append that is acknowledged is done")
    except LogWentBack:
        reader.ended = True
        require(kafka.has_lost, "offsets are taken for old ones only if an end was lost")
    else:
        require(first >= reader.position or kafka.has_lost, "an offset is issued once")


def play(seed: int, patch: pytest.MonkeyPatch) -> None:
    """Some readers of one topic, through outages; at the end perhaps it loses its end."""
    rng, kafka = random.Random(seed), FakeKafka()
    readers = [Reader(log=kafka.opened(patch)) for _ in range(READERS)]
    try:
        for number in range(DEEDS_MAX):
            reader = rng.choice(readers)
            deed = rng.choice(
                ("append", "append", "read", "read", "read", "cut off", "rejoin", "restart", "lose")
            )
            if deed == "cut off":
                kafka.old_end, kafka.refusal = (
                    rng.randrange(len(kafka.messages)),
                    rng.choice((None, SILENCE)),
                )
            elif deed == "rejoin":
                kafka.old_end = kafka.refusal = None
            elif deed == "lose" and number > DEEDS_MAX / 2:
                kafka.lose(rng.randrange(1, len(kafka.messages) + 1))
            elif deed == "restart":
                reader.log.close()
                reader.log = kafka.opened(patch, create=rng.random() < 1 / 2)
            elif not reader.ended:
                (append if deed == "append" else read)(reader, kafka)
    finally:
        for reader in readers:
            reader.log.close()


def _play(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        play(seed, patch)


if __name__ == "__main__":
    sys.exit(hunt(SCENARIO, _play))
