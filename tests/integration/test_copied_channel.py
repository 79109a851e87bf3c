"""A cluster of real processes whose channel is copied to another log: file to file, to a real
Kafka, and back.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.brokers.operations.access import opened, until
from equipoise.channel.core import propose
from equipoise.channel.core.view import View
from equipoise.channel.system.free_ports import free_row
from equipoise.compaction.copying import AHEAD
from tests.kafka.fixtures import Kafka
from tests.repeats import times
from tests.unit.cli.fabricated import owned_channel, run, write

pytestmark = pytest.mark.integration

PATIENCE_MS = 90_000
NAMESPACE = "shop/orders"
BUNDLES = 8
KILLS = times(2, many=8)
KILLED_AFTER_SECONDS = 3.0
"""At most; of these a process takes half a second to two for its start, and some hundredths for the
copy."""


def view_once(log: str, condition: Callable[[View], bool], what: str) -> View:
    """Return the view of a log once a condition holds."""
    with opened(log, timeout_ms=PATIENCE_MS) as access:
        until(access, lambda view: condition(view) or None, what=what)
        return access.view


def all_owned(view: View) -> bool:
    """Return whether every bundle of the namespace has an owner."""
    return len(view.bundles) == BUNDLES and {bundle.phase for bundle in view.bundles.values()} == {
        "owned"
    }


def tokens(view: View) -> dict[str, int]:
    """Return the token of each bundle."""
    return {name: bundle.token for name, bundle in view.bundles.items()}


def copied(source: str, target: str) -> int:
    """Copy one log to another with the command. Return the base of the new one."""
    result = run("channel", "copy", source, target, "--json", "--timeout", "60")
    assert ("", 0) == (result.stderr, result.exit_code)
    base: int = json.loads(result.stdout)["base"]
    return base


def settings(directory: Path, log: str, port: int) -> ClusterSettings:
    """Return two brokers that keep their ids and data directories on any log."""
    return ClusterSettings(
        directory=directory, brokers=2, http_port=port, log_url=log, settings={"balance": "false"}
    )


def worked_on(directory: Path, log: str, port: int) -> dict[str, int]:
    """Run a cluster on a log for a while, and stop it. Return the tokens at its end."""
    with LocalCluster(settings(directory, log, port)) as cluster:
        view = view_once(
            log,
            lambda view: len(view.live_brokers()) == len(cluster.broker_ids),
            "two brokers that are alive",
        )
        if NAMESPACE not in view.namespaces:
            assert (
                0
                == run(
                    "namespaces", "create", NAMESPACE, "--bundles", str(BUNDLES), log=log
                ).exit_code
            )
        view = view_once(log, all_owned, "an owner for each bundle")
        bundle = min(view.bundles)
        assert (
            0
            == run(
                "namespaces",
                "unload",
                NAMESPACE,
                "--bundle",
                bundle.removeprefix(f"{NAMESPACE}/"),
                log=log,
            ).exit_code
        )
        return tokens(view_once(log, all_owned, "an owner for each bundle, after a move"))


@pytest.mark.slow
def test_brokers_go_on_from_a_copy_and_back(tmp_path: Path, kafka: Kafka) -> None:
    """They find all bundles, under tokens above all earlier ones."""
    logs = [f"sqlite:{tmp_path}/{name}.db" for name in ("first", "second", "third")]
    logs[1] = f"kafka://{kafka.address}/{kafka.topic('copied channel')}"
    port = free_row(2)
    before = worked_on(tmp_path, logs[0], port)
    for old, new in ((logs[0], logs[1]), (logs[1], logs[2])):
        base = copied(old, new)
        after = worked_on(tmp_path, new, port)
        assert set(before) == set(after)
        assert base > max(before.values())
        assert base < min(after.values())
        assert 0 == run("channel", "verify", log=new).exit_code
        before = after


@pytest.mark.repeats
def test_a_killed_copy_can_be_repeated(tmp_path: Path) -> None:
    """The result is one whole copy of a closed log."""
    channel = owned_channel()
    for broker in ("a", "b", "c"):
        channel.accept(propose.left(channel.author(broker), channel.broker(broker)))
    seconds = random.Random(4)
    for attempt in range(KILLS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        old, new = write(channel.entries, folder), f"sqlite:{folder}/new.db"
        command = [sys.executable, "-m", "equipoise.brokers.cli", "channel", "copy", old, new]
        with (
            subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process,
            suppress(subprocess.TimeoutExpired),
        ):
            try:
                process.wait(KILLED_AFTER_SECONDS * seconds.random())
            finally:
                process.kill()
        again = run("channel", "copy", old, new, "--again")
        assert 0 == again.exit_code, again.stderr
        assert channel.view.bundles == view_once(new, lambda _: True, "a view").bundles
        assert 4 == run("bundles", "list", log=old).exit_code
        assert 0 == run("channel", "verify", log=new).exit_code


def test_a_backup_is_restored_to_kafka(tmp_path: Path, kafka: Kafka) -> None:
    """Brokers go on there, far above the offsets of the backup."""
    lost, restored = (
        f"sqlite:{tmp_path}/lost.db",
        f"kafka://{kafka.address}/{kafka.topic('restored channel')}",
    )
    port = free_row(2)
    before = worked_on(tmp_path, lost, port)
    backup = f"sqlite:{tmp_path}/backup.db"
    assert 0 == run("channel", "copy", lost, backup, "--leave-open").exit_code
    result = run("channel", "copy", backup, restored, "--leave-open")
    assert ("", 0) == (result.stderr, result.exit_code)
    after = worked_on(tmp_path, restored, port)
    assert set(before) == set(after)
    assert AHEAD < min(after.values())
    again = run("channel", "copy", backup, restored, "--leave-open")
    assert (2, True) == (again.exit_code, "it has records already" in again.stderr)
