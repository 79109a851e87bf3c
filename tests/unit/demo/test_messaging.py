"""The demo's Pulsar clients as processes: heard out, found out, or not to be had. The program that they are is a fake here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.brokers.local.demo import messaging
from equipoise.brokers.local.demo.messaging import PulsarClientFailed, PulsarClientMissing, PulsarClients, lacking
from equipoise.channel.core.errors import DeadlineExceeded

# Does what is written here as the producer, and only consumes otherwise; each ends with its standard input.
PROGRAM = """
import json, sys
def say(event, at_ns, **fields):
    print(json.dumps({{"event": event, "at_ns": at_ns, **fields}}), flush=True)
def told(event, n):
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
    monkeypatch.setattr(messaging, "_ROOT", tmp_path)
    monkeypatch.setattr(messaging, "_CLIENT", "fake_client")
    monkeypatch.setattr(messaging, "_LAST_DELIVERIES_S", 0.0)

    def make(*lines: str) -> PulsarClients:
        (tmp_path / "fake_client.py").write_text(PROGRAM.format(produces="\n".join(f"    {line}" for line in lines)))
        return PulsarClients(url="pulsar://nobody", namespace="t/n", folder=tmp_path / "messages")

    return make


def test_clients_are_heard_out(clients: Together) -> None:
    """What they say once they are told to end still counts, and every line is in their histories."""

    async def run() -> tuple[PulsarClients, str | None]:
        async with clients(*READY, "told('sent', 7)", "sys.stdin.read()", "told('receipted', 7)") as together:
            assert 0 == together.tally.receipted
            return together, await together.stop()

    together, problem = asyncio.run(run())
    assert problem is None
    assert 1 == together.tally.receipted
    assert ["ledger.jsonl", "worker-1.jsonl", "worker-2.jsonl", "producer.jsonl"] == [path.name for path in together.histories]
    assert [1, 1, 1, 3] == [path.read_text().count("\n") for path in together.histories]


def test_a_client_that_does_not_begin_is_an_error(clients: Together) -> None:
    """A client that ends before it is ready is told of, with its last words."""

    async def run() -> None:
        async with clients("sys.exit('no luck')"):
            pass

    with pytest.raises(PulsarClientFailed, match="producer ended at once; its last words: no luck"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((*READY, "sys.exit('enough')"), "ended before it was told to; its last words: enough"),
        ((*READY, "print('{')"), "not be understood"),
    ],
)
def test_a_client_that_goes_wrong_later_is_a_problem(clients: Together, lines: tuple[str, ...], problem: str) -> None:
    """One that ends by itself, or says what is none, is found out at the end, and the others end all the same."""

    async def run() -> str | None:
        async with clients(*lines) as together:
            await together._producer._process.wait()  # type: ignore[union-attr] # noqa: SLF001 - its end is what is waited for
            return await together.stop()

    found = asyncio.run(run())
    assert found is not None
    assert problem in found


def test_a_client_that_fails_at_its_end_is_a_problem(clients: Together) -> None:
    """An exit code after it was told to end is told of, too."""

    async def run() -> str | None:
        async with clients(*READY, "sys.stdin.read()", "sys.exit(3)") as together:
            return await together.stop()

    assert "producer ended with code 3" in (asyncio.run(run()) or "")


def test_messages_that_do_not_flow_are_waited_for_only_so_long(clients: Together) -> None:
    """A topic on which nothing comes through is an error after the time that was given."""

    async def run() -> None:
        async with clients(*READY, "sys.stdin.read()") as together:
            await together.flow_again(timeout_ms=1)

    with pytest.raises(DeadlineExceeded, match="messages on each of 16 topics"):
        asyncio.run(run())


def test_what_is_missing_is_told_and_required_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the client's package the demo is told so; in CI that is an error."""
    monkeypatch.setenv("CI", "")
    assert lacking() is None
    monkeypatch.setattr(messaging, "find_spec", lambda name: None)
    assert "the package pulsar-client is not installed" == lacking()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(PulsarClientMissing, match="pulsar-client is not installed"):
        lacking()


def test_brokers_and_the_program_may_be_missing_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers need an extra to take clients, and the clients' program is part of a checkout."""
    monkeypatch.setenv("CI", "")
    monkeypatch.setattr(messaging, "_CLIENT_FILE", tmp_path / "none.py")
    assert "it is part of a checkout" in (lacking() or "")
    monkeypatch.setattr(messaging, "default_service", lambda: "counter")
    assert "the extra `pulsar` is not installed" in (lacking() or "")
