"""What an SQLite log leaves to the operating system while it is truncated, and what a power cut
then takes back.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from equipoise.channel.sqlite.log import TRUNCATE_STEP_ENTRIES
from equipoise.channel.sqlite.storage import Synchronous
from tests.channels import power_loss_hunt
from tests.unit.sqlite.sqlite_files import TIMEOUT_MS, append, open_at

RECORD = bytes(300)
ENTRIES = 2 * TRUNCATE_STEP_ENTRIES + 3
WAL_FRAME_BYTES = 24 + 4_096
TRACED = (
    "PRAGMA synchronous = FULL",
    "PRAGMA synchronous = NORMAL",
    "UPDATE log",
    "DELETE FROM entries",
    "INSERT INTO entries",
)
SLEEP = "equipoise.channel.sqlite.storage.time.sleep"


class CutOffError(Exception):
    """What a truncation breaks off with."""


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each statement of interest begins that is executed in a log opened from here on, in their
    order.
    """
    traced: list[str] = []

    class TracedConnection(sqlite3.Connection):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type] # as it was called
            self.set_trace_callback(
                lambda statement: traced.extend(
                    begin for begin in TRACED if statement.startswith(begin)
                )
            )

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=TracedConnection))
    return traced


def test_a_truncation_waits_for_the_disk_once(traced: list[str], tmp_path: Path) -> None:
    """Its new start is durable before the first entry goes, the steps wait for the operating
    system, and appends wait again.
    """
    with closing(open_at(tmp_path / "log.db")) as log:
        append(log, *[RECORD] * ENTRIES)
        traced.clear()
        log.truncate(log.end(), timeout_ms=TIMEOUT_MS)
        raised, lazy, *removed, durable = traced
        assert ["UPDATE log", "PRAGMA synchronous = NORMAL", "PRAGMA synchronous = FULL"] == [
            raised,
            lazy,
            durable,
        ]
        assert ["DELETE FROM entries"] * 3 == removed


def test_a_truncation_that_breaks_off_leaves_appends_durable(
    traced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends a truncation between two of its steps, the next append waits for the disk."""

    def pause(_: float) -> None:
        raise CutOffError

    with closing(open_at(tmp_path / "log.db")) as log:
        append(log, *[RECORD] * ENTRIES)
        monkeypatch.setattr(SLEEP, pause)
        with pytest.raises(CutOffError):
            log.truncate(log.end(), timeout_ms=TIMEOUT_MS)
        append(log, RECORD)
        assert [
            "DELETE FROM entries",
            "PRAGMA synchronous = FULL",
            "INSERT INTO entries",
            "UPDATE log",
        ] == traced[-4:]


def cuts(path: Path, folder: Path, *, durable_bytes: int) -> Iterator[Path]:
    """The log at `path` as a disk may have it: with each part of its WAL beyond what somebody
    waited for, from none to all of it.
    """
    wal = Path(f"{path}-wal").read_bytes()
    for size in range(durable_bytes, len(wal) + 1, WAL_FRAME_BYTES):
        cut = folder / f"{size}.db"
        shutil.copyfile(path, cut)
        Path(f"{cut}-wal").write_bytes(wal[:size])
        yield cut


def entries_in(path: Path) -> int:
    """How many entries the file holds, those below the log's start as well."""
    with closing(sqlite3.connect(path)) as connection:
        [(entries,)] = connection.execute("SELECT count(*) FROM entries").fetchall()
    return int(entries)


def test_a_power_cut_takes_back_what_a_truncation_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it takes of the WAL that no append waited for, the log holds what was appended, and
    is truncated again.
    """
    path = tmp_path / "log.db"
    log, other = open_at(path), open_at(path)
    offsets = append(log, *[RECORD] * ENTRIES)
    below = offsets[-2]
    durable_bytes: list[int] = []

    def pause(_: float) -> None:
        if not durable_bytes:
            offsets.extend(append(other, b"between two steps"))
            durable_bytes.append(Path(f"{path}-wal").stat().st_size)

    with monkeypatch.context() as patched:
        patched.setattr(SLEEP, pause)
        log.truncate(below, timeout_ms=TIMEOUT_MS)
    kept = [offset for offset in offsets if offset >= below]
    left = []
    for cut in cuts(path, tmp_path, durable_bytes=durable_bytes[0]):
        with closing(open_at(cut)) as found:
            left.append(entries_in(cut))
            assert (below, offsets[-1]) == (found.start(), found.end())
            assert kept == [entry.offset for entry in found.read(below, limit=ENTRIES)]
            found.truncate(below, timeout_ms=TIMEOUT_MS)
            assert len(kept) == entries_in(cut)
    assert (len(offsets) - TRUNCATE_STEP_ENTRIES, len(kept)) == (left[0], left[-1]), (
        "the cuts take back what came after the append"
    )
    log.close()
    other.close()


@pytest.mark.parametrize("seed", range(20))
def test_no_offset_is_issued_twice_whatever_the_power_takes(seed: int) -> None:
    """Machines are restarted and lose power, logs are replaced by copies. See the mutants for what
    this catches.
    """
    power_loss_hunt.hunt(seed)


@pytest.mark.parametrize("synchronous", [Synchronous.NORMAL, Synchronous.FULL])
@pytest.mark.parametrize("is_new", [True, False])
def test_what_an_opening_writes_is_on_the_disk(
    traced: list[str], tmp_path: Path, synchronous: Synchronous, *, is_new: bool
) -> None:
    """Whatever the setting: otherwise a second power failure undoes the skip, or the identity of a
    new log.
    """
    if not is_new:
        (tmp_path / "boot").write_text("monday")
        open_at(tmp_path / "log.db", boot_id=tmp_path / "boot").close()
    (tmp_path / "boot").write_text("tuesday")
    traced.clear()
    open_at(tmp_path / "log.db", boot_id=tmp_path / "boot", synchronous=synchronous).close()
    written = [] if is_new else ["UPDATE log"]
    assert [
        "PRAGMA synchronous = FULL",
        *written,
        f"PRAGMA synchronous = {synchronous.value}",
    ] == traced
