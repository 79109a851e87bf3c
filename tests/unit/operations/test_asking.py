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
    Reply,
    ask,
    ask_any,
    order_any,
    redirected,
    topics_in_use,
)
from equipoise.brokers.operations.on_channel import run
from equipoise.channel.core.errors import CallerError, DeadlineExceeded, OutcomeUnknown, PeerError
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


def tell(access: Access) -> object:
    """Give the order that all tests use."""
    return run(order_any(access, "PUT", "/partitions", subject=TOPIC, body=4))


# --- questions ---


@pytest.mark.parametrize(
    "first", [silent, gone, None, answering(503), answering(504), answering(500), answering(302)]
)
def test_a_question_goes_on_to_the_next_broker(first: Script | None) -> None:
    with cluster(first, answering(200, '{"ok": 1}'), timeout_ms=2_000) as (access, brokers):
        assert {"ok": 1} == run(ask_any(access, "/stats"))
        assert ["GET /stats"] == brokers[-1].asked


def test_a_refusal_of_a_question_is_final() -> None:
    with cluster(answering(404, '{"reason": "no such topic"}'), answering(200)) as (
        access,
        brokers,
    ):
        with pytest.raises(CallerError, match="the broker b0 refuses: no such topic"):
            run(ask_any(access, "/stats"))
        assert [] == brokers[1].asked


def test_a_question_ends_with_the_last_broker_or_the_deadline() -> None:
    with cluster(silent, silent, timeout_ms=200) as (access, brokers):
        with pytest.raises(
            BrokerUnreachable,
            match=(
                r"the broker b1 cannot be asked at http://127.0.0.1:.*: it does not answer in time"
            ),
        ):
            run(ask_any(access, "/stats"))
        assert [1, 1] == [len(broker.asked) for broker in brokers]
        with pytest.raises(
            DeadlineExceeded, match="an answer of any broker did not happen within 200 ms"
        ):
            run(ask_any(access, "/stats"))
    with cluster() as (access, _), pytest.raises(PeerError, match="no broker is alive"):
        run(ask_any(access, "/stats"))


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


def test_the_deadline_and_a_limit_bound_the_redirects() -> None:
    def sends_on(connection: socket.socket, over: threading.Event) -> None:
        over.wait(0.15)
        answering(307, headers="Location: /elsewhere\r\n")(connection, over)

    with cluster(sends_on) as (access, brokers):
        (broker,) = access.view.live_brokers()
        with pytest.raises(BrokerUnreachable, match="it does not answer in time"):
            run(ask(broker, "GET", "/stats", deadline=Deadline.after(timeout_ms=250)))
        with pytest.raises(
            BrokerUnreachable,
            match=r"redirects more than 5 times, at last to http://127.0.0.1:.*/elsewhere",
        ):
            run(ask(broker, "GET", "/stats", deadline=access.deadline))
        assert ["GET /stats", "GET /elsewhere"] == brokers[0].asked[:2]


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


def test_a_redirect_never_leaves_tls() -> None:
    assert "https://b:1/there" == redirected("https://a:1/here", "https://b:1/there")
    assert "http://b:1/there" == redirected("http://a:1/here", "http://b:1/there")
    with pytest.raises(ValueError, match="redirects to http://b:1/there, without TLS"):
        redirected("https://a:1/here", "http://b:1/there")


def test_a_redirect_is_followed() -> None:
    with cluster(answering(200, "2")) as (there, _):
        (target,) = there.view.live_brokers()
        location = f"Location: {target.joined.addresses['http']}/partitions?n=1\r\n"
        with cluster(answering(307, headers=location)) as (access, _):
            (broker,) = access.view.live_brokers()
            assert Reply(status=200, text="2") == run(
                ask(broker, "GET", "/partitions", deadline=access.deadline)
            )


# --- orders ---


@pytest.mark.parametrize("first", [None, answering(503, '{"reason": "not ready"}')])
def test_an_order_goes_on_to_the_next_broker_if_the_first_did_not_begin(
    first: Script | None,
) -> None:
    with cluster(first, answering(204)) as (access, brokers):
        assert tell(access) is None
        assert ["PUT /partitions"] == brokers[-1].asked


@pytest.mark.parametrize(
    "first",
    [gone, silent, answering(504, '{"reason": "begun"}'), answering(500)],
    ids=["gone", "silent", "504", "500"],
)
def test_no_second_broker_gets_an_order_that_may_have_been_carried_out(first: Script) -> None:
    with cluster(
        first, answering(409, '{"reason": "it is partitioned already"}'), timeout_ms=600
    ) as (access, brokers):
        with pytest.raises(
            OutcomeUnknown, match="the broker b0 got the order, and then: "
        ) as caught:
            tell(access)
        assert (TOPIC, access.log.name) == (caught.value.subject, caught.value.log)
        assert (["PUT /partitions"], []) == (brokers[0].asked, brokers[1].asked)


def test_a_broker_that_has_the_order_gets_all_the_time() -> None:
    def takes_its_time(connection: socket.socket, over: threading.Event) -> None:
        over.wait(0.8)
        answering(204)(connection, over)

    # Of 2,400 ms a question would have 600 for the first of four.
    with cluster(takes_its_time, silent, silent, silent, timeout_ms=2_400) as (access, brokers):
        assert tell(access) is None
        assert [1, 0, 0, 0] == [len(broker.asked) for broker in brokers]


def test_an_order_that_no_broker_takes_reports_the_last_problem() -> None:
    with (
        cluster(None, answering(503, '{"reason": "not ready"}')) as (access, _),
        pytest.raises(BrokerUnreachable, match=r"b1 .*not ready"),
    ):
        tell(access)
    with (
        cluster(answering(409, '{"reason": "there are 8 already"}')) as (access, _),
        pytest.raises(CallerError, match="8 already"),
    ):
        tell(access)
    with cluster() as (access, _), pytest.raises(PeerError, match="no broker is alive"):
        tell(access)
