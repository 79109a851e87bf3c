"""Compact the log of running brokers: one starts from nothing, one was paused meanwhile."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.brokers.operations.access import opened, until
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.brokers.operations.verbs import create_namespace
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restoration
from equipoise.channel.system.clocks import Deadline
from equipoise.compaction.compactor import Compacted, compact
from equipoise.compaction.retention import parse_retention

pytestmark = pytest.mark.integration

NAMESPACE = "acme/shop"
PATIENCE_MS = 60_000
HOUR_MS = 3_600_000


def cut_off_all(log_url: str) -> Compacted:
    """Compact a log, and keep nothing of it for anybody."""
    with closing(open_log(log_url, create=False)) as log:
        retain = parse_retention("0 offsets")
        return compact(
            log,
            retain=retain,
            timeout_ms=PATIENCE_MS,
            now_ms=lambda: time.time_ns() // 1_000_000 + HOUR_MS,
        )


def metric(address: str, name: str) -> float:
    """What a broker tells of one metric; 0 while it does not answer."""
    try:
        # A broker of this test.
        with urlopen(f"{address}/metrics", timeout=5) as answer:  # noqa: S310
            match = re.search(
                rf"^equipoise_{name}{{[^}}]*}} (\S+)$", answer.read().decode(), flags=re.MULTILINE
            )
    except OSError:
        return 0.0
    return 0.0 if match is None else float(match[1])


def wait_for_metric(address: str, name: str, at_least: float) -> None:
    """Wait until a broker tells so much."""
    deadline = Deadline.after(timeout_ms=PATIENCE_MS)
    while metric(address, name) < at_least:
        deadline.check(f"{name} of {address} being {at_least}")
        time.sleep(0.05)


def wait_until_owned(log_url: str, *brokers: str) -> View:
    """Wait until these brokers, and no others, are up, and own all bundles between them; the view
    then.
    """
    with opened(log_url, timeout_ms=PATIENCE_MS) as access:

        def owned(view: View) -> View | None:
            up = {entry.broker for entry in view.live_brokers() if entry.status == "up"}
            bundles = view.bundles_of(NAMESPACE)
            return (
                view
                if up == set(brokers)
                and bundles
                and all(bundle.phase == "owned" for bundle in bundles)
                else None
            )

        return until(access, owned, what="all bundles being owned")


def test_brokers_start_from_the_snapshot_and_resync_through_it(tmp_path: Path) -> None:
    """A broker without a directory is ready on a log that was cut off, and one that slept through
    the cut goes on after it.
    """
    settings = ClusterSettings(directory=tmp_path, brokers=2, settings={"balance": "false"})
    with LocalCluster(settings) as cluster:
        first, second = cluster.broker_ids
        with opened(cluster.log_url, timeout_ms=PATIENCE_MS, publisher="admin:test") as access:
            run(create_namespace(ChannelPort(access), NAMESPACE, even_boundaries(8)))
        tokens = {
            bundle.name: bundle.token
            for bundle in wait_until_owned(cluster.log_url, first, second).bundles_of(NAMESPACE)
        }

        cluster.pause(1)
        # It is declared dead, and what it had is placed anew: all unread by it.
        wait_until_owned(cluster.log_url, first)
        compacted = cut_off_all(cluster.log_url)
        assert compacted.start > compacted.start_before
        cluster.resume(1)
        wait_for_metric(cluster.addresses[1], "reader_resyncs_total", 1)
        view = wait_until_owned(cluster.log_url, first, second)
        assert all(bundle.token >= tokens[bundle.name] for bundle in view.bundles_of(NAMESPACE))

        cluster.kill(0)
        wait_until_owned(cluster.log_url, second)
        # Only now: the cluster reads the end of the log of a broker that has ended.
        shutil.rmtree(cluster.directories[0])
        cut_off_all(cluster.log_url)
        cluster.restart(0)
        wait_until_owned(cluster.log_url, first, second)
        assert 0 == metric(cluster.addresses[0], "reader_resyncs_total")


def wait_for_child(parent: int, argument: str) -> None:
    """Wait until a process has a child that was started with this argument: it may be there for no
    more than half a second.
    """
    deadline = Deadline.after(timeout_ms=PATIENCE_MS)
    while not any(argument in child for child in children(parent)):
        deadline.check(f"process {parent} having a child with the argument {argument}")
        time.sleep(0.005)


def children(parent: int) -> list[list[str]]:
    """The command lines of a process's children at this moment, whichever of its threads has
    started them.
    """
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        with suppress(OSError):  # The thread, or the child, has just ended.
            pids = (task / "children").read_text(encoding="ascii").split()
            found += [
                Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0") for pid in pids
            ]
    return found


def test_the_leader_compacts_in_a_process_of_its_own(tmp_path: Path) -> None:
    """With a small bound the leader has the log compacted, tells of it, and keeps for the others
    what is younger than ten minutes.
    """
    settings = ClusterSettings(
        directory=tmp_path, brokers=1, settings={"compact_records": 3, "retain": "0 offsets"}
    )
    with LocalCluster(settings) as cluster:
        pid = cluster.pid(0)
        assert pid is not None
        wait_for_child(pid, "compact")
        wait_for_metric(cluster.addresses[0], "compaction_horizon_offset", 3)
        assert 0 == metric(cluster.addresses[0], "compaction_failures_total")
        with closing(open_log(cluster.log_url, create=False)) as log:
            marker = restoration(log).marker
            assert marker is not None
            assert (1, True) == (log.start(), marker.horizon >= 3)
