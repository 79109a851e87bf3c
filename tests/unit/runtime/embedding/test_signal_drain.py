"""What happens at a signal: the drain first, then what the server does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from equipoise.brokers.runtime.embedding.embedded import draining, ending_at_sigterm, lingered
from equipoise.channel.core.errors import CallerError, PeerError
from tests import virtual_time

pytestmark = pytest.mark.integration


class Story:
    """What happened, in order. `server` is the handler of a server like uvicorn, `servers` are its
    listeners.
    """

    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []
        self.lines: list[str] = []
        self.drains = asyncio.Event()
        self.ended = asyncio.Event()
        self.goes_on = asyncio.Event()

    def server(self, number: int, _frame: object) -> None:
        """Handle a signal."""
        self.lines.append(f"server ends at {signal.Signals(number).name}")
        self.ended.set()

    async def drain(self) -> None:
        """Drain until the test lets it go on."""
        self.lines.append("drain")
        self.drains.set()
        await self.goes_on.wait()
        self.lines.append("drained")


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture(autouse=True)
def handlers(story: Story) -> Iterator[None]:
    """Handle the signals as a server does, and put back the handlers of the tests."""
    before = {
        number: signal.signal(number, story.server) for number in (signal.SIGTERM, signal.SIGINT)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_server_gets_the_signal_after_the_drain(
    story: Story, number: signal.Signals
) -> None:
    with draining(story.drain):
        os.kill(os.getpid(), number)
        await story.drains.wait()
        assert ["drain"] == story.lines
        story.goes_on.set()
        await story.ended.wait()
    assert ["drain", "drained", f"server ends at {number.name}"] == story.lines


async def test_who_has_connected_is_answered_before_the_server_gets_the_signal(
    story: Story,
) -> None:
    """Also if the server has not accepted the connection when the drain ends. Others are refused,
    and nobody gets a reset.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    story.servers.append(listener)
    address = listener.sockets[0].getsockname()
    client = socket.socket()

    async def drain() -> None:
        client.connect(address)
        client.setblocking(False)  # noqa: FBT003 - a method of sockets

    async def last_calls() -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        client.send(b"called\n")
        received = await asyncio.get_running_loop().sock_recv(client, 100)
        story.lines.append(received.decode().strip())

    with client, draining(drain, last_calls):
        os.kill(os.getpid(), signal.SIGTERM)
        await story.ended.wait()
    assert ["called", "server ends at SIGTERM"] == story.lines


async def test_a_second_signal_goes_to_the_server_at_once(story: Story) -> None:
    """The drain ends with the context."""
    with draining(story.drain):
        os.kill(os.getpid(), signal.SIGTERM)
        await story.drains.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await story.ended.wait()
    story.goes_on.set()
    await asyncio.sleep(0)
    assert ["drain", "server ends at SIGINT"] == story.lines


async def test_a_drain_that_fails_does_not_keep_the_signal(story: Story) -> None:
    async def fail() -> None:
        raise PeerError("the broker has ended")

    with draining(fail):
        os.kill(os.getpid(), signal.SIGTERM)
        await story.ended.wait()
    assert ["server ends at SIGTERM"] == story.lines


@pytest.mark.parametrize("swallows", [False, True])
async def test_without_a_handler_of_sigterm_the_contexts_end_before_the_process(
    story: Story, swallows: bool
) -> None:
    """Also if the code in it takes its cancellation for its end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    story.goes_on.set()

    async def run() -> None:
        with ending_at_sigterm(), draining(story.drain):
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                story.lines.append("cancelled")
                if not swallows:
                    raise

    with pytest.raises(SystemExit) as ended:
        await run()
    assert (["drain", "drained", "cancelled"], None) == (story.lines, ended.value.code)
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


async def test_a_cancellation_by_others_stays_one(story: Story) -> None:
    """With a handler of SIGTERM, and without one."""

    async def wait() -> None:
        with ending_at_sigterm(), draining(story.drain):
            await asyncio.sleep(60)

    for handler in (story.server, signal.SIG_DFL):
        signal.signal(signal.SIGTERM, handler)
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert handler == signal.getsignal(signal.SIGTERM)


async def test_a_signal_that_is_ignored_stays_ignored(story: Story) -> None:
    """It would drain a program that goes on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with draining(story.drain):
        assert signal.SIG_IGN == signal.getsignal(signal.SIGINT)
        assert story.server != signal.getsignal(signal.SIGTERM)
    assert signal.SIG_IGN == signal.getsignal(signal.SIGINT)


async def test_without_a_signal_the_handlers_come_back(story: Story) -> None:
    with draining(story.drain):
        assert story.server != signal.getsignal(signal.SIGTERM)
    assert story.server == signal.getsignal(signal.SIGTERM)
    assert story.server == signal.getsignal(signal.SIGINT)


async def test_a_server_that_handles_signals_on_the_loop_is_refused(story: Story) -> None:
    """It would close its listener at once."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, story.lines.append, "server ends")
    try:
        with pytest.raises(CallerError, match="SIGTERM on its event loop"), draining(story.drain):
            pass
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_in_a_thread_nothing_is_handled(story: Story) -> None:
    """Python lets only the main thread handle signals."""

    async def run() -> object:
        with draining(story.drain):
            return signal.getsignal(signal.SIGTERM)

    assert story.server == await asyncio.to_thread(lambda: asyncio.run(run()))


async def test_a_stall_does_not_use_up_the_time_to_answer() -> None:
    """What arrived while the process stood still is answered in the turns that are left."""
    lingering = asyncio.create_task(lingered(100, lambda: 0, has_peers=lambda: True))
    await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251 - the stall
    for _ in range(3):
        await asyncio.sleep(0)
    assert not lingering.done()
    await lingering


@pytest.mark.parametrize(
    ("calls_until_s", "peers_until_s", "ends_s"),
    [(0.0, 10.0, 0.2), (1.0, 10.0, 1.2), (10.0, 10.0, 3.0), (10.0, 1.0, 1.0), (10.0, 0.0, 0.0)],
)
def test_a_drained_program_answers_until_no_call_comes(
    calls_until_s: float, peers_until_s: float, ends_s: float
) -> None:
    """For `linger_ms` at most, and not once the last peers stop."""

    async def story() -> float:
        loop, calls = virtual_time.loop(), 0
        began_s = loop.time()

        def call() -> None:
            nonlocal calls
            calls += 1
            if loop.time() - began_s < calls_until_s:
                loop.call_later(0.15, call)

        call()
        await lingered(
            3_000, lambda: calls, has_peers=lambda: loop.time() - began_s < peers_until_s
        )
        return loop.time() - began_s

    assert ends_s == pytest.approx(virtual_time.run(story()), abs=0.2)
