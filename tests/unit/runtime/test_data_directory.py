"""What a broker's data directory keeps, what it forgives, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from equipoise.brokers.errors import DataDirectoryUnusable
from equipoise.brokers.runtime import data_directory
from equipoise.brokers.runtime.data_directory import DataDirectory, nonces_of_dead
from equipoise.channel.core.errors import Bug, OperatorError

LOG = "identity of the log"


def lines(path: Path) -> list[bytes]:
    """The lines of the file of nonces."""
    return (path / "nonces").read_bytes().split()


def test_a_directory_is_made_with_the_folders_above_it(tmp_path: Path) -> None:
    """A directory that is not there is made, empty, and only for its owner's eyes."""
    path = tmp_path / "deep" / "broker-0"
    with DataDirectory(path) as directory:
        assert frozenset() == directory.nonces
        assert directory.load_snapshot(log_identity=LOG) is None
    assert 0o700 == path.stat().st_mode & 0o777


def test_nonces_are_found_again(tmp_path: Path) -> None:
    """All nonces that were written are there when the directory is opened again."""
    with DataDirectory(tmp_path) as directory:
        directory.write_nonce("one")
        directory.write_nonce("two")
        assert {"one", "two"} == directory.nonces
    with DataDirectory(tmp_path) as directory:
        assert {"one", "two"} == directory.nonces


def test_all_nonces_but_one_are_forgotten(tmp_path: Path) -> None:
    """Once an incarnation has been read back only its nonce is kept, and later ones come after it."""
    with DataDirectory(tmp_path) as directory:
        for nonce in ("one", "two", "three"):
            directory.write_nonce(nonce)
        directory.forget_nonces("two")
        assert {"two"} == directory.nonces
        directory.write_nonce("four")
    assert [b"two", b"four"] == lines(tmp_path)


@pytest.mark.parametrize("torn", [b"thr", b"\0\0\0\0", b"\xff\xfe", b"\n\n"])
def test_a_torn_end_costs_nothing_else(tmp_path: Path, torn: bytes) -> None:
    """What a power cut left of a last line is passed over, and the next nonce is not joined to it."""
    with DataDirectory(tmp_path) as directory:
        directory.write_nonce("one")
    with (tmp_path / "nonces").open("ab") as file:
        file.write(torn)
    with DataDirectory(tmp_path) as directory:
        assert {"one"} == directory.nonces
        directory.write_nonce("two")
    with DataDirectory(tmp_path) as directory:
        assert {"one", "two"} <= directory.nonces


def test_any_bytes_may_stand_in_the_file_of_nonces(tmp_path: Path) -> None:
    """A file of anything gives the words in it that could be nonces, and no error."""
    (tmp_path / "nonces").write_bytes(bytes(range(256)) * 4 + b"\nword\nwith blank\n")
    with DataDirectory(tmp_path) as directory:
        assert "word" in directory.nonces
        assert all(nonce.isprintable() and " " not in nonce for nonce in directory.nonces)


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "ü"])
def test_what_is_no_nonce_is_a_bug(tmp_path: Path, text: str) -> None:
    """A text that would not be found again is not written."""
    with DataDirectory(tmp_path) as directory, pytest.raises(Bug):
        directory.write_nonce(text)


def test_the_oldest_nonces_are_forgotten_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of nonces has a bound, beyond which the oldest half of them goes."""
    monkeypatch.setattr(data_directory, "NONCES_MAX", 4)
    with DataDirectory(tmp_path) as directory:
        for number in range(6):
            directory.write_nonce(f"nonce-{number}")
        assert {"nonce-2", "nonce-3", "nonce-4", "nonce-5"} == directory.nonces
    assert [b"nonce-2", b"nonce-3", b"nonce-4", b"nonce-5"] == lines(tmp_path)


def test_a_snapshot_belongs_to_its_log(tmp_path: Path) -> None:
    """A snapshot is found again together with the identity of the log that it was taken of."""
    snapshot = b"checksum\n{\0}\n"
    with DataDirectory(tmp_path) as directory:
        directory.save_snapshot(b"older", log_identity="another log")
        directory.save_snapshot(snapshot, log_identity=LOG)
    with DataDirectory(tmp_path) as directory:
        assert directory.load_snapshot(log_identity="another log") is None
        assert snapshot == directory.load_snapshot(log_identity=LOG)


@pytest.mark.parametrize("data", [b"", b"\n", b"no newline", b"\xff\n\xff"])
def test_any_bytes_may_stand_in_the_place_of_a_snapshot(tmp_path: Path, data: bytes) -> None:
    """A file of anything is a snapshot of no log that anybody has."""
    (tmp_path / "snapshot").write_bytes(data)
    with DataDirectory(tmp_path) as directory:
        assert directory.load_snapshot(log_identity=LOG) is None


def test_a_snapshot_that_was_being_written_is_passed_over(tmp_path: Path) -> None:
    """A power cut while a snapshot is written leaves the one before."""
    with DataDirectory(tmp_path) as directory:
        directory.save_snapshot(b"whole", log_identity=LOG)
        (tmp_path / "snapshot.new").write_bytes(b"half and much longer than the next one")
        assert b"whole" == directory.load_snapshot(log_identity=LOG)
        directory.save_snapshot(b"next", log_identity=LOG)
        assert b"next" == directory.load_snapshot(log_identity=LOG)


def test_the_lock_excludes_and_names_its_holder(tmp_path: Path) -> None:
    """A directory that is held is refused, to a broker and to a declaration of death, by a message that names the process."""
    with DataDirectory(tmp_path) as directory:
        directory.write_nonce("one")
        with pytest.raises(OperatorError, match=f"held by process {os.getpid()}:"):
            DataDirectory(tmp_path)
        with pytest.raises(OperatorError, match=f"held by process {os.getpid()}:"):
            nonces_of_dead(tmp_path)
    assert {"one"} == nonces_of_dead(tmp_path)


@pytest.mark.parametrize("text", ["", "who knows", "-1"])
def test_a_lock_that_does_not_name_its_holder(tmp_path: Path, text: str) -> None:
    """A holder that has not written its id yet is another process, whichever."""
    with DataDirectory(tmp_path):
        (tmp_path / "lock").write_text(text)
        with pytest.raises(OperatorError, match="held by another process"):
            DataDirectory(tmp_path)


def test_closing_lets_go_of_the_lock_once(tmp_path: Path) -> None:
    """A closed directory may be closed again, opened again, and not be written to."""
    directory = DataDirectory(tmp_path)
    directory.close()
    directory.close()
    with pytest.raises(Bug):
        directory.write_nonce("late")
    with DataDirectory(tmp_path):
        pass


@pytest.mark.parametrize("by", ["deleting", "replacing"])
def test_a_lock_that_others_do_not_find_protects_nothing(tmp_path: Path, by: str) -> None:
    """Once its lock file is gone or another, a directory is not written to: another process may hold it as well."""
    with DataDirectory(tmp_path) as directory:
        (tmp_path / "lock").unlink()
        if by == "replacing":
            (tmp_path / "lock").touch()
        with pytest.raises(DataDirectoryUnusable, match="deleted or replaced"):
            directory.write_nonce("one")
        with pytest.raises(DataDirectoryUnusable, match="deleted or replaced"):
            directory.save_snapshot(b"", log_identity=LOG)
    assert not (tmp_path / "nonces").exists()


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    """A file in the directory's place, or a path that cannot be, is a typed error that names it."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("null\0character")):
        with pytest.raises(DataDirectoryUnusable) as caught:
            DataDirectory(path)
        assert str(path) == caught.value.path


def test_a_declaration_makes_nothing(tmp_path: Path) -> None:
    """Only a directory that a broker has used tells of a death; others are refused and left as they are."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DataDirectoryUnusable):
            nonces_of_dead(path)
    assert [] == list(tmp_path.iterdir())


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two machines may hold one lock, neither a broker nor a declaration of death trusts it."""

    def refuse(path: Path) -> None:
        raise OperatorError(f"{path} lies on nfs4")

    monkeypatch.setattr(data_directory, "refuse_network_file_system", refuse)
    with pytest.raises(OperatorError, match="nfs4"):
        DataDirectory(tmp_path)
    with pytest.raises(OperatorError, match="nfs4"):
        nonces_of_dead(tmp_path)


def test_a_full_disk_is_told_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses is a typed error, and what was there before is there afterwards."""
    with DataDirectory(tmp_path) as directory:
        directory.write_nonce("one")

        def refuse(file: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", refuse)
            with pytest.raises(DataDirectoryUnusable, match="No space left"):
                directory.write_nonce("two")
            with pytest.raises(DataDirectoryUnusable, match="No space left"):
                directory.forget_nonces("two")
        assert {"one"} == directory.nonces
        directory.write_nonce("three")
    with DataDirectory(tmp_path) as directory:
        assert {"one", "three"} <= directory.nonces
