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
from compose.local_kafka.errors import LocalKafkaError
from tests.kafka.finding import ROOT
from tests.kafka.fixtures import Kafka, OwnKafka
from tests.kafka.proxy import Direction
from tests.kafka.topics import (
    KafkaFailedError,
    Writer,
    advertised,
    create_topic,
    delete_topics,
    leader_of,
    read_all,
)

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


def values(address: str, topic: str) -> list[bytes | None]:
    """Return the values in a topic."""
    return [value for _, _, value in read_all(address, topic)]


def test_topics_of_the_shared_kafka_are_separate(kafka: Kafka) -> None:
    """Two topics for one purpose have different names. A deleted topic comes back empty."""
    one, two = kafka.topic("what for?"), kafka.topic("what for?")
    for topic in (one, two):
        create_topic(kafka.address, topic)
    Writer(kafka.address).append(one, [(b"key", b"value")])
    assert [b"value"] == values(kafka.address, one)
    assert [] == values(kafka.address, two)
    delete_topics(kafka.address, [one])
    create_topic(kafka.address, one)
    assert [] == values(kafka.address, one)


def test_acknowledged_records_survive_a_kill(own_kafka: OwnKafka) -> None:
    """The node restarts at the same address."""
    topic = own_kafka.topic("outlives a kill")
    create_topic(own_kafka.address, topic)
    Writer(own_kafka.address).append(topic, [(b"key", b"before")])
    node = own_kafka.cluster.node(1)
    node.kill()
    assert node.pid is None
    node.start()
    Writer(own_kafka.address).append(topic, [(b"key", b"after")])
    assert [b"before", b"after"] == values(own_kafka.address, topic)


def test_clients_of_a_proxy_stay_behind_it(own_kafka: OwnKafka) -> None:
    """Kafka advertises the proxy to clients behind it, and its own address to all others."""
    assert [own_kafka.proxied_address] == advertised(own_kafka.proxied_address)
    assert [own_kafka.address] == advertised(own_kafka.address)


def test_an_append_without_a_receipt_may_be_on_the_log(own_kafka: OwnKafka) -> None:
    """The proxy drops the answer, so the producer gives up."""
    topic = own_kafka.topic("no receipt")
    create_topic(own_kafka.address, topic)
    writer = Writer(own_kafka.proxied_address, timeout_s=3)
    writer.append(topic, [(b"key", b"certain")])
    own_kafka.proxy.black_hole(Direction.TO_CLIENT)
    with pytest.raises(KafkaFailedError, match="have no receipt"):
        writer.append(topic, [(b"key", b"in doubt")])
    own_kafka.proxy.heal()
    assert [b"certain", b"in doubt"] == values(own_kafka.address, topic)


def test_a_suspended_node_answers_after_it_resumes(own_kafka: OwnKafka) -> None:
    topic = own_kafka.topic("suspended")
    create_topic(own_kafka.address, topic)
    own_kafka.cluster.node(1).suspend()
    with pytest.raises(KafkaFailedError):
        Writer(own_kafka.address, timeout_s=1).append(topic, [(b"key", b"lost")])
    own_kafka.cluster.node(1).resume()
    Writer(own_kafka.address).append(topic, [(b"key", b"kept")])
    assert b"kept" in values(own_kafka.address, topic)


def test_all_threads_of_a_suspended_node_are_stopped(own_kafka: OwnKafka) -> None:
    """They are stopped when `suspend` returns."""
    node = own_kafka.cluster.node(1)
    for _ in range(10):
        node.suspend()
        threads = Path(f"/proc/{node.pid}/task").glob("*/stat")
        states = {thread.read_text().rpartition(")")[2].split()[0] for thread in threads}
        node.resume()
        assert {"T"} == states


def test_laying_out_a_running_folder_returns_its_kafka(own_kafka: OwnKafka) -> None:
    """Other settings are refused."""
    folder, layout = own_kafka.cluster.folder, own_kafka.cluster.layout
    again = Cluster.lay_out(folder, proxies=layout.proxies, extra=layout.extra)
    assert own_kafka.address == again.address
    assert own_kafka.cluster.node(1).pid == again.node(1).pid
    with pytest.raises(LocalKafkaError, match="other settings"):
        Cluster.lay_out(folder, proxies=layout.proxies)
    with pytest.raises(LocalKafkaError, match="the number of its nodes is 1, not 3"):
        Cluster.lay_out(folder, nodes=3, proxies=layout.proxies, extra=layout.extra)
    beside = Cluster.lay_out(folder.parent / "beside", port=layout.ports[0].client)
    with pytest.raises(LocalKafkaError, match=str(layout.ports[0].client)):
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


@pytest.mark.slow
def test_three_nodes_lose_nothing_with_their_leader(three_kafkas: OwnKafka) -> None:
    """After the kill of a partition's leader, another node leads with all acknowledged records. The
    killed node comes back.
    """
    topic = three_kafkas.topic("leader dies")
    create_topic(three_kafkas.address, topic, replicas=3, settings={"min.insync.replicas": "2"})
    Writer(three_kafkas.proxied_address).append(topic, [(b"key", b"before")])
    killed = three_kafkas.kill_leader(topic)
    child = three_kafkas.leader_of(topic, other_than=killed)
    assert killed.number != child.number
    Writer(three_kafkas.proxied_address).append(topic, [(b"key", b"meanwhile")])
    assert [b"before", b"meanwhile"] == values(three_kafkas.address, topic)
    killed.start()
    assert [proxy.address for proxy in three_kafkas.proxies] == advertised(
        three_kafkas.proxied_address
    )
