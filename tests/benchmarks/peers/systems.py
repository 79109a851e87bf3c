"""The systems of the benchmark of peers: each at its defaults, and at its best settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

LOG_TOPIC: Final = "equipoise"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """An adapter with its settings, and its server with its own.

    * `package`: whose version the results name.
    * `topic`: the topic of Kafka whose leading node decides, if there is one.
    """

    title: str
    adapter: str
    server: str
    package: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    topic: str = ""

    @property
    def events(self) -> Sequence[str]:
        """What can happen to it, in this order."""
        return ALL_EVENTS if self.server == "kafka" else _OF_PROGRAMS


NODE: Final = ("node", "node_kill")
"""The death of a Kafka node, alone and with that of a program. Each needs three nodes, and so
happens to programs of its own."""

_OF_PROGRAMS: Final = ("join", "term", "kill", "stop10", "stop20", "rolling", "hot")
ALL_EVENTS: Final = (*_OF_PROGRAMS, *NODE)


# What `group.protocol=consumer` has of the session is set in the server.
_FAST_SERVER: Final = {
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
}


def _group(
    title: str,
    client: Mapping[str, object],
    *,
    static: bool = False,
    properties: Mapping[str, str] | None = None,
) -> System:
    return System(
        title=title,
        adapter="kafka_group",
        server="kafka",
        package="confluent-kafka",
        topic="__consumer_offsets",
        settings={"client": client, "static": static},
        options={"properties": properties or {}},
    )


_NEXT: Final = {"group.protocol": "consumer"}
_FAST: Final = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
_COOPERATIVE: Final = {**_FAST, "partition.assignment.strategy": "cooperative-sticky"}

_ON_KAFKA: Final = System(
    title="Equipoise, Kafka",
    adapter="equipoise_service",
    server="kafka",
    package="equipoise",
    topic=LOG_TOPIC,
)

SYSTEMS: Final[Mapping[str, System]] = {
    "redis": System(
        title="Redis lock, 10 s",
        adapter="redis_locks",
        server="redis",
        package="redis",
        settings={"lease_s": 10.0},
    ),
    "redis_3s": System(
        title="Redis lock, 3 s",
        adapter="redis_locks",
        server="redis",
        package="redis",
        settings={"lease_s": 3.0},
    ),
    "zookeeper": System(
        title="ZooKeeper lock, 10 s",
        adapter="zookeeper_locks",
        server="zookeeper",
        package="kazoo",
        settings={"session_s": 10.0, "tokens": False},
        options={"tick_ms": 2_000},
    ),
    "zookeeper_3s": System(
        title="ZooKeeper lock, 3 s, tokens",
        adapter="zookeeper_locks",
        server="zookeeper",
        package="kazoo",
        settings={"session_s": 3.0, "tokens": True},
        options={"tick_ms": 500},
    ),
    "partitioner": System(
        title="SetPartitioner, 10 s",
        adapter="zookeeper_partitioner",
        server="zookeeper",
        package="kazoo",
        settings={"session_s": 10.0, "partitioner": {}},
        options={"tick_ms": 2_000},
    ),
    "partitioner_3s": System(
        title="SetPartitioner, 3 s",
        adapter="zookeeper_partitioner",
        server="zookeeper",
        package="kazoo",
        settings={
            "session_s": 3.0,
            "partitioner": {"time_boundary": 1.0, "max_reaction_time": 0.5},
        },
        options={"tick_ms": 500},
    ),
    "group": _group("Kafka group, 45 s", {}),
    "group_6s": _group("Kafka group, cooperative, 6 s", _COOPERATIVE),
    "group_static": _group("Kafka group, static, 6 s", _COOPERATIVE, static=True),
    "group_next": _group("Kafka group, new protocol, 45 s", _NEXT),
    "group_next_6s": _group("Kafka group, new protocol, 6 s", _NEXT, properties=_FAST_SERVER),
    "equipoise": System(
        title="Equipoise, SQLite",
        adapter="equipoise_service",
        server="sqlite",
        package="equipoise",
    ),
    "equipoise_kafka": _ON_KAFKA,
    # As if each program had a machine: none sees the process of another end.
    "equipoise_kafka_apart": replace(
        _ON_KAFKA,
        title="Equipoise, Kafka, machines apart",
        settings={"broker": {"prove_deaths": False}},
    ),
}


def adapter_lines(adapter: str) -> int:
    """Return the lines of an adapter that are neither blank nor text."""
    text = (Path(__file__).parent / "adapters" / f"{adapter}.py").read_text()
    return sum(
        bool(line.strip()) and not line.strip().startswith(("#", '"""'))
        for line in text.splitlines()
    )
