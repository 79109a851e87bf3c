"""The assignment over HTTP: the table, the long poll, and the stream of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import itemgetter
from typing import Any

import aiohttp
import pytest

from equipoise.brokers.http import assignment, events
from tests.unit.http.cluster import (
    NAMESPACE,
    Broker,
    Cluster,
    path_of,
    until,
    with_broker,
    with_cluster,
)

pytestmark = pytest.mark.integration

PATH = f"/v1/assignment/{NAMESPACE}"


Row = dict[str, Any]
"""A row of the table, as JSON."""


async def table(broker: Broker, query: str = "") -> Any:  # noqa: ANN401 - JSON
    """The table that a broker answers with."""
    answer = await broker.get(f"{PATH}{query}")
    assert 200 == answer.status, answer.body
    return json.loads(answer.body)


def expected_row(brokers: Cluster, bundle: str) -> Row:
    """The expected row of an owned bundle."""
    entry, owner = brokers.view.bundles[bundle], brokers.owner_of(bundle)
    return {
        "bundle": bundle,
        "low": entry.low,
        "high": entry.high,
        "state": "owned",
        "broker": owner.id,
        "addresses": {"http": owner.url},
        "token": entry.token,
    }


@with_cluster(brokers=2, bundles=1)
async def test_a_poll_waits_for_a_change_of_its_namespace(brokers: Cluster) -> None:
    one, _ = brokers.brokers
    (bundle,) = brokers.bundles()
    before = await table(one)
    polls = [
        asyncio.ensure_future(table(broker, f"?after={before['offset']}"))
        for broker in brokers.brokers
        for _ in range(3)
    ]
    assert 204 == (await one.put("/admin/v2/namespaces/acme/unrelated")).status
    assert not any(poll.done() for poll in polls)
    source = brokers.owner_of(bundle)
    source.service.closing.clear()
    move = asyncio.ensure_future(
        one.put(f"{path_of(bundle)}/unload?destinationBroker={brokers.other_than(source).id}")
    )
    answers = await asyncio.gather(*polls)
    assert {"assigning", "releasing"} >= {answer["bundles"][0]["state"] for answer in answers}
    assert all(answer["offset"] > before["offset"] for answer in answers)
    await until(lambda: one.worker.view.bundles[bundle].phase == "handing_over")
    handed_over = await table(one)
    assert (None, {}) == (
        handed_over["bundles"][0]["broker"],
        handed_over["bundles"][0]["addresses"],
    )
    source.service.closing.set()
    await move
    after = await table(one, f"?after={handed_over['offset']}")
    assert [expected_row(brokers, bundle)] == after["bundles"]


@with_broker()
async def test_a_poll_ends_unchanged_at_its_timeout(broker: Broker) -> None:
    offset = (await table(broker))["offset"]
    for after in (offset, offset + 1_000):
        assert 204 == (await broker.get(f"{PATH}?after={after}&timeout_ms=50")).status
    assert 204 == (await broker.get(f"{PATH}?after={offset}&timeout_ms=0")).status
    assert 200 == (await broker.get(f"{PATH}?after={offset - 1}&timeout_ms=0")).status


@with_broker()
async def test_an_unknown_namespace_has_no_assignment(broker: Broker) -> None:
    assert 404 == (await broker.get("/v1/assignment/acme/nowhere")).status
    assert (
        404
        == (
            await broker.ask(
                "GET", "/v1/assignment/acme/nowhere", headers={"Accept": "text/event-stream"}
            )
        ).status
    )
    assert 412 == (await broker.get("/v1/assignment/acme/a%20b")).status
    poll = asyncio.ensure_future(broker.get(f"{PATH}?after=1000000"))
    assert 204 == (await broker.ask("DELETE", f"/admin/v2/namespaces/{NAMESPACE}")).status
    assert 404 == (await poll).status


class Stream:
    """Server-sent events, parsed by the specification."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def event(self) -> dict[str, str]:
        """The fields of the next event; none at the end of the stream."""
        fields: dict[str, str] = {}
        async for raw in self._response.content:
            line = raw.decode().rstrip("\n")
            if not line and fields:
                return fields
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
        return {}


@asynccontextmanager
async def stream(broker: Broker) -> AsyncIterator[Stream]:
    async with broker.session.get(
        f"{broker.url}{PATH}", headers={"Accept": "text/event-stream"}
    ) as response:
        assert (200, "text/event-stream") == (response.status, response.content_type)
        yield Stream(response)


class Follower:
    """A client's table, kept by nothing but the events."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.offset = -1

    def take(self, event: dict[str, str]) -> None:
        told = json.loads(event["data"])
        assert int(event["id"]) == told["offset"] > self.offset
        if event["event"] == "table":
            self.rows.clear()
        for name in told.get("gone", ()):
            self.rows.pop(name, None)
        self.rows.update({row["bundle"]: row for row in told["bundles"]})
        self.offset = told["offset"]


@with_cluster(brokers=2)
async def test_a_stream_sends_the_table_and_then_each_change(brokers: Cluster) -> None:
    one, other = brokers.brokers
    async with stream(other) as events:
        follower = Follower()
        follower.take(await events.event())
        first, second, *_ = brokers.bundles()
        target = brokers.other_than(brokers.owner_of(first))
        assert (
            204 == (await one.put(f"{path_of(first)}/unload?destinationBroker={target.id}")).status
        )
        assert 204 == (await one.put(f"{path_of(second)}/split")).status
        left = next(
            name for name in brokers.bundles() if name.startswith(f"{NAMESPACE}/0x40000000")
        )
        assert 204 == (await one.put(f"{path_of(left)}/merge")).status
        assert brokers.bundles()[1] == second
        while (await table(one)) != {
            "offset": follower.offset,
            "unserved": None,
            "bundles": sorted(follower.rows.values(), key=lambda row: row["low"]),
        }:
            follower.take(await events.event())


@with_broker()
async def test_a_stream_says_when_no_broker_serves_its_namespace(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing of the namespace changes at that moment."""
    unserved = f"no broker that is up serves {NAMESPACE}"
    monkeypatch.setattr(assignment, "HEARTBEAT_MS", 1)
    async with stream(broker) as events:
        assert json.loads((await events.event())["data"])["unserved"] is None
        with monkeypatch.context() as changed:
            changed.setattr(assignment, "why_unserved", lambda *_: unserved)
            assert (unserved, []) == itemgetter("unserved", "bundles")(
                json.loads((await events.event())["data"])
            )
            assert unserved == (await table(broker))["unserved"]
        assert json.loads((await events.event())["data"])["unserved"] is None
    assert (await table(broker))["unserved"] is None


@with_broker()
async def test_a_stream_ends_with_its_namespace(broker: Broker) -> None:
    async with stream(broker) as events:
        deletion = asyncio.ensure_future(broker.ask("DELETE", f"/admin/v2/namespaces/{NAMESPACE}"))
        names = []
        while event := await events.event():
            names.append(event["event"])
        assert ("table", "deleted") == (names[0], names[-1])
        assert 204 == (await deletion).status


@with_broker()
async def test_polls_and_streams_end_with_the_broker(broker: Broker) -> None:
    offset = (await table(broker))["offset"]
    poll = asyncio.ensure_future(broker.get(f"{PATH}?after={offset + 1_000}"))
    async with stream(broker) as events:
        await events.event()
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, broker.shut())
        while event := await events.event():
            assert "change" == event["event"]
    assert 204 == (await poll).status


@with_broker()
async def test_followers_beyond_the_bound_are_answered_503(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "FOLLOWERS_MAX", 1)
    async with stream(broker) as events:
        await events.event()
        for headers in ({}, {"Accept": "text/event-stream"}):
            answer = await broker.ask("GET", f"{PATH}?after=0", headers=headers)
            assert (503, True) == (answer.status, "is full" in answer.reason)


@with_broker()
async def test_a_stream_that_nobody_reads_is_ended(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is free again."""
    monkeypatch.setattr(events, "WRITE_S_MAX", 0.05)
    monkeypatch.setattr(assignment, "HEARTBEAT_MS", 1)
    # A comment of a megabyte fills the buffers sooner than one of three bytes.
    monkeypatch.setattr(assignment, "HEARTBEAT", b":" + b" " * 1_000_000 + b"\n\n")
    monkeypatch.setattr(assignment, "FOLLOWERS_MAX", 1)
    host, port = broker.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(
        f"GET {PATH} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    await until_answered(broker, 503)
    await until_answered(broker, 200)
    writer.close()


async def until_answered(broker: Broker, status: int) -> None:
    # What is watched is on the other side.
    while (await broker.get(f"{PATH}?after=0")).status != status:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


@with_broker()
async def test_a_poll_ends_when_its_client_disconnects(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is free again long before the timeout."""
    monkeypatch.setattr(assignment, "HEARTBEAT_MS", 10)
    monkeypatch.setattr(assignment, "FOLLOWERS_MAX", 1)
    host, port = broker.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {PATH}?after=1000000 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await until_answered(broker, 503)
    writer.close()
    await until_answered(broker, 200)


@with_cluster()
async def test_a_table_is_the_same_after_it_left_the_cache(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "TABLES_REMEMBERED_MAX", 1)
    (broker,) = brokers.brokers
    assert 204 == (await broker.put("/admin/v2/namespaces/acme/other")).status
    await brokers.settled()
    before = await table(broker)
    assert 200 == (await broker.get("/v1/assignment/acme/other")).status
    assert before == await table(broker)
    assert before == await table(broker)
