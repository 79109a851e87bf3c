"""Where a broker starts, and the logs that it refuses: those that could issue a token again that it
has used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from equipoise.brokers.runtime.data_directory import DataDirectory, LogMark
from equipoise.brokers.runtime.snapshots import open_marked, reader_on
from equipoise.channel.core.errors import LogUnavailable, OperatorError
from equipoise.channel.core.log import Entry
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.compaction.copying import begin_above, empty_target
from tests.channels.carried import soon
from tests.channels.folding import Channel, channel_with
from tests.channels.gap_log import GapLog

LOG = "the identity of the log"
CLUSTER = "test"


class AwayLog(MemoryLog):
    """A log that was opened, and is unavailable now."""

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        raise LogUnavailable(log=self.name, problem="it is away", in_doubt=False)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    with DataDirectory(tmp_path / "data") as directory:
        yield directory


def start(directory: DataDirectory, log: MemoryLog, *, identity: str = LOG) -> int:
    """Start a broker on the log, as if it had this identity. Return the position at which it begins
    to read.
    """
    log.identity = identity
    try:
        return reader_on(directory, log, cluster=CLUSTER).position
    finally:
        log.close()


def log_of(channel: Channel, *, records: int | None = None) -> GapLog:
    log = GapLog()
    log.put(*channel.entries[:records])
    return log


def mark_at(channel: Channel) -> LogMark:
    return LogMark(log=LOG, offset=channel.view.offset, physical=channel.view.offset)


def test_a_broker_begins_with_its_own_snapshot(directory: DataDirectory) -> None:
    channel = channel_with("a:1")
    directory.save_snapshot(to_bytes(channel.view), mark_at(channel))
    assert channel.view.offset + 1 == start(directory, log_of(channel))


def test_an_unavailable_log_is_waited_for(directory: DataDirectory) -> None:
    """A broker that went on without a look at it would not notice that it went back."""
    channel = channel_with("a:1")
    directory.save_snapshot(to_bytes(channel.view), mark_at(channel))
    with pytest.raises(LogUnavailable):
        start(directory, AwayLog(name="memory:away"))


@pytest.mark.parametrize("further", [0, 1_000])
def test_a_log_that_goes_on_is_accepted(directory: DataDirectory, further: int) -> None:
    channel = channel_with("a:1")
    directory.write_mark(mark_at(channel))
    log = log_of(channel)
    log.leap(log.end() + further)
    assert 1 == start(directory, log)


def test_an_older_copy_is_refused(directory: DataDirectory) -> None:
    channel = channel_with("a:1")
    directory.write_mark(mark_at(channel))
    end = channel.view.offset - 1
    with pytest.raises(
        OperatorError, match=f"from offset {end + 1}, .* it ends at offset {end}, as an older copy"
    ):
        start(directory, log_of(channel, records=-1))


@pytest.mark.parametrize("identity", ["another", LOG[:-1], f"{LOG}x"])
def test_another_log_is_refused_although_it_is_longer(
    directory: DataDirectory, identity: str
) -> None:
    """Other brokers have begun it. Its tokens up to there were in use on the former log, too."""
    channel = channel_with("a:1", "b:1")
    directory.write_mark(LogMark(log=LOG, offset=1, physical=1))
    with pytest.raises(OperatorError, match=r"it is another log.*delete the data directories"):
        start(directory, log_of(channel), identity=identity)


@pytest.mark.parametrize("above", [-1, 0, 1])
def test_a_copy_is_accepted_if_it_goes_on_above_the_mark(
    directory: DataDirectory, above: int
) -> None:
    view = channel_with("a:1").view
    directory.write_mark(LogMark(log=LOG, offset=1_000, physical=1_000))
    view.go_on_above(1_000 + above, level=view.level, level_last=view.level_last)
    log = MemoryLog(name="memory:copy")
    begin_above(log, empty_target(log, deadline=soon()), view, deadline=soon())
    if above < 0:
        with pytest.raises(OperatorError, match="it is another log"):
            start(directory, log, identity=log.identity)
    else:
        assert 1 == start(directory, log, identity=log.identity)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_deleted_log_is_not_made_anew(
    tmp_path: Path, directory: DataDirectory, is_empty: bool
) -> None:
    path = tmp_path / "log.db"
    open_marked(f"sqlite:{path}", directory).close()
    directory.write_mark(LogMark(log=LOG, offset=7, physical=7))
    path.unlink()
    if is_empty:
        path.touch()
    with pytest.raises(
        OperatorError,
        match=(
            f"log.db does not go on from offset 7, .* {directory.path} notes .*: .*(no file|empty)"
        ),
    ):
        open_marked(f"sqlite:{path}", directory)
    assert is_empty == path.exists()
