"""Tests of the service in equipoise/examples/sessions.py: its sessions move, and no message is lost
or doubled.
"""

from __future__ import annotations

import asyncio

from equipoise import Cluster, Peer
from equipoise.errors import OwnershipLost
from equipoise.examples.sessions import Session, Sessions
from equipoise.pytest import MakeCluster, MovesAtEveryAwait

NAMESPACE = "web/chats"


async def say_all(cluster: Cluster[Sessions], client: str, texts: list[str]) -> Session:
    """Say texts as a client does: follow the session, and say again what it has not got back.
    Return the session.
    """
    broker = "broker-1"
    while True:
        served = await cluster.host(broker).route(NAMESPACE, "chat", timeout_ms=5_000)
        if isinstance(served, Peer):
            broker = served.broker
            continue
        sessions = cluster.service(broker)
        try:
            session = sessions.session(served, "chat")
            for number in range(session.numbers.get(client, 0) + 1, len(texts) + 1):
                await asyncio.sleep(0)  # It stands for the network.
                latest = await cluster.host(broker).route(NAMESPACE, "chat", timeout_ms=5_000)
                if isinstance(latest, Peer) or session.moved is not None:
                    break
                sessions.say(latest, "chat", (client, number, texts[number - 1]))
            else:
                return session
        except OwnershipLost:
            continue


def test_a_session_moves_with_its_bundle(equipoise_cluster: MakeCluster) -> None:
    cluster = equipoise_cluster(Sessions, brokers=2, serves_peers=True)
    cluster.create(NAMESPACE, bundles=4)
    bundle = cluster.bundle(NAMESPACE, "chat")
    cluster.give(bundle, "broker-1")
    before = cluster.call(say_all(cluster, "ann", ["one"]))
    cluster.give(bundle, "broker-2")
    after = cluster.call(say_all(cluster, "ann", ["one", "two"]))
    assert [("ann", 1, "one"), ("ann", 2, "two")] == after.messages
    assert before.moved is not None
    assert not cluster.service("broker-1").sessions


def test_no_message_is_lost_or_doubled(equipoise_moves: MovesAtEveryAwait) -> None:
    for cluster in equipoise_moves(Sessions, NAMESPACE, "chat", serves_peers=True):
        cluster.create(NAMESPACE, bundles=1)
        texts = ["one", "two", "three"]
        session = cluster.call(say_all(cluster, "ann", texts))
        assert [
            ("ann", number, text) for number, text in enumerate(texts, start=1)
        ] == session.messages
