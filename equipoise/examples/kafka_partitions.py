"""Process a Kafka topic: each partition in the one program that owns its bundle, each record once
and in order.

The results are in an SQLite file that all programs share, beside the offset and the fencing token
of each partition. One transaction writes all three, so there is no result without its offset, and
no offset without its result.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from equipoise import Bundle, Deadline, Ownership, Peer, Service
from equipoise.errors import PeerError

RECORDS_MAX, WAIT_SECONDS = 500, 0.1  # Of one round. A move waits for the round under way.
AGAIN_SECONDS = 1.0

logger = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS results(
    partition INTEGER, offset INTEGER, result TEXT, PRIMARY KEY(partition, offset)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS progress(
    partition INTEGER PRIMARY KEY, token INTEGER NOT NULL, next_offset INTEGER);
"""


class StaleOwner(PeerError):
    """Another program has claimed the partition since. Nothing was written."""


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
        Raises `StaleOwner`.
        """
        with self.connection as transaction:
            next_offset = self._checked(partition, token)
            transaction.execute(
                "INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", (partition, token, next_offset)
            )
        return next_offset

    def put(self, partition: int, token: int, results: Mapping[int, str]) -> None:
        """Write results by offset, and the offset to continue at. Raises `StaleOwner`."""
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
            raise StaleOwner(
                f"partition {partition} has been claimed under token {highest}, and {token} is"
                " older: stop to process it"
            )
        return next_offset

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


class Partitions(Service):
    """Processes the partitions whose numbers, as keys of `namespace`, lie in its broker's bundles.
    Splits and merges need no extra code.
    """

    def __init__(
        self,
        namespace: str,
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
        self._consumer = Consumer(
            {
                **kafka,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        self._namespace, self._topic, self._partitions, self._process = (
            namespace,
            topic,
            range(partitions),
            process,
        )
        self._results = Results(results)
        self.tokens: dict[int, int] = {}  # Of the partitions that this program processes.
        self._rounds: asyncio.Task[None] | None = None
        # Its one thread makes a round, takes partitions, or leaves them: one after another.
        self._thread = ThreadPoolExecutor(1)

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Claim the partitions of the bundle, and continue where the former owner committed
        last.
        """
        tokens = dict.fromkeys(self._partitions_of(ownership.bundle), ownership.token)
        await self._in_thread(lambda: self._take(tokens))
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._process_while_owned())

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Leave the partitions of the bundle after the round under way, which commits. Hand over
        nothing: the offset is in the store.
        """
        await deadline.wait(
            self._in_thread(lambda: self._leave(self._partitions_of(bundle))),
            what="the round under way",
        )
        return None

    def stop(self) -> None:
        """Close the consumer and the store, after the worker has ended."""
        self._thread.shutdown()
        self._consumer.close()
        self._results.close()

    def _partitions_of(self, bundle: Bundle) -> Sequence[int]:
        return [
            partition
            for partition in self._partitions
            if bundle.contains(self._namespace, str(partition))
        ]

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _process_while_owned(self) -> None:
        work = self._round
        while self.tokens:
            try:
                await self._in_thread(work)
                work = self._round
            except Exception:
                logger.exception("a round failed; the next one begins at the last commit")
                await asyncio.sleep(AGAIN_SECONDS)
                work = self._begin_again

    # --- in the thread ---

    def _take(self, tokens: Mapping[int, int]) -> None:
        offsets = {
            partition: self._results.claim(partition, token) for partition, token in tokens.items()
        }
        self._consumer.incremental_assign(
            [self._place(partition, offset) for partition, offset in offsets.items()]
        )
        self.tokens.update(tokens)

    def _leave(self, partitions: Sequence[int]) -> None:
        left = [
            partition for partition in partitions if self.tokens.pop(partition, None) is not None
        ]
        self._consumer.incremental_unassign([self._place(partition) for partition in left])

    def _begin_again(self) -> None:
        for partition, token in list(self.tokens.items()):
            self._leave([partition])
            with suppress(StaleOwner):
                self._take({partition: token})

    def _round(self) -> None:
        """Process the records that have come, and commit them."""
        results: dict[int, dict[int, str]] = {}
        for message in self._consumer.consume(RECORDS_MAX, WAIT_SECONDS):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            results.setdefault(partition, {})[offset] = self._process(message)
        for partition, of_partition in results.items():
            try:
                self._results.put(partition, self.tokens[partition], of_partition)
            except StaleOwner as error:
                logger.warning("%s", error)
                self._leave([partition])

    def _place(self, partition: int, offset: int | None = None) -> TopicPartition:
        return TopicPartition(
            self._topic, partition, OFFSET_BEGINNING if offset is None else offset
        )
