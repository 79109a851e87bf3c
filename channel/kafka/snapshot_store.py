"""Implement `SnapshotStore` on a compacted Kafka topic beside the log's, for the snapshot and the
history snapshot.

A message is a row under its key, a tombstone for a removed row, or the marker, which ends each
transaction. Kafka's cleaner keeps the last row of each key, so the topic stays as long as the view.
The cleaner may run during a load: a reader whose rows do not match the marker reads again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Final

from equipoise.channel.core.errors import LogUnavailable, SnapshotFenced, compaction_refused
from equipoise.channel.core.log import (
    Check,
    CompactedSnapshot,
    Progress,
    SnapshotRow,
    unchecked,
    unwatched,
)
from equipoise.channel.kafka.answers import KafkaFailed, Trouble
from equipoise.channel.kafka.client import (
    PARTITION,
    Clients,
    Message,
    PartitionConsumer,
    TransactionalProducer,
)
from equipoise.channel.kafka.settings import KafkaAddress
from equipoise.channel.kafka.topic import fitting_topic, needed_of_snapshot
from equipoise.channel.snapshots.snapshot_rows import MARKER_KEY
from equipoise.channel.system.clocks import Deadline

LOOK_MS_MAX: Final = 10_000
"""How long a check of the topic, or a question about its end, may take: as long as opening its
log."""

SILENCE_MS_MAX: Final = 10_000
"""How long to wait for the next rows while more are known to be there."""

# A transaction ends on the partition some milliseconds after its commit.
_ENDED_LOOK_S: Final = 0.005

_MARKER_KEY: Final = MARKER_KEY.encode()

_TAKEN_MAX: Final = 1_000
_TAKE_MS: Final = 100  # Between two calls of `check`.


class KafkaSnapshotStore:
    """A snapshot of one log on Kafka, used by the thread of the log's handle. See `SnapshotStore`
    for the contract.
    """

    def __init__(self, clients: Clients, address: KafkaAddress, *, topic: str, log: str) -> None:
        """`topic` holds the snapshot, beside the log at `address`. `log` is the log's name, for
        messages.
        """
        self._clients = clients
        self._replication = address.replication
        self._topic = topic
        self._log = log
        self._producer: TransactionalProducer | None = None

    def claim(self, *, timeout_ms: int) -> None:
        """See `SnapshotStore.claim`. A new claim uses a new producer: the old one may be unusable.

        Raises `OperatorError` while a transaction of another producer is open: nobody would
        read what is written after it.
        """
        deadline = Deadline.after(timeout_ms=timeout_ms)
        self.close()
        try:
            self._look(create=True, deadline=deadline)
            self._producer = self._clients.transactions(self._topic)
            self._producer.claim(timeout_ms=max(1, deadline.remaining_ms()))
            with closing(self._clients.consumer(self._topic)) as consumer:
                last = consumer.bounds(timeout_ms=LOOK_MS_MAX).high - 1
            problem = self._awaited(last, Deadline.after(timeout_ms=timeout_ms))
        except KafkaFailed as failed:
            raise failed.as_error(log=self._log, in_doubt=False) from failed
        if problem is not None:
            self.close()
            remedy = (
                "end the program that began it, or abort it with kafka-transactions.sh, or wait"
                " until Kafka aborts it; then try again"
            )
            raise compaction_refused(log=self._log, problem=problem, remedy=remedy)

    def load(
        self, *, check: Check = unchecked, progress: Progress = unwatched
    ) -> CompactedSnapshot | None:
        """See `SnapshotStore.load`. Reports no total: compaction leaves gaps in the offsets."""
        try:
            if not self._look(create=False, deadline=Deadline.after(timeout_ms=LOOK_MS_MAX)):
                return None
            with closing(self._clients.consumer(self._topic, committed=True)) as consumer:
                rows = self._rows(consumer, check, progress)
        except KafkaFailed as failed:
            raise failed.as_error(log=self._log, in_doubt=False) from failed
        marker = rows.pop(_MARKER_KEY, None)
        return (
            None
            if marker is None
            else CompactedSnapshot(
                marker=marker,
                rows={key.decode("utf-8", "replace"): row for key, row in rows.items()},
            )
        )

    def replace(self, rows: Iterable[SnapshotRow], marker: bytes, *, timeout_ms: int) -> None:
        """See `SnapshotStore.replace`."""
        # After a failure, the caller must claim again.
        producer, self._producer = self._producer, None
        if producer is None:
            raise SnapshotFenced(log=self._log)
        try:
            last = producer.write(_messages(rows, marker), timeout_ms=timeout_ms)
            problem = self._awaited(last, Deadline.after(timeout_ms=timeout_ms))
        except KafkaFailed as failed:
            producer.close()
            if failed.trouble is Trouble.FENCED:
                raise SnapshotFenced(log=self._log) from failed
            raise failed.as_error(
                log=self._log, in_doubt=failed.trouble is Trouble.AWAY
            ) from failed
        except BaseException:
            producer.close()
            raise
        if problem is not None:
            producer.close()
            raise LogUnavailable(log=self._log, problem=problem, in_doubt=True)
        self._producer = producer

    def _awaited(self, last: int, deadline: Deadline) -> str | None:
        """Wait until loads see the message at offset `last`. Return why they do not, or None.
        Raises `KafkaFailed`.
        """
        with closing(self._clients.consumer(self._topic, committed=True)) as consumer:
            # The readers' end is where the first open transaction begins, of any producer.
            while (end := consumer.bounds(timeout_ms=LOOK_MS_MAX).high) <= last:
                if not deadline.remaining_ms():
                    return (
                        f"the transaction that began at offset {end} of the topic {self._topic}"
                        f" (partition {PARTITION}) is still open after {deadline.timeout_ms} ms,"
                        " and hides all that is written after it"
                    )
                time.sleep(_ENDED_LOOK_S)
        return None

    def close(self) -> None:
        """Close the claim's client. The claim stands until the next one."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _look(self, *, create: bool, deadline: Deadline) -> bool:
        """Check the topic, and return whether there is one."""
        replication = self._replication
        with self._clients.administrator() as administrator:
            facts = fitting_topic(
                administrator,
                self._topic,
                needed_of_snapshot,
                log=self._log,
                replication=replication,
                create=create,
                deadline=deadline,
            )
        return facts is not None

    def _rows(
        self, consumer: PartitionConsumer, check: Check, progress: Progress
    ) -> dict[bytes, bytes]:
        """Return the last row of each key, as of the last transaction that had ended when this
        began.
        """
        bounds = consumer.bounds(timeout_ms=LOOK_MS_MAX)
        rows: dict[bytes, bytes] = {}
        reached, done = bounds.low, 0
        consumer.start_at(reached)
        silence = Deadline.after(timeout_ms=SILENCE_MS_MAX)
        while reached < bounds.high:
            check()
            taken = consumer.take(_TAKEN_MAX, timeout_ms=_TAKE_MS)
            if taken is not None:
                if taken.failure is not None:
                    raise taken.failure
                for offset, message in taken.messages:
                    # Beyond the end there may be a part of a later transaction.
                    done += offset < bounds.high and _put(message, rows)
                reached = max(reached, taken.reached)
                silence = Deadline.after(timeout_ms=SILENCE_MS_MAX)
                progress(done, None)
            elif not silence.remaining_ms():
                raise KafkaFailed(
                    trouble=Trouble.AWAY,
                    problem=f"the snapshot's next rows did not arrive within {SILENCE_MS_MAX} ms",
                )
        return rows


def _put(message: Message, rows: dict[bytes, bytes]) -> bool:
    """Apply one message to `rows`. Return whether it was a row."""
    key, value = message.key(), message.value()
    if key is None:
        return False
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value
    return key != _MARKER_KEY


def _messages(rows: Iterable[SnapshotRow], marker: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    for key, data in rows:
        yield key.encode(), data
    yield _MARKER_KEY, marker
