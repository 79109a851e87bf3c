"""Show why Kafka itself must not compact the channel: its cleaner keeps the last record of a key,
even a rejected one.
"""

from __future__ import annotations

import time

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from tests.channels.compacting import all_of, compacted, fold, restored_to_end
from tests.channels.folding import NAMESPACE, Channel, channel_with
from tests.kafka.fixtures import Kafka
from tests.kafka.topics import Writer, create_topic, read_all

pytestmark = pytest.mark.integration

DEADLINE_S = 90.0
"""The cleaner looks every 0.2 s in a Kafka of ours, and every 15 s in one that is given; it passes
some seconds later."""
LOOK_S = 0.2
TIMEOUT_MS = 20_000

# The smallest steps in which Kafka compacts: a segment is closed after a second, and cleaned as
# soon as anything in it is stale.
COMPACTED_BY_KAFKA = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}


def disputed() -> Channel:
    """A channel on which `winner` is given a free bundle, and `loser`, who proposed the same
    against the same state, is not.
    """
    channel = channel_with("winner", "loser")
    free = channel.bundle()
    channel.accept(
        propose.assign(channel.author("winner"), free, owner=channel.incarnation("winner"))
    )
    verdict = channel.put(
        propose.assign(channel.author("loser"), free, owner=channel.incarnation("loser"))
    )
    assert Reason.STALE == verdict.reason
    return channel


def owner(view: View) -> str | None:
    """Who is to own the only bundle, as a view has it."""
    bundle = view.bundle_at(NAMESPACE, 0)
    assert bundle is not None
    return None if bundle.owner is None else view.live[bundle.owner].broker


def keyed(channel: Channel) -> list[tuple[bytes, bytes]]:
    """The history as messages of Kafka: the key of each is that of its record, and the first one
    takes offset 0, which is no record's.
    """
    keys = [
        "header",
        "genesis",
        "winner",
        "loser",
        NAMESPACE,
        channel.bundle().name,
        channel.bundle().name,
    ]
    values = [b"", *(data for _, data in channel.entries)]
    return [(key.encode(), value) for key, value in zip(keys, values, strict=True)]


def test_kafkas_own_compaction_turns_the_loser_into_the_winner(kafka: Kafka) -> None:
    """When the cleaner has passed, the accepted proposal is gone, and the fold of the rest accepts
    the one that was rejected.
    """
    channel = disputed()
    topic = kafka.topic("natively compacted")
    create_topic(kafka.address, topic, settings=COMPACTED_BY_KAFKA)
    writer = Writer(kafka.address)
    writer.append(topic, keyed(channel))
    before = [(offset, data or b"") for offset, _, data in read_all(kafka.address, topic)][1:]
    assert channel.entries == before
    assert all_of(channel.view) == all_of(fold(before))

    accepted, rejected = (offset for offset, _ in channel.entries[-2:])
    deadline_s = time.monotonic() + DEADLINE_S
    while accepted in (offsets := [offset for offset, _, _ in read_all(kafka.address, topic)]):
        assert time.monotonic() < deadline_s, f"the cleaner has not passed: {offsets}"
        time.sleep(LOOK_S)
        # A segment is closed by the next record, and the open one is never cleaned.
        writer.append(topic, [(b"header", b"")])
    assert rejected in offsets

    after = fold((offset, data) for offset, _, data in read_all(kafka.address, topic) if data)
    assert "winner" == owner(channel.view)
    assert "loser" == owner(after)
    assert channel.view.digest() != after.digest()


def test_our_compaction_keeps_the_winner(kafka: Kafka) -> None:
    """The same history, compacted by ours, is gone from the log, and comes back from its snapshot
    as the same view.
    """
    channel = disputed()
    _, rejected = channel.entries[-1]
    log = open_log(f"kafka://{kafka.address}/{kafka.topic('compacted by us')}")
    try:
        assert [offset for offset, _ in channel.entries] == list(
            log.append([data for _, data in channel.entries], timeout_ms=TIMEOUT_MS)
        )
        compacted(log)
        assert log.end() + 1 == log.start()
        after = restored_to_end(log)
        assert "winner" == owner(after)
        assert channel.view.digest() == after.digest()
        # A duplicate that comes late finds what it was rejected for.
        log.append([rejected], timeout_ms=TIMEOUT_MS)
        assert "winner" == owner(restored_to_end(log))
    finally:
        log.close()
