"""`equipoise up` and the other commands on it: real processes, a real log, a real `kill -9`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from equipoise.channel.core.view import View
from equipoise.channel.system.free_ports import free_row
from tests.integration.test_copied_channel import view_once
from tests.unit.cli.fabricated import run

pytestmark = pytest.mark.integration

BROKERS = 3
PATIENCE_MS = 30_000
NAMESPACE = "shop/orders"
RANGE = "0x00000000_0x40000000"
BUNDLE = f"{NAMESPACE}/{RANGE}"


class Up:
    """A running `equipoise up --json`, with its output so far."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        log: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_row(2 * BROKERS)
        self.log = log or f"sqlite:{folder}/channel.db"
        command = [
            sys.executable,
            "-m",
            "equipoise.brokers.cli",
            "up",
            "--data",
            str(folder),
            "--http-port",
            str(self.port),
            "--json",
            *options,
        ]
        if "--service" not in options:  # It would be said that nobody uses it.
            command += ["--pulsar-port", str(self.port + BROKERS)]
        command += ["--log", log] if log else []  # Else it chooses one itself.
        variables = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=variables,
        )
        self.said: list[dict[str, str]] = []
        self.pids: dict[str, int] = {}

    def broker(self, number: int) -> str:
        """The id of a broker."""
        return f"127.0.0.1:{self.port + number}"

    def heard(self, what: str, broker: str | None = None) -> Mapping[str, object]:
        """Return the next event of this kind. Skip the events before it."""
        return self.heard_any((what,), broker)

    def heard_any(self, whats: Collection[str], broker: str | None) -> Mapping[str, object]:
        """Return the next event of one of these kinds. Skip the events before it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.said.append(said)
            if said["what"] == "started":
                self.pids[said["broker"]] = said["pid"]
            if said["what"] in whats and said.get("broker") == broker:
                return dict(said)
        raise AssertionError(f"it ended and never said {whats}: {self.errors()}")

    def errors(self) -> str:
        """What it wrote to its standard error, after its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def stop(self) -> int:
        """Stop it as a service manager does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.heard("stopping")
        return self.end()

    def end(self) -> int:
        """Read its output to the end. Return its exit code."""
        assert self.process.stdout is not None
        self.process.stdout.read()
        return self.process.wait(timeout=PATIENCE_MS / 1_000)


@contextmanager
def up(
    folder: Path,
    *options: str,
    log: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Up]:
    """A cluster that is ready; whatever happens, nothing of it is left at the end."""
    cluster = Up(folder, *options, log=log, environment=environment)
    try:
        cluster.heard("cluster_ready")
        yield cluster
    finally:
        cluster.process.kill()  # Its brokers notice by themselves.
        cluster.process.communicate()


def owners(view: View) -> list[str]:
    """The owners of the bundles of the namespace; "" for a bundle without one."""
    return [
        view.live[bundle.owner].broker if bundle.phase == "owned" and bundle.owner else ""
        for bundle in view.bundles_of(NAMESPACE)
    ]


@pytest.mark.slow
@pytest.mark.on_every_log
def test_a_cluster_moves_bundles_loses_a_broker_and_drains_another(
    tmp_path: Path, log_url: str
) -> None:
    with up(tmp_path, log=log_url) as cluster:
        ids = [cluster.broker(number) for number in range(BROKERS)]
        assert ids == [
            row["broker"]
            for row in json.loads(run("brokers", "list", "--json", log=cluster.log).stdout)
        ]
        created = run("namespaces", "create", NAMESPACE, "--bundles", "4", log=cluster.log)
        assert 0 == created.exit_code, created.stderr
        view = view_once(cluster.log, lambda view: all(owners(view)), "an owner for each bundle")
        source = owners(view)[0]
        destination = next(broker for broker in ids if broker != source)

        moved = unload(cluster.log, "--bundle", RANGE, "--destinationBroker", destination)
        assert (0, destination) == (
            moved.returncode,
            owners(view_once(cluster.log, lambda _: True, what="nothing"))[0],
        ), moved.stderr

        os.kill(cluster.pids[destination], signal.SIGKILL)
        # In either order: the others may see the end first.
        death = [cluster.heard_any(("ended", "declared_dead"), destination) for _ in range(2)]
        ended, declared_dead = sorted(death, key=lambda event: event["what"] != "ended")
        assert -signal.SIGKILL == ended["exit_code"]
        view = view_once(cluster.log, lambda view: all(owners(view)), "a child for each bundle")
        assert ("down", False) == (view.brokers[destination].status, destination in owners(view))

        owner = owners(view)[0]
        child = next(broker for broker in ids if broker not in (destination, owner))
        refused = unload(cluster.log, "--bundle", RANGE, "--destinationBroker", destination)
        assert (1, True) == (
            refused.returncode,
            f": {destination} is not alive (refused at offset " in refused.stderr,
        ), refused.stderr

        drained = run("brokers", "drain", child, log=cluster.log)
        assert (0, True) == (
            drained.exit_code,
            drained.stdout.startswith(f"{child} is drained"),
        ), drained.stderr
        refused = unload(cluster.log, "--bundle", RANGE, "--destinationBroker", child)
        assert (1, True) == (
            refused.returncode,
            "is draining and takes no new bundles (refused at offset " in refused.stderr,
        ), refused.stderr

        story = run("channel", "why", BUNDLE, log=cluster.log).stdout
        port = destination.rpartition(":")[2]
        assert re.search(
            rf"^{declared_dead['offset']} .*down +\S*:{port} ",
            story,
            re.MULTILINE,
        ), story
        assert "rejected as dead_target" in story
        assert "rejected as draining_target" in story
        assert 0 == cluster.stop(), cluster.errors()
    verified = run("channel", "verify", log=cluster.log)
    assert (0, True) == (
        verified.exit_code,
        verified.stdout.endswith("all is in order\n"),
    ), verified.stdout
    statuses = {
        broker.broker: broker.status
        for broker in view_once(cluster.log, lambda _: True, what="nothing").brokers.values()
    }
    assert {broker: "down" if broker == destination else "left" for broker in ids} == statuses


def unload(log: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`equipoise namespaces unload`, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "equipoise.brokers.cli",
        "namespaces",
        "unload",
        NAMESPACE,
        "--log",
        log,
        *options,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_MS / 1_000
    )


SLOW_SERVICE = """
import asyncio
from equipoise.brokers.runtime.service import Service

class Slow(Service):
    async def open(self, ownership, handover): ...
    async def close(self, bundle, moved_to, deadline):
        await asyncio.sleep(3_600)
"""


def test_a_second_signal_kills_the_brokers(tmp_path: Path, log_url: str) -> None:
    (tmp_path / "slow_service.py").write_text(SLOW_SERVICE)
    with up(
        tmp_path,
        "--brokers",
        "1",
        "--service",
        "slow_service:Slow",
        "--set",
        "close_ms=60000",
        log=log_url,
    ) as cluster:
        assert (
            0 == run("namespaces", "create", NAMESPACE, "--bundles", "1", log=cluster.log).exit_code
        )
        view_once(cluster.log, lambda view: all(owners(view)), "an owner for the bundle")
        cluster.process.send_signal(signal.SIGTERM)
        cluster.heard("stopping")
        cluster.process.send_signal(signal.SIGINT)
        assert -signal.SIGKILL == cluster.heard("ended", cluster.broker(0))["exit_code"]
        assert (130, "") == (cluster.end(), cluster.errors())


def test_a_signal_ends_a_start_gracefully(tmp_path: Path, log_url: str) -> None:
    cluster = Up(tmp_path, "--brokers", "2", log=log_url)
    try:
        cluster.heard("started", cluster.broker(0))
        cluster.process.send_signal(signal.SIGINT)
        cluster.heard("stopping")
        assert (0, "") == (cluster.end(), cluster.errors())
    finally:
        cluster.process.kill()
        cluster.process.communicate()


def test_brokers_do_not_outlive_their_parent(tmp_path: Path, log_url: str) -> None:
    with up(tmp_path, "--brokers", "1", log=log_url) as cluster:
        cluster.process.kill()
        view = view_once(cluster.log, lambda view: not view.live, what="the leaving of the broker")
    assert "left" == view.brokers[cluster.broker(0)].status


def test_a_cluster_ends_with_its_last_broker(tmp_path: Path, log_url: str) -> None:
    with up(tmp_path, "--brokers", "1", log=log_url) as cluster:
        os.kill(cluster.pids[cluster.broker(0)], signal.SIGKILL)
        cluster.heard("over")
        assert 4 == cluster.end()


def test_a_taken_port_is_reported_before_any_process_starts(tmp_path: Path) -> None:
    port = free_row(BROKERS)
    with socket.create_server(("127.0.0.1", port + 2)):
        result = run(
            "up",
            "--data",
            str(tmp_path / "cluster"),
            "--http-port",
            str(port),
            "--service",
            "counter",
        )
    address = f"127.0.0.1:{port + 2}"
    told = (
        f"error: cannot listen on {address}: Address already in use; free the port, or choose"
        " another with --http-port\n"
    )
    assert (4, "", told) == (result.exit_code, result.stdout, result.stderr)
    assert not (tmp_path / "cluster").exists()
