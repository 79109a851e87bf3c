"""State that streams from a former owner: its answers, its checksum, its deadlines, and what a
broken connection costs.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.runtime import state_stream as module
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.runtime.state_stream import (
    CHECKSUM_BYTES,
    PIECE_BYTES,
    Arrival,
    Checked,
    Departures,
    Progress,
    over_http,
    pieces_of,
    with_checksum,
)
from equipoise.brokers.security.own_token import OwnToken
from equipoise.brokers.security.tls import Certificates, TlsFiles
from equipoise.channel.core.errors import DeadlineExceeded, PeerError
from tests.tls.authority import HOST, Authority

BUNDLE = "t/n/0x00000000_0xffffffff"
SOURCE = Peer(broker="b")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def chunks_of(*chunks: bytes) -> AsyncIterator[bytes]:
    """Yield chunks as a service does."""
    for chunk in chunks:
        yield chunk


async def sent(*chunks: bytes, offset: int = 0) -> bytes:
    """Return the body that carries these chunks."""
    return b"".join(
        [
            piece
            async for piece in with_checksum(pieces_of(chunks_of(*chunks), what="x"), offset=offset)
        ]
    )


class Source:
    """A former owner whose connections do what a test sets. `offsets` are those that were asked
    for.
    """

    def __init__(self, *connections: Callable[[int], AsyncIterator[bytes]] | None) -> None:
        self.connections = list(connections)
        self.offsets: list[int] = []

    @asynccontextmanager
    async def request(self, offset: int) -> AsyncIterator[AsyncIterator[bytes] | None]:
        self.offsets.append(offset)
        connection = self.connections.pop(0)
        yield None if connection is None else connection(offset)

    def arrival(self, progress: Progress | None = None) -> Arrival:
        """Return its state."""
        return Arrival(SOURCE, BUNDLE, self.request, progress=progress)


def body(*chunks: bytes) -> Callable[[int], AsyncIterator[bytes]]:
    """Return a connection that sends all of this state."""
    return lambda offset: with_checksum(pieces_of(chunks_of(*chunks), what="x"), offset=offset)


def breaking(*data: bytes, error: Exception | None = None) -> Callable[[int], AsyncIterator[bytes]]:
    """Return a connection that sends this data and breaks."""

    async def connection(_offset: int) -> AsyncIterator[bytes]:
        for each in data:
            yield each
        raise error or aiohttp.ClientPayloadError("broken")

    return connection


# --- chunks and the checksum ---


@given(
    chunks=st.lists(st.binary(max_size=60)),
    cuts=st.lists(st.integers(1, 40), min_size=1),
    offset=st.integers(0, 80),
)
def test_any_state_arrives_whole_however_it_is_cut(
    chunks: list[bytes], cuts: list[int], offset: int
) -> None:
    """Also when its first `offset` bytes came over another connection."""
    state = b"".join(chunks)
    offset = min(offset, len(state))
    data, checked = asyncio.run(sent(*chunks, offset=offset)), Checked()
    arrived = checked.take(state[:offset] + bytes(CHECKSUM_BYTES))
    checked.begin()
    number = 0
    while data:
        size = cuts[number % len(cuts)]
        arrived += checked.take(data[:size])
        data, number = data[size:], number + 1
    assert (state, True, len(state)) == (arrived, checked.is_whole, checked.received)


@given(state=st.binary(min_size=1, max_size=100), at=st.integers(0, 115), bit=st.integers(0, 7))
def test_one_wrong_bit_is_found(state: bytes, at: int, bit: int) -> None:
    """In the state, and in its checksum."""
    data = bytearray(asyncio.run(sent(state)))
    data[at % len(data)] ^= 1 << bit
    checked = Checked()
    checked.take(bytes(data))
    assert not checked.is_whole


async def test_pieces_are_small() -> None:
    large = bytes(range(256)) * 3_000
    for state in (large, chunks_of(large[:1], large[1:])):
        pieces = [piece async for piece in pieces_of(state, what="x")]
        assert (large, True) == (
            b"".join(pieces),
            all(len(piece) <= PIECE_BYTES for piece in pieces),
        )


async def test_other_work_runs_between_two_pieces() -> None:
    """Even if neither the service nor the connection ever waits: a broker that streams renews its
    lease.
    """
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(other())
    await sent(*[b"x"] * 50)
    working.cancel()
    assert turns >= 50


@pytest.mark.parametrize(
    "wrong", [b"another", b"", b"stat"], ids=["other bytes", "nothing", "a part"]
)
async def test_state_that_does_not_match_its_checksum_raises(wrong: bytes) -> None:
    checksum = (await sent(b"state"))[-CHECKSUM_BYTES:]

    async def connection(_offset: int) -> AsyncIterator[bytes]:
        yield wrong + checksum

    with pytest.raises(
        PeerError,
        match=(
            r"broker b does not hand over the state of t/n/.*: what came does not match its"
            r" checksum"
        ),
    ):
        await Source(connection).arrival().whole()


# --- broken connections ---


async def test_a_broken_connection_is_continued_once() -> None:
    """What came over the first is not asked for again, and both parts have one checksum."""
    first = (await sent(b"0123456789" * 10))[:60]
    source = Source(breaking(first), body(b"0123456789" * 10))
    assert b"0123456789" * 10 == await source.arrival().whole()
    assert [0, 60 - CHECKSUM_BYTES] == source.offsets


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (
            breaking(error=aiohttp.ClientConnectionError("refused")),
            "ClientConnectionError: refused",
        ),
        (None, "it no longer has the state"),
        (body(b"9876543210" * 10), "does not match its checksum"),
        (body(b"123"), "the state has 3 bytes, and 28 were received before"),
    ],
    ids=["dead", "forgotten", "another", "less"],
)
async def test_a_source_that_cannot_go_on_is_an_error(
    second: Callable[[int], AsyncIterator[bytes]] | None, problem: str
) -> None:
    first = (await sent(b"0123456789" * 10))[:60]
    with pytest.raises(PeerError, match=problem):
        await Source(breaking(first), second).arrival().whole()


async def test_silence_is_not_tried_again() -> None:
    source = Source(breaking(b"x" * 100, error=aiohttp.SocketTimeoutError("silent")))
    with pytest.raises(PeerError, match="SocketTimeoutError: silent"):
        await source.arrival().whole()


# --- deadlines, back-pressure and progress ---


async def test_a_silent_service_ends_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its generator is closed."""
    closed = []

    async def silent() -> AsyncIterator[bytes]:
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    monkeypatch.setattr(module, "SILENCE_MS", 20)
    with pytest.raises(DeadlineExceeded, match="the service giving"):
        _ = [piece async for piece in pieces_of(silent(), what="the service giving the state")]
    assert closed


async def test_the_source_reads_only_what_the_next_owner_takes() -> None:
    """Also over HTTP, where the buffers of a connection lie between."""
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"x" * PIECE_BYTES

    departures = Departures(lambda _: None)

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in departures.sending(BUNDLE, endless(), 0):
            await response.write(piece)
        return response

    async with served(handler) as peer, aclosing(arrival_over_http(peer).stream()) as pieces:
        taken = 0
        async for piece in pieces:
            taken += len(piece)
            if taken >= 4 * PIECE_BYTES:
                break
        before = -1
        while before != read:  # Until the connection takes no more.
            before = read
            await asyncio.sleep(0.05)
        assert (read * PIECE_BYTES - taken) < 64 * PIECE_BYTES


def test_progress_is_reported_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """Each byte to the metric; the agent twice a second; the log every two seconds, and at the
    end.
    """
    caplog.set_level(logging.INFO)
    now_ns, received, reports = 0, 0, 0

    def count(size: int) -> None:
        nonlocal received
        received += size

    def report() -> None:
        nonlocal reports
        reports += 1

    progress = Progress(BUNDLE, "b", received=count, goes_on=report, now_ns=lambda: now_ns)
    for _ in range(50):
        progress(10)
        now_ns += 100_000_000
    progress.ended()
    assert (500, 10) == (received, reports)
    lines = [
        (line.message, line.__dict__["bytes"], line.__dict__["took_ms"]) for line in caplog.records
    ]
    receiving = "receiving the state of a bundle"
    assert [
        (receiving, 210, 2_000),
        (receiving, 410, 4_000),
        ("received the state of a bundle", 500, 5_000),
    ] == lines
    caplog.clear()
    short = Progress(BUNDLE, "b", received=count, goes_on=report, now_ns=lambda: now_ns)
    short(10)
    short.ended()
    assert [] == caplog.records


async def test_a_broker_that_ends_waits_for_streams() -> None:
    """For one that runs, for one that was broken and comes back, and for one that has not begun."""
    departures, done = Departures(lambda _: None), []

    async def wait() -> None:
        await departures.all_ended(timeout_ms=60_000)
        done.append(True)

    departures.wait_for(BUNDLE)
    waiting = asyncio.create_task(wait())
    broken = departures.sending(BUNDLE, b"state", 0)
    await anext(broken)
    await broken.aclose()
    whole = departures.sending(BUNDLE, b"state", 0)
    await anext(whole)
    await asyncio.sleep(0)
    assert not done
    assert CHECKSUM_BYTES == len(b"".join([piece async for piece in whole]))
    await waiting


async def test_a_broker_that_ends_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    departures = Departures(lambda _: None)
    stream = departures.sending(BUNDLE, b"state", 0)
    await anext(stream)
    await departures.all_ended(timeout_ms=1)
    assert (
        "states not sent in time: next owners still stream 1 from this broker, which waits no"
        " longer; raise drain_ms" in caplog.text
    )
    await stream.aclose()


# --- over HTTP ---


@asynccontextmanager
async def served(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """Run a former owner whose HTTP answers with `handler`."""
    app = web.Application()
    app.add_routes([web.get("/v1/handover/{bundle:.*}", handler)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield Peer(
            broker="b", addresses={"http": f"{'http' if tls is None else 'https'}://{host}:{port}"}
        )
    finally:
        await runner.cleanup()


def arrival_over_http(peer: Peer) -> Arrival:
    """Return the state of the former owner, for a broker without a token."""
    return Arrival(peer, BUNDLE, over_http(peer, BUNDLE))


def fetched(handler: Handler) -> bytes | None:
    """Fetch from such a former owner."""

    async def story() -> bytes | None:
        async with served(handler) as peer:
            return await arrival_over_http(peer).whole()

    return asyncio.run(story())


async def endless(request: web.Request) -> web.StreamResponse:
    """Answer without a length and without an end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65_536)


async def silent(request: web.Request) -> web.StreamResponse:
    """Begin an answer, and never end it."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"x")
    await asyncio.Event().wait()
    return response


def answering(body: bytes, status: int = 200) -> Handler:
    """Return a handler with this answer."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status)

    return answer


def test_state_arrives_unchanged() -> None:
    """204 means that there is none."""
    for state in (b"\x00state\xff", b""):
        assert state == fetched(answering(asyncio.run(sent(state))))
    assert fetched(answering(b"", status=204)) is None


async def test_each_connection_has_the_token_and_the_certificates_of_its_time(
    tmp_path: Path,
) -> None:
    authority, file = Authority(tmp_path / "ca"), tmp_path / "token"
    certificate, key = authority.issue("b")
    certificates = Certificates(
        TlsFiles(certificate=certificate, key=key, ca=authority.ca), broker="b", host=HOST
    )
    contexts = [certificates.client, certificates.client]
    state, tokens = b"0123456789" * 10, []

    async def breaks_once(request: web.Request) -> web.StreamResponse:
        tokens.append(request.headers["Authorization"])
        data = await sent(state, offset=int(request.query["offset"]))
        response = web.StreamResponse()
        await response.prepare(request)
        if len(tokens) == 1:
            file.write_text("second")
            await response.write(data[:60])
            assert request.transport is not None, "it is connected"
            request.transport.abort()
        else:
            await response.write(data)
        return response

    file.write_text("first")
    async with served(breaks_once, tls=certificates.server) as peer:
        request = over_http(peer, BUNDLE, token=OwnToken(file.as_uri()), tls=contexts.pop)
        assert state == await Arrival(peer, BUNDLE, request).whole()
    assert (["Bearer first", "Bearer second"], []) == (tokens, contexts)


async def test_a_token_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    async with served(answering(b"")) as peer:
        with pytest.raises(PeerError, match=r"the token file .* cannot be read"):
            await Arrival(
                peer, BUNDLE, over_http(peer, BUNDLE, token=OwnToken((tmp_path / "none").as_uri()))
            ).whole()


@pytest.mark.parametrize(
    "handler", [endless, answering(b"x" * 2_000)], ids=["endless", "known length"]
)
def test_state_that_is_too_large_for_one_value_is_refused(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATE_BYTES_MAX", 1_000)
    with pytest.raises(PeerError, match="larger than 1000 bytes, and must be streamed"):
        fetched(handler)


def test_a_silent_source_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_MS", 50)
    with pytest.raises(PeerError, match="TimeoutError"):
        fetched(silent)


def test_a_slow_source_that_sends_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole takes longer than the deadline."""
    monkeypatch.setattr(module, "SILENCE_MS", 1_000)

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b"a", b"b", b"c", b"d", (await sent(b"abcd"))[-CHECKSUM_BYTES:]):
            await asyncio.sleep(0.25)
            await response.write(piece)
        return response

    assert b"abcd" == fetched(slow)


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (answering(b"no\xff" * 10_000, status=503), "it answers 503: no"),
        (answering(b"", status=307), "it answers 307"),
    ],
    ids=["refusal", "redirect"],
)
def test_a_refusal_is_quoted_in_short(handler: Handler, problem: str) -> None:
    """Redirects are not followed."""
    with pytest.raises(PeerError, match=problem) as caught:
        fetched(handler)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "addresses",
    [{}, {"http": "http://127.0.0.1:1"}, {"http": "no address"}],
    ids=["none", "nobody", "nonsense"],
)
def test_an_unreachable_owner_is_named(addresses: dict[str, str]) -> None:
    with pytest.raises(PeerError, match="broker b does not hand over"):
        asyncio.run(arrival_over_http(Peer(broker="b", addresses=addresses)).whole())
