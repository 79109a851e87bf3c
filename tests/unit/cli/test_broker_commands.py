"""`equipoise brokers`: members, the leader, status, drains and death declarations."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.log.open_log import open_log
from tests.channels.folding import MIDDLE, Channel, joined
from tests.unit.cli.fabricated import LEFT, RIGHT, author_of, owned_channel, run, view_of, write
from tests.unit.cli.scripted_broker import Broker, answering, closed_port


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The URL of a log on which a leads and owns a bundle, b drains with another, and c is down."""
    channel = owned_channel()
    channel.accept(propose.draining(channel.author("b"), channel.broker("b")))
    channel.die("c")
    return write(channel.entries, tmp_path)


# --- status ---


LOSS = {
    "since": "2026-01-31T12:34:56.000Z",
    "lost_ms": 7_000,
    "problem": "it is away",
    "serving_on": ["shop/orders"],
}


def saying(status: int, document: object) -> Broker:
    """A broker that answers every request with this document."""
    return Broker(answering(status, json.dumps(document)))


def test_status_needs_no_log_if_addresses_are_given() -> None:
    ready: dict[str, object] = {
        "status": "ready",
        "broker": "a",
        "problems": [],
        "channel_loss": None,
    }
    losing = {
        "status": "serving on",
        "broker": "b",
        "problems": ["it is fenced"],
        "channel_loss": LOSS,
        "maintenance": "new disks",
    }
    with saying(200, ready) as one, saying(200, losing) as other:
        result = run(
            "brokers",
            "status",
            "--url",
            one.url,
            "--url",
            f"{other.url}/",
            log="sqlite:nowhere/at/all.db",
        )
        rows = json.loads(run("brokers", "status", "--url", other.url, "--json").stdout)
    assert ["GET /ready", "GET /ready"] == other.asked
    assert ("", 0) == (result.stderr, result.exit_code)
    assert [
        "broker  status      channel lost since        serving on   problems      maintenance",
        "a       ready       -                         -            -             -",
        "b       serving on  2026-01-31T12:34:56.000Z  shop/orders  it is fenced  new disks",
    ] == result.stdout.splitlines()
    assert [("b", other.url, "serving on", ["shop/orders"])] == [
        (row["broker"], row["address"], row["status"], row["serving_on"]) for row in rows
    ]


def test_status_asks_the_brokers_of_the_log(tmp_path: Path) -> None:
    with saying(
        503, {"status": "not ready", "broker": "a", "problems": ["it drains"], "channel_loss": None}
    ) as broker:
        result = run("brokers", "status", log=log_with_address(tmp_path, broker.url))
    _, first, second = result.stdout.splitlines()
    assert (3, True, True) == (
        result.exit_code,
        first.startswith("a       not ready"),
        second.startswith("b       unreachable"),
    )


@pytest.mark.parametrize("document", [[], {}, {"status": "ok"}, "ok"])
def test_status_recognises_other_servers(document: object) -> None:
    with saying(200, document) as server:
        result = run("brokers", "status", "--url", server.url)
    assert (3, True) == (result.exit_code, "no broker of this version" in result.stdout)


def test_status_needs_a_log_or_an_address() -> None:
    result = run("brokers", "status")
    assert (2, True) == (result.exit_code, "--url" in result.stderr)


# --- drain ---


def log_with_address(folder: Path, address: str, protocol: str = "http") -> str:
    """A log on which a owns `LEFT` and b `RIGHT`, and a advertises `address` under `protocol`."""
    channel = Channel()
    channel.genesis()
    channel.accept(
        replace(
            joined("a", channel.view, instance_id="instance_id of a"),
            addresses={"http": "http://program", protocol: address} if address else {},
        )
    )
    channel.join("b")
    channel.create(even_boundaries(2))
    channel.own("a")
    channel.own("b", MIDDLE)
    return write(channel.entries, folder)


@contextmanager
def standing_in(folder: Path) -> Iterator[tuple[Broker, str]]:
    """A stand-in for a, and the log on which a advertises it. When asked, a drains, and gives its
    only bundle away.
    """

    def drain(connection: socket.socket, over: threading.Event) -> None:
        append(url, lambda a, _: propose.draining(author_of(a), a))
        append(url, lambda a, left: propose.unload(author_of(a), left))
        append(url, lambda a, left: propose.released(author_of(a), left))
        answering(204)(connection, over)

    with Broker(drain) as broker:
        url = log_with_address(folder, broker.url)
        yield broker, url


def append(url: str, make: Callable[[BrokerEntry, BundleEntry], AnyRecord]) -> None:
    """Append a record that is made from broker a and the bundle `LEFT`."""
    view = view_of(url)
    with closing(open_log(url)) as log:
        log.append([encode(make(view.brokers["a"], view.bundles[LEFT]))], timeout_ms=1_000)


def test_drain_asks_the_broker_and_waits(tmp_path: Path) -> None:
    with standing_in(tmp_path) as (broker, log):
        result = run("brokers", "drain", "a", log=log)
    assert ("a is drained: it had 1 bundle\n", "", 0) == (
        result.stdout,
        result.stderr,
        result.exit_code,
    )
    assert ["POST /admin/v2/brokers/drain"] == broker.asked
    assert "draining" == view_of(log).brokers["a"].status


def test_an_embedded_broker_is_asked_at_its_peer_address(tmp_path: Path) -> None:
    """The program's own clients are at `http`."""
    with Broker(answering(204)) as broker:
        log = log_with_address(tmp_path, broker.url, "peer")
        assert 0 == run("brokers", "drain", "a", "--no-wait", log=log).exit_code
        assert broker.url in run("brokers", "status", "--json", log=log).stdout


def test_drain_ignores_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Broker(answering(204)) as idle:
        log = log_with_address(tmp_path, idle.url)
        assert 0 == run("brokers", "drain", "a", "--no-wait", log=log).exit_code


def test_drain_waits_only_if_asked_to(tmp_path: Path) -> None:
    with Broker(answering(200)) as idle:
        log = log_with_address(tmp_path, idle.url)
        result = run("brokers", "drain", "a", "--no-wait", "--json", log=log)
        assert {"broker": "a", "incarnation": 2, "bundles": 1, "done": False} == json.loads(
            result.stdout
        )
        late = run("brokers", "drain", "a", "--timeout", "1", log=log)
    assert (
        3,
        "error: the draining of a did not happen within 1000 ms; ask again, it may still happen\n",
    ) == (late.exit_code, late.stderr)


def test_drain_reports_the_refusal_of_a_broker(tmp_path: Path) -> None:
    with Broker(answering(503, "not me")) as broker:
        result = run("brokers", "drain", "a", log=log_with_address(tmp_path, broker.url))
    assert (3, True) == (
        result.exit_code,
        "cannot be asked" in result.stderr and "it answers 503 not me" in result.stderr,
    )


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        "https://127.0.0.1:1",
        "http://",
        "http://127.0.0.1:99999",
        "http://a b:1",
        "closed",
    ],
)
def test_drain_reports_an_unreachable_broker_in_one_line(address: str, tmp_path: Path) -> None:
    log = log_with_address(
        tmp_path, f"http://127.0.0.1:{closed_port()}" if address == "closed" else address
    )
    result = run("brokers", "drain", "a", log=log)
    assert ("", 3) == (result.stdout, result.exit_code)
    assert (1, True) == (
        result.stderr.count("\n"),
        result.stderr.startswith("error: the broker a cannot be asked at"),
    )


# --- declare dead ---


def log_of_directory(folder: Path) -> str:
    """A log on which a, with the instance id `a-1`, owns `LEFT`, and b `RIGHT`; a's directory
    `broker` knows that instance id, and is free.
    """
    channel = Channel()
    channel.genesis()
    channel.accept(joined("a", channel.view, instance_id="a-1"))
    channel.join("b")
    channel.create(even_boundaries(2))
    channel.own("a")
    channel.own("b", MIDDLE)
    with DataDirectory(folder / "broker") as directory:
        directory.write_instance_id("a-0")
        directory.write_instance_id("a-1")
    return write(channel.entries, folder)


def test_declare_dead_needs_the_lock_of_the_data_directory(tmp_path: Path) -> None:
    url, data = log_of_directory(tmp_path), str(tmp_path / "broker")
    result = run("brokers", "declare-dead", "--data", data, log=url)
    assert ("accepted at offset 9: a#2 is down, it held 1 bundle\n", "", 0) == (
        result.stdout,
        result.stderr,
        result.exit_code,
    )
    view = view_of(url)
    assert ("down", "free", "owned") == (
        view.brokers["a"].status,
        view.bundles[LEFT].phase,
        view.bundles[RIGHT].phase,
    )
    again = run("brokers", "declare-dead", "--data", data, log=url)
    assert (f"no broker to declare dead: no live broker has an instance id of {data}\n", 0) == (
        again.stdout,
        again.exit_code,
    )
    assert "[]\n" == run("brokers", "declare-dead", "--data", data, "--json", log=url).stdout


def test_declare_dead_prints_json(tmp_path: Path) -> None:
    url = log_of_directory(tmp_path)
    result = run("brokers", "declare-dead", "--data", str(tmp_path / "broker"), "--json", log=url)
    assert [{"broker": "a", "incarnation": 2, "offset": 9, "bundles": 1}] == json.loads(
        result.stdout
    )


def test_declare_dead_refuses_a_running_broker(log: str, tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "broker"):
        result = run("brokers", "declare-dead", "--data", str(tmp_path / "broker"), log=log)
    assert (4, "", 11) == (result.exit_code, result.stdout, view_of(log).offset)
    assert f"is held by process {os.getpid()}: its broker is still running" in result.stderr


def test_declare_dead_refuses_a_directory_without_a_broker(log: str, tmp_path: Path) -> None:
    result = run("brokers", "declare-dead", "--data", str(tmp_path / "broker"), log=log)
    assert (4, False) == (result.exit_code, (tmp_path / "broker").exists())
    assert result.stderr.startswith(f"error: the data directory {tmp_path}/broker cannot be used: ")
