"""The snapshots of a broker: the view with which it starts."""

from __future__ import annotations

from pathlib import Path

from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.brokers.runtime.snapshots import Snapshots
from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.log.memory_log import MemoryLog
from tests.channels.folding import channel_with

LOG = "the identity of the log"


class AwayLog(MemoryLog):
    """A log that was opened, and is unavailable now."""

    def start(self) -> int:
        raise LogUnavailable(log=self.name, problem="it is away", in_doubt=False)


def test_an_unavailable_log_does_not_hide_the_snapshot(tmp_path: Path) -> None:
    """Otherwise a log that went back would not be noticed."""
    view = channel_with("a:1").view
    assert view.cluster is not None
    directory = DataDirectory(tmp_path)
    try:
        snapshots = Snapshots(directory, log=LOG, cluster=view.cluster)
        assert snapshots.reader(AwayLog(name="memory:away")) is None
        directory.save_snapshot(to_bytes(view), log_identity=LOG)
        reader = snapshots.reader(AwayLog(name="memory:away"))
        assert reader is not None
        assert (view.digest(), view.offset) == (reader.view.digest(), reader.view.offset)
    finally:
        directory.close()
