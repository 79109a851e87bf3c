"""The demo's Pulsar clients as processes that run a fake program, and the tally of their
messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.brokers.local.demo import pulsar_clients
from equipoise.brokers.local.demo.pulsar_clients import (
    BEFORE_A_KILL_NS,
    MessageTally,
    PulsarClients,
    lacking,
)
from equipoise.channel.core.errors import DeadlineExceeded, OperatorError, PeerError

# Does what is written here as the producer, and only consumes otherwise; each ends with its
# standard input.
PROGRAM = """
import json, sys
def say(event, at_ns, **fields):
    print(json.dumps({{"event": event, "at_ns": at_ns, **fields}}), flush=True)
def message(event, n):
    say(event, n, topic="non-persistent://t/n/orders-0", n=n)
if sys.argv[1] == "produce":
{produces}
else:
    say("ready", 1)
    sys.stdin.read()
"""
READY = ("say('ready', 1)",)

Together = Callable[..., PulsarClients]


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Together:
    """Makes clients whose producer does these lines."""
    monkeypatch.setattr(pulsar_clients, "_ROOT", tmp_path)
    monkeypatch.setattr(pulsar_clients, "_CLIENT", "fake_client")
    monkeypatch.setattr(pulsar_clients, "_LAST_DELIVERIES_S", 0.0)

    def make(*lines: str) -> PulsarClients:
        (tmp_path / "fake_client.py").write_text(
            PROGRAM.format(produces="\n".join(f"    {line}" for line in lines))
        )
        return PulsarClients(url="pulsar://nobody", namespace="t/n", folder=tmp_path / "messages")

    return make


def test_clients_are_read_to_their_end(clients: Together) -> None:
    """Lines after the stop still count, and every line is in their histories."""

    async def run() -> tuple[PulsarClients, str | None]:
        async with clients(
            *READY, "message('sent', 7)", "sys.stdin.read()", "message('receipted', 7)"
        ) as together:
            assert 0 == together.tally.receipted
            return together, await together.stop()

    together, problem = asyncio.run(run())
    assert problem is None
    assert 1 == together.tally.receipted
    assert ["ledger.jsonl", "worker-1.jsonl", "worker-2.jsonl", "producer.jsonl"] == [
        path.name for path in together.histories
    ]
    assert [1, 1, 1, 3] == [path.read_text().count("\n") for path in together.histories]


def test_a_client_that_does_not_start_is_an_error(clients: Together) -> None:
    """The error has what the client printed."""

    async def run() -> None:
        async with clients("sys.exit('no luck')"):
            pass

    with pytest.raises(PeerError, match="producer ended at once; it printed: no luck"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((*READY, "sys.exit('enough')"), "ended before it was stopped; it printed: enough"),
        ((*READY, "print('{')"), "a line that is not valid"),
    ],
)
def test_a_client_that_goes_wrong_later_is_a_problem(
    clients: Together, lines: tuple[str, ...], problem: str
) -> None:
    """A client that ends early, or prints an invalid line, is a problem at the stop."""

    async def run() -> str | None:
        async with clients(*lines) as together:
            await together._producer._process.wait()  # type: ignore[union-attr]  # noqa: SLF001
            return await together.stop()

    found = asyncio.run(run())
    assert found is not None
    assert problem in found


def test_a_client_that_fails_at_the_stop_is_a_problem(clients: Together) -> None:
    """Its exit code is in the problem."""

    async def run() -> str | None:
        async with clients(*READY, "sys.stdin.read()", "sys.exit(3)") as together:
            return await together.stop()

    assert "producer ended with code 3" in (asyncio.run(run()) or "")


def test_the_wait_for_messages_has_a_deadline(clients: Together) -> None:
    """A topic without messages is an error after the deadline."""

    async def run() -> None:
        async with clients(*READY, "sys.stdin.read()") as together:
            await together.messages_flow(timeout_ms=1)

    with pytest.raises(DeadlineExceeded, match="messages on each of 16 topics"):
        asyncio.run(run())


def test_missing_clients_are_an_error_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the demo runs without them."""
    monkeypatch.setenv("CI", "")
    assert lacking() is None
    monkeypatch.setattr(pulsar_clients, "find_spec", lambda name: None)
    assert "the package pulsar-client is not installed" == lacking()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(OperatorError, match="pulsar-client is not installed"):
        lacking()


def test_brokers_and_the_program_may_be_missing_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers need an extra to accept clients, and the clients' program is part of a checkout."""
    monkeypatch.setenv("CI", "")
    monkeypatch.setattr(pulsar_clients, "_CLIENT_FILE", tmp_path / "none.py")
    assert "it is part of a checkout" in (lacking() or "")
    monkeypatch.setattr(pulsar_clients, "default_service", lambda: "counter")
    assert "the extra `pulsar` is not installed" in (lacking() or "")


MS = 1_000_000
S = 1_000 * MS
ORDERS, EVENTS = "orders", "events"


def tally_of(*lines: tuple[str, str, int, int]) -> MessageTally:
    """Return the tally of lines, each an event, a topic, a number and a time."""
    tally = MessageTally([ORDERS, EVENTS])
    note(tally, *lines)
    return tally


def note(tally: MessageTally, *lines: tuple[str, str, int, int]) -> None:
    """Pass lines to a tally."""
    for event, topic, n, at_ns in lines:
        tally.note({"event": event, "topic": topic, "n": n, "at_ns": at_ns})


def test_a_pause_is_the_time_to_the_receipt() -> None:
    """Receipts are counted, and a message that failed has no pause."""
    tally = tally_of(
        ("sent", ORDERS, 0, 0),
        ("sent", ORDERS, 1, 0),
        ("receipted", ORDERS, 0, 20 * MS),
        ("failed", ORDERS, 1, 90 * MS),
    )
    assert (1, 20.0, 20.0) == (tally.receipted, tally.longest_pause_ms, tally.recent_pause_ms)


def test_a_message_without_a_receipt_is_a_pause() -> None:
    tally = tally_of(
        ("sent", ORDERS, 0, 10 * S),
        ("receipted", ORDERS, 0, 10 * S),
        ("sent", ORDERS, 1, 11 * S),
        ("sent", EVENTS, 0, 12 * S),
    )
    tally.note_waiting(73 * S)
    assert 62_000.0 == tally.recent_pause_ms
    note(tally, ("failed", ORDERS, 1, 73 * S), ("receipted", EVENTS, 0, 73 * S))
    tally.recent_pause_ms = 0.0
    tally.note_waiting(74 * S)
    assert 0.0 == tally.recent_pause_ms


def test_pauses_in_kills_are_separate() -> None:
    """A kill affects messages sent shortly before it, and all until it ends."""
    tally = tally_of(
        ("sent", ORDERS, 0, 10 * S),
        ("receipted", ORDERS, 0, 10 * S + 2 * MS),
        ("sent", ORDERS, 1, 20 * S),
    )
    tally.kill_begins(21 * S)
    note(tally, ("receipted", ORDERS, 1, 25 * S))
    assert (2.0, 5_000.0) == (tally.longest_pause_ms, tally.longest_pause_in_kills_ms)
    assert [(21 * S - BEFORE_A_KILL_NS, 26 * S)] == tally.windows(26 * S)
    tally.kill_ends(30 * S)
    note(tally, ("sent", ORDERS, 2, 40 * S), ("receipted", ORDERS, 2, 40 * S + 4 * MS))
    assert (4.0, [(21 * S - BEFORE_A_KILL_NS, 30 * S)]) == (
        tally.longest_pause_ms,
        tally.windows(60 * S),
    )


def test_messages_flow_when_every_topic_has_a_new_one() -> None:
    """Messages sent before do not count, and each topic needs a receipt and a delivery."""
    tally = tally_of(("sent", ORDERS, 0, 0), ("sent", EVENTS, 0, 0))
    before = tally.sent()
    for topic in (ORDERS, EVENTS):
        for event in ("receipted", "received"):
            note(tally, (event, topic, 0, S))
        for event in ("sent", "receipted", "received"):
            assert not tally.flows_after(before)
            note(tally, (event, topic, 1, 2 * S))
    assert tally.flows_after(before)
