"""Follow a Pulsar cluster into an archive: its channel, its load reports, and its members."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.snapshot_store import Progress
from equipoise.channel.system.deadline import Deadline
from equipoise.pulsar_cluster.archive import Archive, Members, Report
from equipoise.pulsar_cluster.reading import Read, TopicReader, load_readers, read_channel
from equipoise.pulsar_cluster.records import CHANNEL_TOPIC

if TYPE_CHECKING:
    import pulsar

_BATCH: Final = 5_000
"""Messages in a transaction: 0.1 s of reading."""

_MEMBERS_EVERY_S: Final = 10.0
_POLL_MS: Final = 50


def record(archive: Archive, client: pulsar.Client, *, deadline: Deadline, note: Progress) -> int:
    """Add what the channel has now behind the archive's position, and return the number of messages. Raises what `read_channel` raises."""
    begin, batch = archive.end, list[Read]()
    for read in read_channel(client, after=archive.position, deadline=deadline):
        batch.append(read)
        if len(batch) == _BATCH:
            archive.append(batch)
            batch = []
            note(archive.end - begin, None)
    archive.append(batch)
    return archive.end - begin


def follow(archive: Archive, client: pulsar.Client, *, members: Callable[[], Members] | None, until_s: float, note: Progress) -> None:
    """Add what comes, until `time.monotonic()` reaches `until_s`. `members` asks the cluster for its brokers, if anybody can.

    Raises what `TopicReader` raises. A recording goes on exactly where it stopped.
    """
    begin, asked_s = archive.end, -_MEMBERS_EVERY_S
    channel = TopicReader(client, CHANNEL_TOPIC, after=archive.position)
    loads = load_readers(client)
    try:
        while (now_s := time.monotonic()) < until_s:
            archive.append(_ready(channel, first_ms=_POLL_MS))
            note(archive.end - begin, None)
            at_ms = time.time_ns() // 1_000_000
            reports = [Report(at_ms, reader.topic.rpartition("/")[2], each.key, each.value) for reader in loads for each in _ready(reader)]
            if reports:
                archive.add_reports(reports)
            if members is not None and now_s - asked_s >= _MEMBERS_EVERY_S:
                asked_s = now_s
                # A broker may start again right now. The next answer counts.
                with suppress(PeerError):
                    archive.add_members(members())
    finally:
        for reader in (channel, *loads):
            reader.close()


def _ready(reader: TopicReader, *, first_ms: int = 1) -> list[Read]:
    """Return the messages that are there, at most a batch, and wait `first_ms` for the first."""
    found: list[Read] = []
    while len(found) < _BATCH and (read := reader.next(first_ms if not found else 1)) is not None:
        found.append(read)
    return found
