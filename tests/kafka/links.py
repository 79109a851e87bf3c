"""The ways between the nodes of a local Kafka, each through proxies, so that a test can cut nodes
off from one another.

Kafka tells its nodes one address for each node. So each address has a name, and Java resolves it
for each node to another address of the loopback interface, where a proxy listens that only this
node uses.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from types import TracebackType
from typing import Final, Self

from compose.local_kafka.cluster import Cluster
from compose.local_kafka.node import HOST, Node, server_properties
from equipoise.channel.system.free_ports import free_ports
from tests.kafka.proxy import TcpProxy

_PEERS: Final = "PEERS"
"""The listener for other nodes."""


def _name(number: int) -> str:
    return f"node-{number}.invalid"


def _seen_from(number: int, other: int) -> str:
    """The address at which node `number` reaches another one."""
    return f"127.0.{number}.{other}"


@dataclass(slots=True)
class Links:
    """The proxies between nodes, from entering this context to leaving it."""

    _proxies: dict[tuple[int, int], list[TcpProxy]] = field(default_factory=dict)
    """By the number of the node that connects, and of the one that it reaches."""
    _running: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def lay(self, cluster: Cluster) -> None:
        """Lead all ways between the nodes of a cluster through proxies, before the nodes start."""
        layout, numbers = cluster.layout, [node.number for node in cluster.nodes]
        peers = free_ports(len(numbers))
        for number, other in permutations(numbers, 2):
            ports = (peers[other - 1], layout.ports[other - 1].controller)
            links = [
                TcpProxy(f"{HOST}:{port}", at=f"{_seen_from(number, other)}:{port}")
                for port in ports
            ]
            self._proxies[number, other] = [self._running.enter_context(link) for link in links]
        addresses = [
            f"{_name(number)}:{ports.controller}"
            for number, ports in zip(numbers, layout.ports, strict=True)
        ]
        voters = ",".join(
            f"{number}@{address}" for number, address in zip(numbers, addresses, strict=True)
        )
        for node, address, port in zip(cluster.nodes, addresses, peers, strict=True):
            usual = server_properties(
                node.number,
                ports=layout.ports,
                proxies=layout.proxies,
                data=node.data,
                extra=layout.extra,
            )
            own = {
                "controller.quorum.voters": voters,
                "listeners": f"{usual['listeners']},{_PEERS}://{HOST}:{port}",
                "advertised.listeners": (
                    f"{usual['advertised.listeners']},{_PEERS}://{_name(node.number)}:{port},CONTROLLER://{address}"
                ),
                "listener.security.protocol.map": (
                    f"{usual['listener.security.protocol.map']},{_PEERS}:PLAINTEXT"
                ),
                "inter.broker.listener.name": _PEERS,
            }
            node.configure({**usual, **own})
            others = {_name(other): _seen_from(node.number, other) for other in numbers}
            node.resolve(
                {**others, _name(node.number): HOST, "localhost": HOST, socket.gethostname(): HOST}
            )

    def isolate(self, node: Node) -> None:
        """Cut a node off from the other nodes, until `rejoin`. Clients still reach it."""
        for pair, proxies in self._proxies.items():
            if node.number in pair:
                for proxy in proxies:
                    proxy.black_hole()

    def rejoin(self) -> None:
        """Connect all nodes again."""
        for proxies in self._proxies.values():
            for proxy in proxies:
                proxy.reset()  # What the black holes hold is out of date.
                proxy.heal()
