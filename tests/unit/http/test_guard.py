"""Requests that no handler sees, because a foreign web page may have sent them."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.http.guard import Guard, RequestHead
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.embedding.by_key import AsgiApp
from equipoise.brokers.runtime.embedding.embedded import Worker
from tests.unit.http.cluster import Answer, Broker, Gate, with_broker
from tests.unit.security.signing import SETTINGS

ME = "127.0.0.1:8080"
ORDER = "/admin/v2/brokers/drain"


def config(**settings: object) -> WorkerConfig:
    """The settings of a broker on loopback, with these changes."""
    return WorkerConfig.model_validate({"log_url": "memory:a", "data_dir": ".", **settings})


TAKEN = {
    "a program": RequestHead(method="POST", path=ORDER, hosts=(ME,)),
    "HTTP/1.0": RequestHead(method="GET", path="/ready"),
    "another loopback address": RequestHead(method="GET", path="/ready", hosts=("127.0.0.2",)),
    "IPv6": RequestHead(method="GET", path="/ready", hosts=("[::1]:8080",)),
    "localhost": RequestHead(method="POST", path=ORDER, hosts=("LocalHost.:8080",)),
    "the advertised host": RequestHead(method="POST", path=ORDER, hosts=("broker-1.example:8080",)),
    "a listed name": RequestHead(method="POST", path=ORDER, hosts=("proxy.example",)),
    "the address that was connected to": RequestHead(
        method="GET", path="/ready", hosts=("10.0.0.7:8080",), arrived_at="10.0.0.7"
    ),
    "IPv4 at a socket of IPv6": RequestHead(
        method="GET", path="/ready", hosts=("10.0.0.7:8080",), arrived_at="::ffff:10.0.0.7"
    ),
    "an address in another form": RequestHead(
        method="GET", path="/ready", hosts=("[2001:db8:0::1]:8080",)
    ),
    "the address for peers": RequestHead(
        method="GET", path="/v1/handover/a/b/c", hosts=("peer.example:81",)
    ),
    "a page of its own": RequestHead(
        method="POST", path=ORDER, hosts=(ME,), origin=f"http://{ME}", site="same-origin"
    ),
    "a page of its own behind TLS": RequestHead(
        method="POST", path=ORDER, hosts=("proxy.example",), origin="https://proxy.example"
    ),
    "a person": RequestHead(method="POST", path=ORDER, hosts=(ME,), site="none"),
    "a link on a foreign page": RequestHead(
        method="GET", path="/ready", hosts=(ME,), site="cross-site"
    ),
    "a reading page": RequestHead(
        method="GET", path="/ready", hosts=(ME,), origin="http://evil.example"
    ),
    "a program that opens a WebSocket": RequestHead(
        method="GET", path="/chat", hosts=(ME,), opens_socket=True
    ),
    "a WebSocket of a page of its own": RequestHead(
        method="GET", path="/chat", hosts=(ME,), origin=f"http://{ME}", opens_socket=True
    ),
    "JSON of its own kind": RequestHead(
        method="PUT",
        path="/admin/v2/non-persistent/a/b/c/partitions",
        hosts=(ME,),
        has_body=True,
        content_type="application/vnd.partitioned-topic-metadata+json",
    ),
    "no body, of any type": RequestHead(
        method="POST", path=ORDER, hosts=(ME,), content_type="application/octet-stream"
    ),
    "a body that is not encoded": RequestHead(
        method="POST", path=ORDER, hosts=(ME,), has_body=True, encoding="identity"
    ),
    "a body for a service": RequestHead(
        method="POST", path="/counter/a/b/c", hosts=(ME,), has_body=True, content_type="text/plain"
    ),
}

REFUSED = {
    "a name that was rebound": (
        RequestHead(method="GET", path="/v1/brokers", hosts=("evil.example:8080",)),
        421,
        "http_hosts",
    ),
    "a foreign address": (
        RequestHead(method="GET", path="/v1/brokers", hosts=("10.0.0.8",), arrived_at="10.0.0.7"),
        421,
        "'10.0.0.8'",
    ),
    "an empty name": (RequestHead(method="GET", path="/v1/brokers", hosts=("",)), 421, "''"),
    "a second name": (
        RequestHead(method="GET", path="/v1/brokers", hosts=(ME, "evil.example")),
        421,
        "'evil.example'",
    ),
    "a name that begins alike": (
        RequestHead(method="GET", path="/", hosts=("127.0.0.1.evil.example",)),
        421,
        "evil.example",
    ),
    "a foreign page": (
        RequestHead(method="POST", path=ORDER, hosts=(ME,), origin="http://evil.example"),
        403,
        "'http://evil.example'",
    ),
    "a page without an origin": (
        RequestHead(method="POST", path=ORDER, hosts=(ME,), origin="null"),
        403,
        "'null'",
    ),
    "a page of another port": (
        RequestHead(method="POST", path=ORDER, hosts=(ME,), origin="http://127.0.0.1:3000"),
        403,
        ":3000",
    ),
    "a page of a damaged origin": (
        RequestHead(method="POST", path=ORDER, hosts=(ME,), origin="http://[::1"),
        403,
        "[::1",
    ),
    "another site": (
        RequestHead(method="POST", path=ORDER, hosts=(ME,), site="cross-site"),
        403,
        "Sec-Fetch-Site: cross-site",
    ),
    "the same site": (
        RequestHead(method="DELETE", path=ORDER, hosts=(ME,), site="same-site"),
        403,
        "Sec-Fetch-Site: same-site",
    ),
    "a foreign page, to end the broker": (
        RequestHead(
            method="POST",
            path="/admin/v2/brokers/shutdown",
            hosts=(ME,),
            origin="http://evil.example",
        ),
        403,
        "'http://evil.example'",
    ),
    "a WebSocket of a foreign page": (
        RequestHead(
            method="GET", path="/chat", hosts=(ME,), origin="http://evil.example", opens_socket=True
        ),
        403,
        "'http://evil.example'",
    ),
    "a page for a service": (
        RequestHead(
            method="POST", path="/counter/a/b/c", hosts=(ME,), origin="http://evil.example"
        ),
        403,
        "Origin",
    ),
    "text": (
        RequestHead(
            method="POST", path=ORDER, hosts=(ME,), has_body=True, content_type="text/plain"
        ),
        415,
        "Content-Type: application/json",
    ),
    "a form": (
        RequestHead(
            method="PUT",
            path=ORDER,
            hosts=(ME,),
            has_body=True,
            content_type="application/x-www-form-urlencoded",
        ),
        415,
        "application/x-www-form-urlencoded",
    ),
    "a body of no type": (
        RequestHead(method="PUT", path=ORDER, hosts=(ME,), has_body=True, content_type=""),
        415,
        "only JSON",
    ),
}


def guard() -> Guard:
    """The guard of a broker that has a name and is behind a proxy."""
    return Guard(
        config(advertised_host="broker-1.example", http_hosts="proxy.example,2001:DB8::1"),
        ("http://peer.example:81",),
    )


@pytest.mark.parametrize("case", TAKEN)
def test_requests_of_programs_and_of_own_pages_are_accepted(case: str) -> None:
    assert guard().refusal(TAKEN[case]) is None


@pytest.mark.parametrize("case", REFUSED)
def test_requests_that_a_foreign_page_could_send_are_refused(case: str) -> None:
    head, status, told = REFUSED[case]
    refusal = guard().refusal(head)
    assert refusal is not None
    assert status == refusal.status
    assert told in refusal.reason


HERE = ("127.0.0.1", 8000)
AWAY = ("10.0.0.7", 8000)
Address = tuple[str, int | None] | None

ARRIVALS: dict[str, tuple[Address, Address, dict[str, str], int]] = {
    "here": (HERE, ("::1", 1), {}, 204),
    "at a socket of IPv6": (("::ffff:127.0.0.1", 8000), HERE, {}, 204),
    "by a proxy for this machine": (HERE, HERE, {"X-Forwarded-For": "127.0.0.1, ::1"}, 204),
    "at an address of the network": (AWAY, ("10.0.0.9", 1), {}, 403),
    "at an address of the network, from this machine": (AWAY, AWAY, {}, 403),
    "from another machine, as the server has learnt from a proxy": (HERE, ("10.0.0.9", 1), {}, 403),
    "from another machine, as only a proxy says": (
        HERE,
        HERE,
        {"X-Forwarded-For": "10.0.0.9"},
        403,
    ),
    "from two, as proxies say": (HERE, HERE, {"X-Forwarded-For": "10.0.0.9, 127.0.0.1"}, 403),
    "by a proxy in the words of RFC 7239": (HERE, HERE, {"Forwarded": "for=10.0.0.9"}, 403),
    "at a Unix socket": (("/run/program", None), None, {}, 403),
    "nobody knows where": (None, HERE, {}, 403),
    "nobody knows from where": (HERE, None, {}, 403),
    "at a name, which a caller may have written": (("localhost", 8000), HERE, {}, 403),
}


async def asked(app: AsgiApp, server: Address, client: Address, headers: dict[str, str]) -> int:
    """Create a tenant, as a server calls an ASGI program. Return the status."""
    sent = [{"type": "http.request", "body": b"{}"}]
    answers: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if not sent:
            await asyncio.Event().wait()
        return sent.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        answers.append(message)

    given = {"Host": "127.0.0.1:8000", "Content-Type": "application/json", **headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/admin/v2/tenants/new",
        "query_string": b"",
        "headers": encoded,
    }
    await app({**scope, "server": server, "client": client}, receive, send)
    return int(answers[0]["status"])


@pytest.mark.integration
@pytest.mark.parametrize(
    "settings", [{}, {"insecure": True}, SETTINGS], ids=["open", "insecure", "authenticated"]
)
async def test_an_open_mount_takes_requests_of_this_machine_only(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Wherever it says that it listens: a server may listen elsewhere. `insecure` takes all, and
    authentication asks them who they are.
    """
    worker = Worker(
        "memory:arrivals",
        Gate(),
        data_dir=tmp_path,
        broker_id="me",
        advertised_addresses={"http": "http://127.0.0.1"},
        **settings,
    )
    app, others = worker.asgi(), {"insecure": 204, "authentication": 401}
    other = next((status for setting, status in others.items() if setting in settings), None)
    async with worker:
        found = {
            name: await asked(app, server, client, headers)
            for name, (server, client, headers, _) in ARRIVALS.items()
        }
    taken = {409, 204}  # The first one creates the tenant.
    expected = {name: status if other is None else other for name, (*_, status) in ARRIVALS.items()}
    assert expected == {name: 204 if status in taken else status for name, status in found.items()}


def test_http_hosts_takes_no_port() -> None:
    """It would never match."""
    with pytest.raises(
        InvalidConfig,
        match="http_hosts: 'proxy:80' is no address or host name; a name has no port",
    ):
        config(http_hosts="proxy:80")


@pytest.mark.integration
@with_broker()
async def test_a_broker_refuses_the_requests_of_a_foreign_page(broker: Broker) -> None:
    page = await broker.ask(
        "POST", ORDER, headers={"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    )
    text = await broker.ask("POST", ORDER, data=b"drain", headers={"Content-Type": "text/plain"})
    rebound = await broker.ask("GET", "/v1/brokers", headers={"Host": "evil.example"})
    assert [
        HTTPStatus.FORBIDDEN,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.MISDIRECTED_REQUEST,
    ] == [answer.status for answer in (page, text, rebound)]
    assert "may not change this broker" in page.reason
    entry = broker.worker.agent.entry
    assert entry is not None
    assert "up" == entry.status


@pytest.mark.integration
@with_broker(http_body_ms=50)
async def test_a_slow_body_is_answered_408(broker: Broker) -> None:
    """A long poll whose body has arrived may take longer."""
    answer = await half_a_body(broker)
    assert b"HTTP/1.1 408 " in answer
    assert b"http_body_ms" in answer
    slow = await poll_with_a_body(broker)
    assert HTTPStatus.NO_CONTENT == slow.status


async def half_a_body(broker: Broker) -> bytes:
    """The answer to a caller that stops in the middle of its body."""
    host, port = broker.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"PUT /admin/v2/namespaces/acme/new HTTP/1.1\r\nHost: {host}\r\nContent-Type:"
        " application/json\r\nContent-Length: 100\r\n\r\n"
    )
    writer.write(head.encode() + b"{")
    answer = await reader.readuntil(b"\r\n\r\n") + await reader.read(4_096)
    writer.close()
    return answer


async def poll_with_a_body(broker: Broker) -> Answer:
    """The answer to a long poll that takes longer than a body may, and had one."""
    return await broker.ask(
        "GET", "/v1/assignment/acme/shop?after=1000000&timeout_ms=200", data=b"{}"
    )
