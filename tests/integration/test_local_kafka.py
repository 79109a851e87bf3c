"""Test a local Kafka that is started, found again, killed, cut off and restarted: it keeps its
records.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compose.local_kafka.__main__ import main
from compose.local_kafka.cluster import Cluster
from equipoise.channel.core.errors import OperatorError
from tests.kafka.finding import ROOT
from tests.kafka.fixtures import OwnKafka
from tests.kafka.topics import (
    create_topic,
    leader_of,
    read_all,
)

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


def values(address: str, topic: str) -> list[bytes | None]:
    """Return the values in a topic."""
    return [value for _, _, value in read_all(address, topic)]


def test_laying_out_a_running_folder_returns_its_kafka(own_kafka: OwnKafka) -> None:
    """Other settings are refused."""
    folder, layout = own_kafka.cluster.folder, own_kafka.cluster.layout
    again = Cluster.lay_out(folder, proxies=layout.proxies, extra=layout.extra)
    assert own_kafka.address == again.address
    assert own_kafka.cluster.node(1).pid == again.node(1).pid
    with pytest.raises(OperatorError, match="other settings"):
        Cluster.lay_out(folder, proxies=layout.proxies)
    with pytest.raises(OperatorError, match="the number of its nodes is 1, not 3"):
        Cluster.lay_out(folder, nodes=3, proxies=layout.proxies, extra=layout.extra)
    beside = Cluster.lay_out(folder.parent / "beside", port=layout.ports[0].client)
    with pytest.raises(OperatorError, match=str(layout.ports[0].client)):
        beside.start()


def test_the_command_line_starts_shows_and_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`start` prints the address, and `status` the running nodes. A start after `stop` uses the
    same address and data.
    """
    folder = ["--folder", str(tmp_path)]
    try:
        assert 0 == main(
            ["start", *folder, "--port", "0", "--property", "log.cleaner.backoff.ms=300"]
        )
        address = capsys.readouterr().out.strip()
        create_topic(address, "kept")
        assert 0 == main(
            ["start", *folder, "--port", "0", "--property", "log.cleaner.backoff.ms=300"]
        )
        assert address == capsys.readouterr().out.strip()
        assert 0 == main(["status", *folder])
        assert "node 1 up, process" in capsys.readouterr().out
        assert 0 == main(["stop", *folder])
        assert 3 == main(["status", *folder])
        assert "node 1 down" in capsys.readouterr().out
        assert 0 == main(["start", *folder, "--port", "0"])
        assert address == capsys.readouterr().out.strip()
        assert 1 == leader_of(address, "kept")
    finally:
        main(["stop", *folder, "--kill"])


def test_a_kafka_of_tests_ends_with_a_killed_test_run(tmp_path: Path) -> None:
    """Its leash kills it."""
    program = (
        "import sys, pathlib; from tests.kafka.finding import local_kafka\nwith"
        " local_kafka(pathlib.Path(sys.argv[1])) as cluster: print(cluster.address, flush=True);"
        " sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert "127.0.0.1:" in run.stdout.readline()
        node = Cluster.laid_out(tmp_path).node(1)
        assert node.pid is not None
        os.kill(run.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + DEADLINE_S
    while node.pid is not None:
        assert time.monotonic() < deadline_s, "the leash has not ended it"
        time.sleep(0.05)
