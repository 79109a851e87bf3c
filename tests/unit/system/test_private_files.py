"""What the product makes beside a log and in data directories is for its owner alone."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.brokers.local.local_broker import LocalBroker
from equipoise.brokers.runtime.data_directory import DataDirectory, LogMark
from equipoise.brokers.runtime.observations.writer import EvidenceFile
from equipoise.brokers.side_topics import SERVING
from equipoise.channel.core.log import SnapshotRow
from equipoise.channel.core.side_log import Document
from equipoise.channel.log.open_log import open_log, open_side_log
from equipoise.channel.system.private_files import writable_by_all
from equipoise.examples.counter_store import CounterStore
from tests.spark.archived import writer_of


@pytest.fixture(autouse=True)
def _generous() -> Iterator[None]:
    """A process that lets everybody read and write what it makes, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    """The mode of a file or folder."""
    return stat.S_IMODE(path.stat().st_mode)


def data_directory(path: Path) -> None:
    """A data directory, with all that a broker keeps there."""
    with DataDirectory(path / "data") as directory:
        directory.write_instance_id("instance_id")
        directory.save_snapshot(b"snapshot", LogMark(log="log", offset=1, physical=1))


def log(path: Path) -> None:
    """A log with its snapshots, while it is open and after."""
    url = f"sqlite:{path / 'log.db'}"
    with closing(open_log(url)) as opened:
        opened.append([b"record"], timeout_ms=1_000)
        for store in (opened.compacted_snapshot(), opened.history_snapshot()):
            store.claim(timeout_ms=1_000)
            store.replace([SnapshotRow("row", b"data")], b"marker", timeout_ms=1_000)
        # The -wal and -shm go with the last handle.
        assert [] == [oct(mode) for mode in map(mode_of, path.iterdir()) if mode & 0o077]


def side_log(path: Path) -> None:
    """What is kept beside a log."""
    url = f"sqlite:{path / 'log.db'}"
    open_log(url).close()
    open_side_log(url, SERVING).append([Document("b", b"{}")])


def evidence(path: Path) -> None:
    """A broker's evidence."""
    EvidenceFile(path / "evidence", broker="b").close()


def counters(path: Path) -> None:
    """The store of the counter example."""
    CounterStore(path / "counter.db").close()


def log_of_a_broker(path: Path) -> None:
    """What a broker of a local cluster prints."""
    broker = LocalBroker(path / "broker-0", 0)
    process = broker.start(
        log_url="no log", services=(), settings={}, environment={}, evidence=False, at_offset=-1
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


MAKERS = (
    data_directory,
    log,
    side_log,
    evidence,
    counters,
    log_of_a_broker,
)


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_made_is_for_its_owner_alone(make: Callable[[Path], None], tmp_path: Path) -> None:
    """No other user can read, write or list any file or folder that is made."""
    make(tmp_path)
    made = list(tmp_path.rglob("*"))
    assert made
    assert [] == [(str(path), oct(mode_of(path))) for path in made if mode_of(path) & 0o077]


@pytest.mark.parametrize(
    ("make", "name"),
    [(counters, "counter.db"), (side_log, "log.db.observations"), (evidence, "evidence")],
)
def test_a_file_that_is_there_keeps_its_mode(
    make: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    """Who shares a file with a group does so once."""
    (tmp_path / name).touch()
    (tmp_path / name).chmod(0o660)
    make(tmp_path)
    assert 0o660 == mode_of(tmp_path / name)


def test_an_archive_follows_the_umask(tmp_path: Path) -> None:
    """It is output that a user names: who shares it, does so by the umask."""
    for mask, folder in ((0o077, "private"), (0o027, "shared")):
        os.umask(mask)
        with writer_of(tmp_path / folder) as writer:
            writer.save_state({})
            made = [tmp_path / folder, *(tmp_path / folder).rglob("*")]
            assert len(made) > 1
            assert [] == [(str(path), oct(mode_of(path))) for path in made if mode_of(path) & mask]


@pytest.mark.parametrize("exposed", ["", "log.db", "log.db-wal", "log.db.observations", "data"])
def test_what_every_user_may_write_is_found(exposed: str, tmp_path: Path) -> None:
    """In the folder of a log, beside it and in a data directory, but not in other files of the
    folder.
    """
    (tmp_path / "data").mkdir(mode=0o700)
    tmp_path.chmod(0o755)
    for name in ("log.db", "log.db-wal", "log.db.observations", "other.db"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o666 if name == "other.db" else 0o664)
    (tmp_path / "link.db").symlink_to("log.db")
    log, data = tmp_path / "link.db", tmp_path / "data"
    assert [] == list(writable_by_all(log, data))
    path = tmp_path / exposed
    path.chmod(0o777 if path.is_dir() else 0o666)
    assert [(path, mode_of(path))] == list(writable_by_all(log, data))


def test_a_folder_with_the_sticky_bit_is_not_exposed(tmp_path: Path) -> None:
    """Nor is what cannot be read."""
    tmp_path.chmod(0o1777)
    (tmp_path / "data").mkdir(mode=0o700)
    assert [] == list(writable_by_all(tmp_path / "log.db", tmp_path / "data"))
    assert [] == list(writable_by_all(tmp_path / "nowhere" / "log.db", tmp_path / "nowhere"))
