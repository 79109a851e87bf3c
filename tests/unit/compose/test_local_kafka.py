"""Test the local Kafka without processes: settings of nodes, layouts, and the arguments of its
command line.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compose.local_kafka.__main__ import main
from compose.local_kafka.cluster import Cluster
from compose.local_kafka.node import Ports, format_properties, handle, server_properties
from equipoise.channel.core.errors import OperatorError

PORTS = tuple(
    Ports(client=9092 + node, controller=9095 + node, proxied=9098 + node) for node in range(3)
)


def test_a_node_behind_a_proxy_advertises_the_proxy() -> None:
    """It listens on the port to which the proxy forwards, and advertises the proxy's address
    there.
    """
    properties = server_properties(
        2, ports=PORTS, proxies=("h:1", "h:2", "h:3"), data=Path("data"), extra={}
    )
    assert (
        "CLIENT://127.0.0.1:9093,CONTROLLER://127.0.0.1:9096,PROXIED://127.0.0.1:9099"
        == properties["listeners"]
    )
    assert "CLIENT://127.0.0.1:9093,PROXIED://h:2" == properties["advertised.listeners"]
    assert "PROXIED:PLAINTEXT" in properties["listener.security.protocol.map"].split(",")


def test_extra_settings_override_ours() -> None:
    """Unknown settings are added."""
    properties = server_properties(
        1,
        ports=PORTS[:1],
        proxies=(),
        data=Path("data"),
        extra={"node.id": "7", "log.segment.bytes": "9"},
    )
    assert ("7", "9") == (properties["node.id"], properties["log.segment.bytes"])
    assert "a=1\nb=2\n" == format_properties({"a": "1", "b": "2"})


def test_a_stopped_cluster_may_be_laid_out_anew_but_not_grow(tmp_path: Path) -> None:
    """While no node runs, ports and settings may change. The cluster's id and the number of nodes
    may not.
    """
    first = Cluster.lay_out(tmp_path, port=20_000)
    second = Cluster.lay_out(tmp_path, port=20_100, proxies=("h:1",), extra={"a": "b"}, heap_mb=300)
    assert ("127.0.0.1:20000", "127.0.0.1:20100") == (first.address, second.address)
    assert second.layout == Cluster.laid_out(tmp_path).layout
    assert "a=b" in (second.node(1).folder / "server.properties").read_text().splitlines()
    assert "127.0.0.1:20100" == Cluster.lay_out(tmp_path).address
    assert first.layout.cluster_id == second.layout.cluster_id
    with pytest.raises(OperatorError, match="the number of its nodes is 1, not 3"):
        Cluster.lay_out(tmp_path, nodes=3)


def test_ports_of_three_nodes_do_not_overlap(tmp_path: Path) -> None:
    """Ports begin at a given one, or are any free ones. Each listener of each node has its own."""
    free, given = (
        Cluster.lay_out(tmp_path / str(port), nodes=3, port=port).layout.ports for port in (0, 9092)
    )
    for ports in (free, given):
        assert 9 == len(
            {each for one in ports for each in (one.client, one.controller, one.proxied)}
        )
    assert [9092, 9093, 9094] == [one.client for one in given]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"ports": [{}], "proxies": []}', '{"ports": [], "proxies": [], "more": 1}'],
)
def test_a_layout_that_cannot_be_read_is_refused(text: str, tmp_path: Path) -> None:
    """The error names the folder."""
    (tmp_path / "layout.json").write_text(text)
    with pytest.raises(OperatorError, match="cannot be read"):
        Cluster.laid_out(tmp_path)


@pytest.mark.parametrize("port", ["-1", "65528", "many"])
def test_an_invalid_port_is_refused(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port must leave room for the following ports of the cluster."""
    with pytest.raises(SystemExit):
        main(["start", "--folder", str(tmp_path), "--port", port])
    assert "--port" in capsys.readouterr().err


def test_the_id_of_a_thread_is_no_process(tmp_path: Path) -> None:
    """A killed process leaves its id in the file. A thread of another program may have that id
    now.
    """
    with ThreadPoolExecutor(1) as pool:
        pid_file = tmp_path / "pid"
        pid_file.write_text(str(pool.submit(threading.get_native_id).result()))
        with handle(pid_file, mark="") as held:
            assert held is None
