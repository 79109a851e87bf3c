"""A lock that shows whether a process lives. Processes that die are in
`tests/integration/test_deaths_on_one_machine.py`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.channel.system.process_lock import LockedFile, hold, is_held, this_boot
from tests.channels import process_lock_hunt

HELD = LockedFile(boot_id="6f1c-2", device=2_049, inode=17, path="/a:b/lock")


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def test_the_text_of_a_lock_is_read_back() -> None:
    """The path may hold colons."""
    assert HELD == LockedFile.parse(str(HELD))


@pytest.mark.parametrize("text", ["", "a", "a:1:2", "a:b:2:/lock", "a:1:-2:/lock", "a:1::/lock"])
def test_any_other_text_is_no_lock(text: str) -> None:
    assert LockedFile.parse(text) is None


def test_a_lock_is_seen_until_its_file_is_closed(tmp_path: Path) -> None:
    """Closing another descriptor of the file ends nothing, and a look takes nothing."""
    path = tmp_path / "lock"
    file = opened(path)
    held = hold(file, path)
    assert held is not None
    assert (this_boot(), str(path.resolve())) == (held.boot_id, held.path)
    os.close(opened(path))
    look = held.open()
    assert look is not None
    assert is_held(look)
    os.close(file)
    assert not is_held(look)
    again = opened(path)
    assert hold(again, path) == held
    assert is_held(look)
    os.close(again)
    os.close(look)


def test_only_the_file_itself_is_opened(tmp_path: Path) -> None:
    """No copy in its place, and nothing that blocks."""
    path = tmp_path / "lock"
    file = opened(path)
    held = hold(file, path)
    assert held is not None
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        held.open()
    path.write_bytes(b"")
    assert held.open() is None
    path.unlink()
    os.mkfifo(path)
    assert held.open() is None
    os.close(file)
    assert replace(held, path="/dev/null").open() is None


def test_a_boot_without_an_id_shows_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.channel.system.process_lock.this_boot", lambda: "")
    file = opened(tmp_path / "lock")
    assert hold(file, tmp_path / "lock") is None
    os.close(file)


@pytest.mark.parametrize("seed", range(30))
def test_a_proof_of_death_is_of_a_process_that_has_ended(seed: int) -> None:
    """Whatever is deleted, copied or replaced."""
    process_lock_hunt.hunt(seed)
