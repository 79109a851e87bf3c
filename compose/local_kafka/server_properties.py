"""Compute the settings of a node from the ports of all nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of a node: for clients and other nodes, for the controllers' quorum, and for
    clients behind a proxy.
    """

    client: int
    controller: int
    proxied: int


def server_properties(
    number: int,
    *,
    ports: Sequence[Ports],
    proxies: Sequence[str],
    data: Path,
    extra: Mapping[str, str],
) -> Mapping[str, str]:
    """Return the settings of node `number` (from 1) of the nodes with `ports`. It keeps its data in
    the folder `data`.

    Kafka reports to clients where to connect. Clients behind a proxy need a listener that
    advertises the proxy: `proxies` holds an address (`host:port`) for each node, or nothing.
    `extra` overrides all other settings.
    """
    own, nodes = ports[number - 1], len(ports)
    listeners = {"CLIENT": own.client, "CONTROLLER": own.controller}
    advertised = {"CLIENT": f"{HOST}:{own.client}"}
    if proxies:
        listeners["PROXIED"] = own.proxied
        advertised["PROXIED"] = proxies[number - 1]
    replicas, in_sync = str(nodes), str(min(nodes, 2))
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(
            f"{node}@{HOST}:{one.controller}" for node, one in enumerate(ports, start=1)
        ),
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
        "advertised.listeners": ",".join(
            f"{name}://{address}" for name, address in advertised.items()
        ),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        # Otherwise a mistyped name would create a topic with wrong settings.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        # Kafka's own topics: as safe as the nodes allow, and no larger than one machine needs.
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        # The default of 128 MiB would be half of the heap. 16 MiB hold 600,000 keys of 24 bytes,
        # nine tenths full.
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        **extra,
    }


def format_properties(properties: Mapping[str, str]) -> str:
    """Format settings as a file of Java properties."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())
