"""Logs in files for the tests and benchmarks of Spark jobs: a busy cluster, honest but for what is injected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from equipoise.channel.core import propose
from equipoise.channel.core.log import Log
from equipoise.channel.core.ranges import even_boundaries
from equipoise.spark_jobs.sequence.arrivals import Arrival
from tests.benchmarks.fold import NAMESPACE, RENEWALS, Stream

BATCH: Final = 500
TIMEOUT_MS: Final = 30_000
GARBAGE: Final = b"this is no record"


class WrittenStream(Stream):
    """A busy cluster whose records go to a log that nobody else writes to, in batches."""

    def __init__(self, log: Log, *, bundles: int = 64, brokers: int = 8) -> None:
        super().__init__()
        self._log = log
        self._bundles = bundles
        self._brokers = brokers
        self._forged = 0

    def found(self) -> None:
        """Let brokers join and own all bundles."""
        self.genesis()
        names = [f"127.0.0.1:{8080 + number}" for number in range(self._brokers)]
        self.join(*names)
        self.create(even_boundaries(self._bundles), namespace=NAMESPACE)
        self.names = [bundle.name for bundle in self.view.bundles_of(NAMESPACE)]
        for place, name in enumerate(self.names):
            broker = names[place % len(names)]
            self.accept(propose.assign(self.author(broker), self.view.bundles[name], owner=self.incarnation(broker)))
            self.accept(propose.opened(self.author(broker), self.view.bundles[name]))
        self.flush()

    def go_on(self, records: int) -> None:
        """Renew and move for so many records more."""
        for done in range(1, records + 1):
            (self.renew if self.random.random() < RENEWALS else self.move)()
            if not done % BATCH:
                self.flush()
        self.flush()

    def garbage(self) -> int:
        """Write something that is no record; its offset."""
        self.put_bytes(GARBAGE)
        offset = self.entries[-1][0]
        self.flush()
        return offset

    def forge(self) -> int:
        """Have a broker open a bundle that another one owns and is not giving away, each time another bundle; the record's offset."""
        for name in (*self.names[self._forged :], *self.names):
            bundle = self.view.bundles[name]
            self._forged = (self.names.index(name) + 1) % len(self.names)
            if bundle.phase == "owned":
                thief = next(broker for broker, entry in self.view.brokers.items() if entry.incarnation != bundle.owner)
                verdict = self.put(propose.opened(self.author(thief), bundle))
                assert not verdict.accepted
                break
        offset = self.entries[-1][0]
        self.flush()
        return offset

    def flush(self) -> None:
        """Append what has been made since."""
        if not self.entries:
            return
        offsets = self._log.append([data for _, data in self.entries], timeout_ms=TIMEOUT_MS)
        assert [offset for offset, _ in self.entries] == list(offsets), "the log is new, and nobody else writes to it"
        self.entries.clear()


def arrivals_batch(arrivals: Sequence[Arrival]) -> pa.RecordBatch:
    """Arrivals as Spark hands them over to be packed."""
    columns = {
        "source": pa.array([each.source for each in arrivals], pa.string()),
        "offset": pa.array([each.offset for each in arrivals], pa.int64()),
        "at_ms": pa.array([each.at_ms for each in arrivals], pa.int64()),
        "value": pa.array([each.value for each in arrivals], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)
