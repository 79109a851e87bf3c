"""`equipoise channel copy` beyond its transcript: copies that were interrupted or refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.log.open_log import open_log
from tests.channels.carried import TIMEOUT_MS
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


def test_a_closed_log_takes_no_records(log: str, tmp_path: Path) -> None:
    run("channel", "copy", log, f"sqlite:{tmp_path}/two.db")
    before = Channel()
    for _, data in left_channel().entries:
        before.put_bytes(data)
    with closing(open_log(log)) as old:
        old.append(
            [encode(propose.set_policy(before.admin(), before.view, name="p", document={}))],
            timeout_ms=TIMEOUT_MS,
        )
    assert 4 == run("namespaces", "create", "shop/orders", log=log).exit_code
    assert 4 == run("channel", "tail", "--follow", log=log).exit_code
    lines = run("channel", "tail", log=log).stdout.splitlines()
    assert "14" == [line for line in lines if not line.startswith(" ")][-1].split()[0], lines
