"""Test `equipoise channel copy`: output and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.log.open_log import open_log
from tests.channels.carried import TIMEOUT_MS
from tests.channels.compacting import restored_to_end
from tests.channels.folding import Channel
from tests.unit.cli.fabricated import owned_channel, run, write

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


def test_a_backup_leaves_the_log_open(tmp_path: Path) -> None:
    """It is made while brokers run, and goes on far above them."""
    log, to = write(owned_channel().entries, tmp_path), f"sqlite:{tmp_path}/two.db"
    result = run("channel", "copy", log, to, "--leave-open", "--ahead", "100")
    told = (
        f"copied cluster test to {to}: 1 namespace, 2 bundles, 3 brokers, above offset 109; {log}"
        " is left open\n"
    )
    assert (told, "", 0) == (result.stdout, result.stderr, result.exit_code)
    assert 0 == run("channel", "verify", log=to).exit_code
    document = json.loads(run("channel", "copy", log, f"{to}2", "--leave-open", "--json").stdout)
    assert 1_000_000_009 == document["base"]
    assert 0 == run("namespaces", "create", "shop/orders", log=log).exit_code


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--leave-open", "--again"), "--again is for a copy that closes the old log"),
        (("--leave-open", "--other-is-lost"), "--again is for a copy that closes the old log"),
        (("--ahead", "5"), "--ahead is for a copy with --leave-open"),
    ],
)
def test_options_that_exclude_each_other_are_usage_errors(
    log: str, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    result = run("channel", "copy", log, f"sqlite:{tmp_path}/two.db", *options)
    assert (2, True) == (result.exit_code, told in result.stderr)
    assert {"channel.db"} == names(tmp_path)


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
