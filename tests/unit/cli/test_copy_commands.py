"""Test `equipoise channel export`, `import` and `copy`: output and files."""

from __future__ import annotations

import errno
import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.log.open_log import open_log
from tests.channels.carried import TIMEOUT_MS, entries_of
from tests.channels.compacting import restored_to_end
from tests.channels.folding import Channel
from tests.unit.cli.fabricated import LEFT, owned_channel, run, write

NO_RECORD = b'{"kind": "\\u001b[2J"}'


def left_channel() -> Channel:
    """A channel that all brokers have left, with one record that is invalid."""
    channel = owned_channel()
    channel.put_bytes(NO_RECORD)
    for broker in ("a", "b", "c"):
        channel.accept(propose.left(channel.author(broker), channel.broker(broker)))
    return channel


@pytest.fixture
def log(tmp_path: Path) -> str:
    return write(left_channel().entries, tmp_path)


def names(folder: Path) -> set[str]:
    """What lies in a folder, but for the files that SQLite keeps beside a log."""
    return {
        path.name for path in folder.iterdir() if not path.name.endswith(("-bell", "-shm", "-wal"))
    }


def test_export_prints_every_record(log: str) -> None:
    result = run("channel", "export", log=log)
    head, *lines, tail = (json.loads(line) for line in result.stdout.splitlines())
    assert ("channel", 2, log, 1, 13) == tuple(
        head[name] for name in ("equipoise", "format", "log", "start", "end")
    )
    assert (
        list(range(1, 14))
        == [line["offset"] for line in lines]
        == [line["position"] for line in lines]
    )
    assert {"position", "offset", "record", "accepted", "reason", "problem"} == set(lines[0])
    assert (LEFT, "assigning", True, None) == (
        lines[5]["record"]["key"],
        lines[5]["record"]["state"],
        lines[5]["accepted"],
        lines[5]["reason"],
    )
    assert (None, False, "malformed") == (
        lines[9]["record"],
        lines[9]["accepted"],
        lines[9]["reason"],
    )
    above = result.stdout.rpartition('{"entries"')[0].encode()
    digest = f"0x{left_channel().view.digest():016x}"
    assert {
        "entries": 13,
        "offset": 13,
        "digest": digest,
        "sha256": sha256(above).hexdigest(),
    } == tail
    assert ("", 0) == (result.stderr, result.exit_code)


def test_a_partial_export_has_only_records(log: str) -> None:
    lines = run(
        "channel", "export", "--format", "jsonl", "--from", "12", log=log
    ).stdout.splitlines()
    assert [12, 13] == [json.loads(line)["offset"] for line in lines]


@pytest.mark.parametrize(
    ("file", "options"),
    [("channel.jsonl", ()), ("channel.jsonl.zst", ()), ("channel", ("--zstd",))],
)
def test_an_export_is_imported(
    file: str, options: tuple[str, ...], log: str, tmp_path: Path
) -> None:
    exported = run("channel", "export", str(tmp_path / file), *options, log=log)
    assert ("", "", 0) == (exported.stdout, exported.stderr, exported.exit_code)
    assert bool(options or file.endswith(".zst")) == (tmp_path / file).read_bytes().startswith(
        b"\x28\xb5\x2f\xfd"
    )
    to = f"sqlite:{tmp_path}/two.db"
    result = run("channel", "import", str(tmp_path / file), to, "--ahead", "5")
    digest = f"0x{left_channel().view.digest():016x}"
    told = (
        f"imported {tmp_path / file} to {to}: 13 records up to offset 13, digest {digest}; it is"
        " the same log\n"
    )
    assert (told, "", 0) == (result.stdout, result.stderr, result.exit_code)
    first, second = open_log(log), open_log(to)
    assert entries_of(first) == entries_of(second)
    assert first.end() + 5 == second.end()
    first.close()
    second.close()
    assert {"channel.db", "two.db", file} == names(tmp_path)


def test_import_prints_json(log: str, tmp_path: Path) -> None:
    run("channel", "export", str(tmp_path / "export"), log=log)
    to = f"sqlite:{tmp_path}/two.db"
    document = json.loads(run("channel", "import", str(tmp_path / "export"), to, "--json").stdout)
    assert (to, "test", 13, 13, True) == tuple(
        document[name] for name in ("to", "cluster", "entries", "offset", "same")
    )


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    url = write(left_channel().entries, tmp_path)
    log = open_log(url)
    log.truncate(5, timeout_ms=TIMEOUT_MS)
    log.close()
    result = run("channel", "export", str(tmp_path / "export"), log=url)
    assert 4 == result.exit_code
    assert {"channel.db"} == names(tmp_path)


def test_a_damaged_export_is_refused(log: str, tmp_path: Path) -> None:
    (tmp_path / "export").write_text(
        run("channel", "export", log=log).stdout.rpartition('{"entries"')[0]
    )
    result = run("channel", "import", str(tmp_path / "export"), f"sqlite:{tmp_path}/two.db")
    told = (
        f"error: {tmp_path}/export cannot be imported: line 15: the file ends here, without the"
        " tail of an export: it was cut off; "
    )
    assert ("", 4, True) == (result.stdout, result.exit_code, result.stderr.startswith(told))
    assert {"channel.db", "export"} == names(tmp_path)


def test_invalid_files_are_usage_errors(log: str, tmp_path: Path) -> None:
    to = f"sqlite:{tmp_path}/two.db"
    for line in (
        ("export", str(tmp_path)),
        ("export", ""),
        ("export", "\ud800"),
        ("import", "", to),
        ("import", str(tmp_path / "x"), to),
    ):
        assert 2 == run("channel", *line, log=log).exit_code, line
    run("channel", "export", str(tmp_path / "export"), log=log)
    result = run("channel", "import", str(tmp_path / "export"), log)
    assert (2, True) == (
        result.exit_code,
        result.stderr.startswith(f"error: nothing can be copied to {log}: there is a file"),
    )


def test_copy_closes_the_old_log(log: str, tmp_path: Path) -> None:
    to = f"sqlite:{tmp_path}/two.db"
    result = run("channel", "copy", log, to)
    told = (
        f"copied cluster test to {to}: 1 namespace, 2 bundles, 3 brokers, above offset 14; {log} is"
        " closed\n"
    )
    assert (told, "", 0) == (result.stdout, result.stderr, result.exit_code)
    copied = open_log(to)
    assert left_channel().view.bundles == restored_to_end(copied).bundles
    copied.close()
    assert 4 == run("bundles", "list", log=log).exit_code
    assert 0 == run("bundles", "list", log=to).exit_code
    assert 0 == run("channel", "verify", log=to).exit_code


def test_copy_prints_json(log: str, tmp_path: Path) -> None:
    to = f"sqlite:{tmp_path}/two.db"
    document = json.loads(run("channel", "copy", log, to, "--json").stdout)
    assert (log, to, "test", 14, []) == tuple(
        document[name] for name in ("from", "to", "cluster", "base", "declared_dead")
    )
    assert (
        document["digest"]
        == json.loads(run("channel", "at", "now", "--json", log=to).stdout)["digest"]
    )


def test_refusals_of_copy(log: str, tmp_path: Path) -> None:
    to, other = f"sqlite:{tmp_path}/two.db", f"sqlite:{tmp_path}/three.db"
    other_log = open_log(to)
    other_log.append([NO_RECORD], timeout_ms=TIMEOUT_MS)
    other_log.close()
    refused = run("channel", "copy", log, to)
    assert (2, f"error: nothing can be copied to {to}: it has records already") == (
        refused.exit_code,
        refused.stderr.partition(";")[0],
    )
    run("channel", "copy", log, f"sqlite:{tmp_path}/first.db")
    closed = run("channel", "copy", log, other)
    assert (
        4,
        f"error: the log {log} was closed at offset 14, when its channel was copied to another log",
    ) == (
        closed.exit_code,
        closed.stderr.partition(": brokers")[0],
    )
    elsewhere = run("channel", "copy", log, other, "--again", "--json")
    document = json.loads(elsewhere.stderr)
    assert (4, "OperatorError") == (elsewhere.exit_code, document["error"])
    assert (
        f"for its copy to sqlite:{tmp_path}/first.db, and {other} is not that log"
        in document["message"]
    )
    assert {"channel.db", "first.db", "two.db"} == names(tmp_path)
    lost = run("channel", "copy", log, other, "--again", "--other-is-lost")
    assert (0, True) == (
        lost.exit_code,
        lost.stdout.endswith("; let brokers work on one copy only\n"),
    )
    assert (
        2
        == run(
            "channel", "copy", f"sqlite:{tmp_path}/nothing.db", f"sqlite:{tmp_path}/four.db"
        ).exit_code
    )


def test_a_finished_copy_can_be_repeated(log: str, tmp_path: Path) -> None:
    to = f"sqlite:{tmp_path}/two.db"
    first = run("channel", "copy", log, to)
    again = run("channel", "copy", log, to, "--again")
    assert (0, first.stdout) == (again.exit_code, again.stdout)


def test_an_interrupted_copy_is_finished_with_again(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is closed for that target by then."""
    to = f"sqlite:{tmp_path}/two.db"
    with monkeypatch.context() as dying:
        dying.setattr(
            "equipoise.compaction.copying.begin_above",
            lambda *_, **__: (_ for _ in ()).throw(OSError(5, "Input/output error")),
        )
        assert 4 == run("channel", "copy", log, to).exit_code
    assert {"channel.db", "two.db"} == names(tmp_path)
    assert 4 == run("bundles", "list", log=log).exit_code
    assert 0 == run("channel", "copy", log, to, "--again").exit_code
    assert 0 == run("channel", "verify", log=to).exit_code


def test_a_refused_copy_leaves_no_file(tmp_path: Path) -> None:
    log = write(owned_channel().entries, tmp_path)
    result = run("channel", "copy", log, f"sqlite:{tmp_path}/two.db", "--timeout", "1")
    assert 0 != result.exit_code
    assert {"channel.db"} == names(tmp_path)


def test_an_export_to_a_full_disk_names_its_file(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fail)
    result = run("channel", "export", str(tmp_path / "backup"), "--json", log=log)
    document = json.loads(result.stderr)
    assert (4, "OperatorError") == (result.exit_code, document["error"])
    assert (
        f"{tmp_path / 'backup'} cannot be written: No space left on device" in document["message"]
    )
    assert {"channel.db"} == names(tmp_path)


def test_an_export_overwrites_nothing(log: str, tmp_path: Path) -> None:
    (tmp_path / "backup").write_text("precious")
    result = run("channel", "export", str(tmp_path / "backup"), log=log)
    assert (2, True) == (result.exit_code, "there is a file" in result.stderr.replace("\n", " "))
    assert "precious" == (tmp_path / "backup").read_text()
    result = run("channel", "export", str(tmp_path / "none" / "x"), log=log)
    assert (2, False) == (result.exit_code, ".part" in result.stderr)


def test_of_two_exports_to_one_file_the_later_is_refused(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    monkeypatch.setattr("os.fsync", lambda _: backup.write_text("precious"))
    assert 2 == run("channel", "export", str(backup), log=log).exit_code
    assert ("precious", {"channel.db", "backup"}) == (backup.read_text(), names(tmp_path))


def test_a_closed_log_takes_no_records(log: str, tmp_path: Path) -> None:
    run("channel", "copy", log, f"sqlite:{tmp_path}/two.db")
    before = Channel()
    for _, data in left_channel().entries:
        before.put_bytes(data)
    old = open_log(log)
    old.append(
        [encode(propose.set_policy(before.admin(), before.view, name="p", document={}))],
        timeout_ms=TIMEOUT_MS,
    )
    old.close()
    assert 4 == run("namespaces", "create", "shop/orders", log=log).exit_code
    assert 4 == run("channel", "tail", "--follow", log=log).exit_code
    lines = run("channel", "tail", log=log).stdout.splitlines()
    assert "14" == [line for line in lines if not line.startswith(" ")][-1].split()[0], lines
