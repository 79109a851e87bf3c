"""The fixtures of tests that need a real Kafka; tests/conftest.py makes them known.

* `kafka`: one for the whole session, shared: fresh topics by `kafka.topic("what for")`, and no harm
  to it.
* `own_kafka`: one node of its own for a module, which a test may stop, kill, restart, and cut off
  by its proxy.
* `three_kafkas`: three nodes likewise, which a test may also cut off from one another.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from compose.local_kafka.cluster import Cluster
from compose.local_kafka.jars import NotInstalled
from compose.local_kafka.node import Node
from tests.kafka.finding import EAGER_CLEANER, GIVEN, local_kafka, some_kafka
from tests.kafka.links import Links
from tests.kafka.proxy import TcpProxy
from tests.kafka.topics import delete_topics, leader_of
from tests.pulsar.programs import is_required

# Kafka waits for so long before it believes that a node which was killed is gone, and before it
# takes that node back. Its default of 9 s would be most of what such a test takes; a pause of 5 s
# is longer than any of a busy machine.
_SESSION: Final = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "1000"}
_NAME_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """A Kafka that all tests share."""

    address: str
    topics: list[str] = field(default_factory=list)

    def topic(self, purpose: str) -> str:
        """A name for a topic that no other test has; the topic is not made."""
        name = fresh_topic(purpose)
        self.topics.append(name)
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKafka:
    """A Kafka that a test may do anything to; each node has a proxy before it, through which
    clients come that begin there.
    """

    cluster: Cluster
    proxies: Sequence[TcpProxy]
    links: Links

    @property
    def address(self) -> str:
        """Past the proxies."""
        return self.cluster.address

    @property
    def proxied_address(self) -> str:
        """Through the proxies."""
        return ",".join(proxy.address for proxy in self.proxies)

    @property
    def proxy(self) -> TcpProxy:
        """The proxy of the first node, which is that of the only one."""
        return self.proxies[0]

    def topic(self, purpose: str) -> str:
        """A name for a topic that no other test has; the topic is not made."""
        return fresh_topic(purpose)

    def leader_of(self, topic: str, *, other_than: Node | None = None) -> Node:
        """The node that leads the only partition of a topic, once it is another than the one named.

        A node that was killed goes on leading, as Kafka knows it, until its session is over. One
        that is cut off goes on forever, as that node knows it: so it is not asked. Raises
        `KafkaFailedError`.
        """
        former = other_than.number if other_than else 0
        asked = [
            address
            for number, address in enumerate(self.address.split(","), start=1)
            if number != former
        ]
        return self.cluster.node(
            leader_of(",".join(asked or [self.address]), topic, other_than=former)
        )

    def kill_leader(self, topic: str) -> Node:
        """Kill that node (`kill -9`), and say which it was; its `start` brings it back."""
        node = self.leader_of(topic)
        node.kill()
        return node

    def mend(self) -> None:
        """Have all run, and be reached, as in the beginning."""
        self.links.rejoin()
        for proxy in self.proxies:
            proxy.heal()
        for node in self.cluster.nodes:
            node.resume()
        self.cluster.start()


def fresh_topic(purpose: str) -> str:
    """A name that Kafka takes for a topic, and that nobody has had before."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", purpose).strip("-")[:_NAME_CHARACTERS]
    return f"{words}-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka for all tests of this session."""
    with or_skipped(), some_kafka(tmp_path_factory.mktemp("kafka")) as address:
        shared = Kafka(address=address)
        yield shared
        if os.environ.get(GIVEN):  # Any other one goes away as a whole.
            delete_topics(
                address,
                [
                    name
                    for topic in shared.topics
                    for name in (topic, f"{topic}-snapshot", f"{topic}-history")
                ],
            )


@pytest.fixture(scope="module")
def own_kafka_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKafka]:
    """One node for a module; tests ask for `own_kafka`."""
    with _own(tmp_path_factory.mktemp("own-kafka"), nodes=1) as own:
        yield own


@pytest.fixture(scope="module")
def three_kafkas_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKafka]:
    """Three nodes for a module; tests ask for `three_kafkas`."""
    with _own(tmp_path_factory.mktemp("three-kafkas"), nodes=3) as own:
        yield own


@pytest.fixture
def own_kafka(own_kafka_of_module: OwnKafka) -> OwnKafka:
    """One node for this test to do anything to, whole at its beginning."""
    own_kafka_of_module.mend()
    return own_kafka_of_module


@pytest.fixture
def three_kafkas(three_kafkas_of_module: OwnKafka) -> OwnKafka:
    """Three nodes for this test to do anything to, whole at its beginning."""
    three_kafkas_of_module.mend()
    return three_kafkas_of_module


@contextmanager
def _own(folder: Path, *, nodes: int) -> Iterator[OwnKafka]:
    with or_skipped(), ExitStack() as running:
        proxies = [running.enter_context(TcpProxy()) for _ in range(nodes)]
        links = running.enter_context(Links())
        addresses = [proxy.address for proxy in proxies]
        extra = {**EAGER_CLEANER, **_SESSION}
        cluster = running.enter_context(
            local_kafka(folder, nodes=nodes, proxies=addresses, extra=extra, prepare=links.lay)
        )
        for proxy, target in zip(proxies, cluster.proxied_addresses, strict=True):
            proxy.forward_to(target)
        yield OwnKafka(cluster=cluster, proxies=proxies, links=links)


@contextmanager
def or_skipped() -> Iterator[None]:
    """Skip the tests that need what the body needs, aloud, if this machine lacks it; under CI they
    fail.
    """
    try:
        yield
    except NotInstalled as error:
        text = f"no Kafka: none is given in {GIVEN}, no container engine answers, and {error}"
        if is_required():
            pytest.fail(text)
        pytest.skip(text)
