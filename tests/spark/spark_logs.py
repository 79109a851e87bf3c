"""Logs in files for the tests and benchmarks of Spark jobs: a busy cluster, honest but for what is
injected.
"""

from __future__ import annotations

from equipoise.channel.core import propose
from equipoise.channel.core.log import Log
from tests.channels.busy_channel import GARBAGE, WrittenChannel


class WrittenStream(WrittenChannel):
    """A busy cluster on a log, with records that are injected."""

    def __init__(self, log: Log, *, bundles: int = 64, brokers: int = 8) -> None:
        super().__init__(log, bundles=bundles, brokers=brokers)
        self._forged = 0

    def garbage(self) -> int:
        """Write something that is no record; its offset."""
        self.put_bytes(GARBAGE)
        offset = self.entries[-1][0]
        self.flush()
        return offset

    def forge(self) -> int:
        """Have a broker open a bundle that another one owns and is not giving away, each time
        another bundle; the record's offset.
        """
        for name in (*self.names[self._forged :], *self.names):
            bundle = self.view.bundles[name]
            self._forged = (self.names.index(name) + 1) % len(self.names)
            if bundle.phase == "owned":
                thief = next(
                    broker
                    for broker, entry in self.view.brokers.items()
                    if entry.incarnation != bundle.owner
                )
                verdict = self.put(propose.opened(self.author(thief), bundle))
                assert not verdict.accepted
                break
        offset = self.entries[-1][0]
        self.flush()
        return offset
