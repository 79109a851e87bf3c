"""A Kafka in a container, where an engine for containers runs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from compose.local_kafka.jars import kafka_version
from equipoise.channel.system.free_ports import free_ports

_PULL_AND_START_S: Final = 300  # An image of 400 MB over a slow line, or a start on a busy machine.


def engine_answers() -> bool:
    """Whether there is an engine that would run a container."""
    # It leaves its socket open where nobody answers,
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        try:
            DockerClient()
        except DockerException:
            answers = False
        else:
            answers = True
        gc.collect()  # which is told of when that is found.
    return answers


@contextmanager
def started(extra: Mapping[str, str]) -> Iterator[str]:
    """The address of a Kafka in a container, which is removed in the end; `extra` are settings of
    it.
    """
    container = DockerContainer(f"apache/kafka:{kafka_version()}")
    # Kafka tells clients where to connect, so its port has to be known before it starts.
    (port,) = free_ports(1)
    address = f"{container.get_container_host_ip()}:{port}"
    container.with_bind_ports(9092, port)
    for name, value in (*image_settings(address).items(), *extra.items()):
        container.with_env(f"KAFKA_{name.upper().replace('.', '_')}", value)
    container.waiting_for(
        LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(_PULL_AND_START_S)
    )
    with container:
        yield address


def image_settings(address: str) -> Mapping[str, str]:
    """All that the image has to be told once it is told anything: it then forgets its defaults."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9094",
        "listeners": "CLIENT://:9092,INTERNAL://:9093,CONTROLLER://:9094",
        "advertised.listeners": f"CLIENT://{address},INTERNAL://localhost:9093",
        "listener.security.protocol.map": (
            "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
