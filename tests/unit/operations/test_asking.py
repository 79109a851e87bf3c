"""Questions and orders to brokers over HTTP: one answer is enough, no order is given twice, and the
deadline bounds everything.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from equipoise.brokers.errors import BrokerUnreachable
from equipoise.brokers.operations.access import Access
from equipoise.brokers.operations.asking import (
    ask,
    order_to_drain,
    topics_in_use,
)
from equipoise.brokers.operations.on_channel import run
from equipoise.channel.core.errors import CallerError
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.system.clocks import Deadline
from tests.channels.compacting import reader_at_end
from tests.channels.folding import Channel, joined
from tests.unit.cli.scripted_broker import Broker, Script, answering, closed_port

PATIENCE_MS = 10_000
TOPIC = "non-persistent://shop/orders/new"

NO_OTHERS: Mapping[str, str] = {}

numbers = itertools.count()


def silent(_: socket.socket, over: threading.Event) -> None:
    """A broker whose process is stopped: its kernel accepts the connection, and no answer comes."""
    over.wait(PATIENCE_MS / 1_000)


def gone(connection: socket.socket, _: threading.Event) -> None:
    """A broker that dies once it has the order."""
    connection.close()


def trickling(head: bytes) -> Script:
    """A broker whose answer comes to an end, if anybody waits for it: 100 bytes after `head`, one
    each 20 ms.
    """

    def script(connection: socket.socket, over: threading.Event) -> None:
        try:
            connection.sendall(head)
            for _ in range(100):
                if over.wait(0.02):
                    return
                connection.sendall(b"x")
            connection.sendall(b"\r\n\r\n")
        except OSError:  # Whoever asked has gone.
            return

    return script


@contextmanager
def cluster(
    *scripts: Script | None, timeout_ms: int = PATIENCE_MS, others: Mapping[str, str] = NO_OTHERS
) -> Iterator[tuple[Access, Sequence[Broker]]]:
    """An access to a log with these brokers on it, the leader first; None is one whose port is
    closed. `others`: addresses besides HTTP.
    """
    channel = Channel()
    channel.genesis()
    with ExitStack() as ending:
        brokers = []
        for number, script in enumerate(scripts):
            url = f"http://127.0.0.1:{closed_port()}"
            if script is not None:
                broker = ending.enter_context(Broker(script))
                brokers.append(broker)
                url = broker.url
            record = replace(
                joined(f"b{number}", channel.view, instance_id=f"instance_id {number}"),
                addresses={"http": url, **others},
            )
            channel.accept(record)
        log = MemoryLog(name=f"memory:asking-{next(numbers)}")
        log.append([data for _, data in channel.entries], timeout_ms=0)
        reader = reader_at_end(log)
        yield (
            Access(
                log=log,
                reader=reader,
                publisher="admin:erin",
                deadline=Deadline.after(timeout_ms=timeout_ms),
            ),
            brokers,
        )


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\nContent-Length: 104\r\n\r\n"],
    ids=["head", "body"],
)
def test_the_deadline_bounds_the_whole_answer(head: bytes) -> None:
    """Although each byte of it is in time."""
    with cluster(trickling(head)) as (access, _):
        (broker,) = access.view.live_brokers()
        with pytest.raises(BrokerUnreachable, match="it does not answer in time"):
            run(ask(broker, "GET", "/stats", deadline=Deadline.after(timeout_ms=200)))


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ({"pulsar": "pulsar://b:6650"}, [TOPIC]),
        ({"pulsar+ssl": "pulsar+ssl://b:6651"}, [TOPIC]),
        (NO_OTHERS, []),
    ],
)
def test_brokers_that_serve_pulsar_are_asked_for_topics_in_use(
    others: Mapping[str, str], found: Sequence[str]
) -> None:
    """With TLS or without. Others have no topics."""
    with cluster(answering(200, json.dumps({"topics": [TOPIC]})), others=others) as (access, _):
        assert found == run(topics_in_use(access, "shop/orders"))


def test_a_refusal_is_given_as_it_is() -> None:
    refusal = answering(403, '{"reason": "it lacks a right"}')
    with (
        cluster(refusal, others={"pulsar": "pulsar://b:6650"}) as (access, _),
        pytest.raises(CallerError, match="the broker b0 refuses: it lacks a right"),
    ):
        run(topics_in_use(access, "shop/orders"))


@pytest.mark.parametrize(
    ("script", "in_doubt", "problem"),
    [
        (None, False, "Connection refused"),
        (gone, True, "closed connection without response"),
        (silent, True, "it does not answer in time"),
        (answering(307, headers="Location: http://b:1/there\r\n"), False, "it answers 307"),
    ],
)
def test_an_order_is_in_doubt_once_it_is_sent(
    script: Script | None, problem: str, *, in_doubt: bool
) -> None:
    with cluster(script) as (access, _):
        (broker,) = access.view.live_brokers()
        with pytest.raises(BrokerUnreachable, match=problem) as caught:
            run(order_to_drain(broker, Deadline.after(timeout_ms=300)))
        assert in_doubt == caught.value.in_doubt
