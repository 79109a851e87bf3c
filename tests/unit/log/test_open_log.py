"""Log URLs: what each form opens, and what is refused in words that help."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import CallerError, EquipoiseError, LogNotBegun, OperatorError
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.log.open_log import open_log
from equipoise.channel.sqlite.log import SqliteLog


def test_a_log_in_memory_ends_with_its_last_handle() -> None:
    """When the last handle is closed, the name stands for a new log."""
    first, second = open_log("memory:brief"), open_log("memory:brief")
    assert (MemoryLog, "memory:brief") == (type(first), first.name)
    first.append([b"a"], timeout_ms=0)
    first.close()
    assert second.end() == 1
    second.close()
    assert open_log("memory:brief").end() == 0


def test_sqlite_urls_name_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative and an absolute path lead to one file, with either kind of durability, and the
    handle bears its URL.
    """
    monkeypatch.chdir(tmp_path)
    relative, absolute = (
        open_log("sqlite:a b%20.db"),
        open_log(f"sqlite:{tmp_path}/a b%20.db?synchronous=normal"),
    )
    relative.append([b"a"], timeout_ms=1_000)
    assert absolute.end() == 1
    assert isinstance(relative, SqliteLog)
    assert relative.name == "sqlite:a b%20.db"
    assert (tmp_path / "a b%20.db").exists()
    relative.close()
    absolute.close()


def test_symbolic_links_lead_to_one_log(tmp_path: Path) -> None:
    """Whoever opens a link rings the notifier of the file that it leads to."""
    direct = open_log(f"sqlite:{tmp_path}/log.db")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link.db").symlink_to(tmp_path / "log.db")
    with closing(open_log(f"sqlite:{tmp_path}/folder/link.db")) as linked:
        linked.append([b"a"], timeout_ms=1_000)
        assert direct.wait(1, timeout_ms=0)
        assert ["link.db"] == [file.name for file in (tmp_path / "folder").iterdir()]
    direct.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_log_with_a_hard_link_is_refused(suffix: str, tmp_path: Path) -> None:
    """A second name of the log or of a file of SQLite beside it is refused until it is gone, and a
    log that is open goes on.
    """
    path, other = tmp_path / "log.db", tmp_path / "other.db"
    log = open_log(f"sqlite:{path}")
    log.append([b"a"], timeout_ms=1_000)
    Path(f"{other}{suffix}").hardlink_to(f"{path}{suffix}")
    for name in (path, other) if not suffix else (path,):
        for create in (True, False):
            with pytest.raises(
                OperatorError,
                match=rf"{name}{suffix} has 2 names.*delete the other names.*channel copy",
            ):
                open_log(f"sqlite:{name}", create=create)
    log.append([b"b"], timeout_ms=1_000)
    Path(f"{other}{suffix}").unlink()
    with closing(open_log(f"sqlite:{path}")) as again:
        assert again.end() == 2
    log.close()


@pytest.mark.parametrize("create", [True, False])
def test_a_loop_of_symbolic_links_is_refused(create: bool, tmp_path: Path) -> None:
    """A link that leads to itself is no log, whether it stands for the file or for a folder above
    it.
    """
    (tmp_path / "loop").symlink_to("loop")
    for path in ("loop", "loop/log.db"):
        with pytest.raises(CallerError, match="symbolic links"):
            open_log(f"sqlite:{tmp_path}/{path}", create=create)


def test_a_new_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    """The files of a new log have the mode 0600, and those of a log that is there have its mode."""
    log = open_log(f"sqlite:{tmp_path}/log.db")
    log.append([b"a"], timeout_ms=1_000)
    (tmp_path / "shared.db").touch()
    (tmp_path / "shared.db").chmod(0o664)
    with closing(open_log(f"sqlite:{tmp_path}/shared.db")) as shared:
        shared.append([b"a"], timeout_ms=1_000)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        private = dict.fromkeys(
            ("log.db", "log.db-wal", "log.db-shm", "log.db-bell", "shared.db-bell"), 0o600
        )
        assert (
            private | dict.fromkeys(("shared.db", "shared.db-wal", "shared.db-shm"), 0o664) == modes
        )
        log.close()


def test_who_only_looks_makes_nothing(tmp_path: Path) -> None:
    """Without `create`, a file that is not there is refused and not made, and an empty one stays
    empty; a log is opened.
    """
    url, file = f"sqlite:{tmp_path}/log.db", tmp_path / "log.db"
    with pytest.raises(LogNotBegun, match="there is no file") as caught:
        open_log(url, create=False)
    assert (url, []) == (caught.value.log, list(tmp_path.iterdir()))
    file.touch()
    with pytest.raises(LogNotBegun, match=r"log\.db is empty; start a broker on it"):
        open_log(url, create=False)
    assert ([file], 0) == (list(tmp_path.iterdir()), file.stat().st_size)
    open_log(url).close()
    open_log(url, create=False).close()


REFUSED = {
    "": "it must begin with the kind of the log and a colon",
    "sqlite": "it has no path",
    "sqlite:": "it has no path",
    "sqlite:?synchronous=full": "it has no path",
    "sqlite://channel.db": (
        "a path begins with one slash, not two: use sqlite:/channel.db, or sqlite:channel.db"
    ),
    "sqlite://{folder}/log.db": "a path begins with one slash",
    "sqlite:{folder}/pipe": "is not a regular file",
    "sqlite:{folder}": "is not a regular file",
    "sqlite:{folder}/missing/log.db": "there is no folder",
    "sqlite:{folder}/file/log.db": "there is no folder",
    "sqlite:{folder}/" + "n" * 300: "name too long",
    "sqlite:{folder}/\0": "null",
    "sqlite:{folder}/\ud800": "surrogates not allowed",
    "sqlite:{folder}/log.db?synchronous=off": "unknown option 'synchronous=off'",
    "sqlite:{folder}/log.db?mode=ro": "unknown option 'mode=ro'",
    "memory:": "it has no name",
    "nats:localhost:4222/channel": "unknown kind 'nats'",
    "log.db": "it must begin with the kind of the log and a colon",
}


@pytest.mark.parametrize("url", REFUSED)
def test_urls_that_name_no_log_are_refused(url: str, tmp_path: Path) -> None:
    """A URL that names no log is the caller's error, which says what is wrong with it, and makes no
    file.
    """
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    filled = url.replace("{folder}", str(tmp_path))
    with pytest.raises(CallerError, match=REFUSED[url]) as caught:
        open_log(filled)
    assert repr(filled) in str(caught.value)
    assert ["file", "pipe"] == sorted(file.name for file in tmp_path.iterdir())


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
@given(
    prefix=st.sampled_from(["", "memory:", "sqlite", "sqlite:{folder}/", "sqlite:{folder}/l?"]),
    rest=st.text(max_size=40),
)
@example(prefix="sqlite:{folder}/", rest="log.db-wal")
@example(prefix="sqlite:{folder}/", rest=":memory:")
def test_any_url_opens_a_log_or_is_refused(tmp_path: Path, prefix: str, rest: str) -> None:
    """Whatever text is given for a URL, the outcome is a log that works, or a typed error."""
    if ".." in rest or (prefix == "sqlite" and rest.startswith(":")):
        return  # This would make files all over the machine.
    try:
        log = open_log(prefix.replace("{folder}", str(tmp_path)) + rest)
    except EquipoiseError:
        return
    assert 1 == len(log.append([b"a"], timeout_ms=1_000))
    log.close()
