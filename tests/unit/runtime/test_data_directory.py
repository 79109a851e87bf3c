"""A broker's data directory: what it keeps, what damage it survives, and what it refuses."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from equipoise.brokers.runtime import data_directory
from equipoise.brokers.runtime.data_directory import DataDirectory, LogMark, instance_ids_of_dead
from equipoise.channel.core.errors import Bug, OperatorError

LOG = "identity"
MARK = LogMark(log=LOG, offset=7, physical=5)


def lines(path: Path) -> list[bytes]:
    """Return the instance ids in the lock file."""
    return (path / "lock").read_bytes()[20:].split()


def test_a_new_directory_is_empty_and_private(tmp_path: Path) -> None:
    """Its parents are created, too."""
    path = tmp_path / "deep" / "broker-0"
    with DataDirectory(path) as directory:
        assert frozenset() == directory.instance_ids
        assert directory.load_snapshot(log_identity=LOG) is None
    assert 0o700 == path.stat().st_mode & 0o777


def test_instance_ids_are_found_again_until_they_are_forgotten(tmp_path: Path) -> None:
    """All but one are. Later ones follow it."""
    with DataDirectory(tmp_path) as directory:
        for instance_id in ("one", "two", "three"):
            directory.write_instance_id(instance_id)
    with DataDirectory(tmp_path) as directory:
        assert {"one", "two", "three"} == directory.instance_ids
        directory.forget_instance_ids("two")
        assert {"two"} == directory.instance_ids
        directory.write_instance_id("four")
    assert [b"two", b"four"] == lines(tmp_path)


@pytest.mark.parametrize("torn", [b"thr", b"\0\0\0\0", b"\xff\xfe", b"\n\n"])
def test_a_torn_line_costs_nothing_else(tmp_path: Path, torn: bytes) -> None:
    """A power cut may leave one. The next id is not joined to it."""
    with DataDirectory(tmp_path) as directory:
        directory.write_instance_id("one")
    with (tmp_path / "lock").open("ab") as file:
        file.write(torn)
    with DataDirectory(tmp_path) as directory:
        assert {"one"} == directory.instance_ids
        directory.write_instance_id("two")
    with DataDirectory(tmp_path) as directory:
        assert {"one", "two"} <= directory.instance_ids


def test_any_bytes_may_be_in_the_lock_file(tmp_path: Path) -> None:
    """Only words that may be ids are read."""
    (tmp_path / "lock").write_bytes(bytes(range(256)) * 4 + b"\nword\nwith blank\n")
    with DataDirectory(tmp_path) as directory:
        assert "word" in directory.instance_ids
        assert all(
            instance_id.isprintable() and " " not in instance_id
            for instance_id in directory.instance_ids
        )


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "ü"])
def test_an_invalid_instance_id_is_a_bug(tmp_path: Path, text: str) -> None:
    """It would not be found again."""
    with DataDirectory(tmp_path) as directory, pytest.raises(Bug):
        directory.write_instance_id(text)


def test_instance_ids_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the oldest half is dropped."""
    monkeypatch.setattr(data_directory, "INSTANCE_IDS_MAX", 4)
    with DataDirectory(tmp_path) as directory:
        for number in range(6):
            directory.write_instance_id(str(number))
        assert {"2", "3", "4", "5"} == directory.instance_ids
    assert [b"2", b"3", b"4", b"5"] == lines(tmp_path)


def test_a_snapshot_belongs_to_its_log(tmp_path: Path) -> None:
    snapshot = b"checksum\n{\0}\n"
    with DataDirectory(tmp_path) as directory:
        directory.save_snapshot(b"older", LogMark(log="another log", offset=4, physical=4))
        directory.save_snapshot(snapshot, MARK)
    with DataDirectory(tmp_path) as directory:
        assert directory.load_snapshot(log_identity="another log") is None
        assert snapshot == directory.load_snapshot(log_identity=LOG)


def test_a_snapshot_torn_by_a_power_cut_leaves_the_one_before(tmp_path: Path) -> None:
    with DataDirectory(tmp_path) as directory:
        directory.save_snapshot(b"whole", MARK)
        (tmp_path / "snapshot.new").write_bytes(b"half and much longer than the next one")
        assert b"whole" == directory.load_snapshot(log_identity=LOG)
        directory.save_snapshot(b"next", MARK)
        assert b"next" == directory.load_snapshot(log_identity=LOG)


def test_the_mark_is_found_again_and_never_falls(tmp_path: Path) -> None:
    """A replay reads again what earlier runs have read."""
    with DataDirectory(tmp_path) as directory:
        assert directory.mark is None
        for mark in (
            MARK,
            LogMark(log=LOG, offset=6, physical=4),
            LogMark(log=LOG, offset=7, physical=7),
        ):
            directory.write_mark(mark)
            assert MARK == directory.mark
    with DataDirectory(tmp_path) as directory:
        assert MARK == directory.mark
        later = LogMark(log="a copy of it", offset=9, physical=1)
        directory.write_mark(later)
        assert later == directory.mark


@pytest.mark.parametrize("written", range(1, 6))
@pytest.mark.parametrize("kept", [0, 1, 8])
def test_a_mark_torn_by_a_power_cut_leaves_the_one_before(
    tmp_path: Path, written: int, kept: int
) -> None:
    marks = [LogMark(log=LOG, offset=offset, physical=offset) for offset in range(10, 10 + written)]
    with DataDirectory(tmp_path) as directory:
        for mark in marks[:-1]:
            directory.write_mark(mark)
    before = (tmp_path / "mark").read_bytes() if marks[:-1] else b""
    with DataDirectory(tmp_path) as directory:
        directory.write_mark(marks[-1])
    after = (tmp_path / "mark").read_bytes()
    before = before.ljust(len(after), b"\0")
    changed = next(
        at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new
    )
    (tmp_path / "mark").write_bytes(after[: changed + kept] + before[changed + kept :])
    with DataDirectory(tmp_path) as directory:
        assert directory.mark == (marks[-2] if marks[:-1] else None)


@pytest.mark.parametrize("name", ["snapshot", "mark"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"no newline",
        b"\xff\n\xff",
        b"log 1 1 00000000\n",
        b"\xff" * 9_000,
        b"x" * 4_096 + b" 00000000\n",
    ],
)
def test_any_bytes_may_be_in_the_files_of_snapshot_and_mark(
    tmp_path: Path, name: str, data: bytes
) -> None:
    """They are a snapshot of no existing log, and no mark."""
    (tmp_path / name).write_bytes(data)
    with DataDirectory(tmp_path) as directory:
        assert (None, None) == (directory.load_snapshot(log_identity=LOG), directory.mark)
        directory.write_mark(MARK)
        assert MARK == directory.mark


def test_the_lock_excludes_others_and_names_its_holder(tmp_path: Path) -> None:
    """A declaration of death, too."""
    with DataDirectory(tmp_path) as directory:
        directory.write_instance_id("one")
        with pytest.raises(OperatorError, match=f"held by process {os.getpid()}:"):
            DataDirectory(tmp_path)
        with pytest.raises(OperatorError, match=f"held by process {os.getpid()}:"):
            instance_ids_of_dead(tmp_path)
    assert {"one"} == instance_ids_of_dead(tmp_path)


@pytest.mark.parametrize("text", ["", "who knows", "-1", "0", "4194305", "9" * 20])
def test_a_lock_without_the_id_of_a_living_process(tmp_path: Path, text: str) -> None:
    """Its holder has not written it yet, and the former one has ended."""
    with DataDirectory(tmp_path):
        (tmp_path / "lock").write_text(text)
        with pytest.raises(OperatorError, match="held by another process"):
            DataDirectory(tmp_path)


def test_a_closed_directory_can_be_closed_and_opened_again(tmp_path: Path) -> None:
    """It cannot be written."""
    directory = DataDirectory(tmp_path)
    directory.close()
    directory.close()
    with pytest.raises(Bug):
        directory.write_instance_id("late")
    with DataDirectory(tmp_path):
        pass


@pytest.mark.parametrize("by", ["deleting", "replacing"])
def test_a_directory_whose_lock_file_is_gone_is_not_written(tmp_path: Path, by: str) -> None:
    """Another process may hold it, too."""
    with DataDirectory(tmp_path) as directory:
        (tmp_path / "lock").unlink()
        if by == "replacing":
            (tmp_path / "lock").touch()
        with pytest.raises(OperatorError, match="deleted or replaced"):
            directory.write_instance_id("one")
        with pytest.raises(OperatorError, match="deleted or replaced"):
            directory.save_snapshot(b"", MARK)
    assert b"one" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_an_impossible_path_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("null\0character")):
        with pytest.raises(OperatorError, match=re.escape(f"the data directory {path} cannot be")):
            DataDirectory(path)


def test_a_declaration_of_death_needs_a_used_directory(tmp_path: Path) -> None:
    """It creates nothing."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(OperatorError, match="no broker has used it"):
            instance_ids_of_dead(path)
    assert [] == list(tmp_path.iterdir())


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines may hold one lock there."""

    def refuse(path: Path) -> None:
        raise OperatorError(f"{path} lies on nfs4")

    monkeypatch.setattr(data_directory, "refuse_network_file_system", refuse)
    with pytest.raises(OperatorError, match="nfs4"):
        DataDirectory(tmp_path)
    with pytest.raises(OperatorError, match="nfs4"):
        instance_ids_of_dead(tmp_path)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataDirectory(tmp_path) as directory:
        directory.write_instance_id("zero")
        directory.write_instance_id("one")

        def refuse(file: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", refuse)
            with pytest.raises(OperatorError, match="No space left"):
                directory.write_instance_id("two")
            with pytest.raises(OperatorError, match="No space left"):
                directory.forget_instance_ids("one")
        assert {"zero", "one"} == directory.instance_ids
        directory.write_instance_id("three")
    with DataDirectory(tmp_path) as directory:
        assert {"one", "three"} <= directory.instance_ids
