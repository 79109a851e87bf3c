"""Process a Kafka topic: each partition in the one program that has its shard, each record once and
in order.

The results are in an SQLite file that all programs share, beside the offset and the fencing token
of each partition. One transaction writes all three, so there is no result without its offset, and
no offset without its result.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from equipoise import Shard
from equipoise.errors import OwnershipLost, PeerError

RECORDS_MAX, WAIT_SECONDS = 500, 0.1  # Of one round. A move waits for the round under way.
CLOSE_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS results(
    partition INTEGER, offset INTEGER, result TEXT, PRIMARY KEY(partition, offset)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS progress(
    partition INTEGER PRIMARY KEY, token INTEGER NOT NULL, next_offset INTEGER);
"""


class Results:
    """The results, offsets and tokens. One thread at a time."""

    def __init__(self, path: Path) -> None:
        with suppress(FileExistsError):
            os.mknod(path, 0o600)  # For its owner only; SQLite gives its other files the same mode.
        self.connection = sqlite3.connect(
            path, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.executescript(_SCHEMA)

    def claim(self, partition: int, token: int) -> int | None:
        """Fence older tokens, and return the offset to continue at, or None if there is none.
        Raises `PeerError` if another program has claimed the partition since.
        """
        with self.connection as transaction:
            next_offset = self._checked(partition, token)
            transaction.execute(
                "INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", (partition, token, next_offset)
            )
        return next_offset

    def put(self, partition: int, token: int, results: Mapping[int, str]) -> None:
        """Write results by offset, and the offset to continue at. Raises `PeerError` as
        `claim` does.
        """
        with self.connection as transaction:
            self._checked(partition, token)
            transaction.executemany(
                "INSERT INTO results VALUES (?, ?, ?)",
                [(partition, *each) for each in results.items()],
            )
            transaction.execute(
                "INSERT OR REPLACE INTO progress VALUES (?, ?, ?)",
                (partition, token, max(results) + 1),
            )

    def _checked(self, partition: int, token: int) -> int | None:
        """Begin the transaction, which other programs then wait for, and compare the token."""
        self.connection.execute("BEGIN IMMEDIATE")
        query = "SELECT token, next_offset FROM progress WHERE partition = ?"
        highest, next_offset = self.connection.execute(query, (partition,)).fetchone() or (0, None)
        if token < highest:
            raise PeerError(
                f"partition {partition} has been claimed under token {highest}, and {token} is"
                " older: stop to process it"
            )
        return next_offset

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


class Partitions:
    """Processes the partitions whose numbers, as keys, are in a shard:
    `Tasks("shop/orders", Partitions(...).work)`.
    """

    def __init__(
        self,
        topic: str,
        partitions: int,
        *,
        kafka: Mapping[str, str],
        results: Path,
        process: Callable[[Message], str],
    ) -> None:
        """`kafka` are settings of librdkafka. `process` returns the result of a record, and has no
        other effect: it may run twice.
        """
        own = {"group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "error"}
        self._kafka = {**kafka, **own}
        self._topic, self._partitions = topic, range(partitions)
        self._results, self._process = results, process

    async def work(self, shard: Shard) -> None:
        """Process in a thread, until the shard moves and the round under way is committed. A round
        that fails raises. Then `Tasks` calls this again, which begins at the last commit.
        """
        stopping = Event()
        with ThreadPoolExecutor(1) as thread:
            rounds = asyncio.wrap_future(thread.submit(self._run, shard, stopping))
            try:
                await asyncio.shield(rounds)
            except asyncio.CancelledError:
                stopping.set()
                await rounds
                raise

    def _run(self, shard: Shard, stopping: Event) -> None:
        mine = [each for each in self._partitions if shard.contains(str(each))]
        if not mine:
            return
        with closing(Results(self._results)) as results, closing(Consumer(self._kafka)) as consumer:
            # The claim fences the former owner before this one reads.
            begin = {each: results.claim(each, shard.token) for each in mine}
            consumer.assign([self._place(each, offset) for each, offset in begin.items()])
            try:
                while not stopping.is_set():
                    self.make_round(shard, results, consumer)
            except OwnershipLost:
                if not stopping.wait(CLOSE_SECONDS):  # A move cancels the task next.
                    raise

    def make_round(self, shard: Shard, results: Results, consumer: Consumer) -> None:
        """Process the records that have come, and commit them. The CPU time of a thread that goes
        on for ever counts for its shard where work begins in it.
        """
        found: dict[int, dict[int, Message]] = {}
        for message in consumer.consume(RECORDS_MAX, WAIT_SECONDS):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            found.setdefault(partition, {})[offset] = message
        for partition, messages in found.items():
            with shard.begin(str(partition)):
                done = {offset: self._process(message) for offset, message in messages.items()}
                results.put(partition, shard.token, done)

    def _place(self, partition: int, offset: int | None) -> TopicPartition:
        begin = OFFSET_BEGINNING if offset is None else offset
        return TopicPartition(self._topic, partition, begin)
