"""Stream state of any size from the former owner of a bundle to its next owner.

* The body of the answer is the state from the requested offset on, then a checksum of the whole
  state. So the next owner can continue after a broken connection, and knows at the end that both
  parts belong together.
* Each side holds a few pieces at a time: the connection slows down the sender when the receiver is
  slow.
* The deadline measures silence, not the whole.

`Spilled` keeps handovers that are too large for a record until the next owner fetches them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b, sha256
from http import HTTPStatus
from typing import Final

import aiohttp
import orjson

from equipoise.brokers.runtime.service import Peer, State, own_http
from equipoise.brokers.security.own_token import NO_TOKEN, OwnToken
from equipoise.brokers.security.tls import ClientTls
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX
from equipoise.channel.system.clocks import Deadline

_logger: Final = logging.getLogger(__name__)

STATE_TYPE: Final = "application/vnd.equipoise.state"
"""The media type of a body that ends with a checksum."""

CHECKSUM_BYTES: Final = 32

PIECE_BYTES: Final = 256 * 1024
"""The largest piece on its way. The event loop does other work between two pieces: the checksum of
one takes 0.15 ms."""

SILENCE_MS: Final = 10_000
"""How long a source may send nothing, and its service yield nothing, before the stream ends with an
error."""

STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of a state that is fetched as one value, against mistakes. Larger state is streamed."""

# How long a broker that ends waits for the first request of a next owner, which comes within
# milliseconds.
_FIRST_REQUEST_MS: Final = 500

# A broken connection is replaced once. A source that breaks it twice is about to end.
_CONNECTIONS_MAX: Final = 2

# Bytes of an error response that are quoted.
_PROBLEM_BYTES_MAX: Final = 1_024

# Intervals of what a running stream reports: to the agent, far below the shortest sensible
# `open_ms`, and on the log.
_REPORT_NS: Final = 500_000_000
_LINES_NS: Final = 2_000_000_000

# A note's beginning. A handover that begins so is spilled too, at any size.
_MARK: Final = b"\x00equipoise:handover\x00"

_DIGEST_BYTES: Final = 16

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of all handovers together that one broker keeps for next owners."""

# The next owner asks within milliseconds, or gives up with its opening.
_KEPT_MS: Final = 30_000

Pieces = AsyncGenerator[bytes, None]
Request = Callable[[int], AbstractAsyncContextManager[AsyncIterator[bytes] | None]]
"""Ask the source for the state from an offset on, which ends with a checksum. None: it has no
state."""


# --- the former owner ---


async def pieces_of(state: State, *, what: str) -> Pieces:
    """Yield a state in pieces of at most `PIECE_BYTES`. Raise `DeadlineExceeded` with `what` if it
    pauses for `SILENCE_MS`.
    """
    if isinstance(state, bytes):
        for piece in _cut(state):
            yield piece
        return
    try:
        while (
            chunk := await Deadline.after(timeout_ms=SILENCE_MS).wait(anext(state, None), what=what)
        ) is not None:
            for piece in _cut(chunk):
                yield piece
    finally:
        if isinstance(state, AsyncGenerator):
            await state.aclose()


def _cut(chunk: bytes) -> tuple[bytes, ...]:
    return tuple(chunk[start : start + PIECE_BYTES] for start in range(0, len(chunk), PIECE_BYTES))


async def with_checksum(pieces: AsyncIterator[bytes], *, offset: int) -> Pieces:
    """Yield the state from `offset` on, then its checksum. Raise `PeerError` if the state is
    shorter than `offset`.
    """
    checksum, passed = sha256(), 0
    async for piece in pieces:
        checksum.update(piece)
        rest = piece[max(offset - passed, 0) :]
        passed += len(piece)
        if rest:
            yield rest
        # Neither the service nor a fast connection need give way. Renewals must.
        await asyncio.sleep(0)
    if passed < offset:
        raise PeerError(
            f"the state has {passed} bytes, and {offset} were received before; open the bundle"
            " again"
        )
    yield checksum.digest()


class Departures:
    """The states that next owners are to stream, or are streaming, from this broker."""

    def __init__(self, sent: Callable[[int], None]) -> None:
        """`sent` counts the bytes that were sent."""
        self._sent = sent
        self._awaited: dict[str, asyncio.TimerHandle] = {}
        self._streams = 0
        self._changed = asyncio.Event()

    def wait_for(self, bundle: str) -> None:
        """Note that the next owner of a bundle may ask for its state now."""
        self._forget(bundle)
        self._awaited[bundle] = asyncio.get_running_loop().call_later(
            _FIRST_REQUEST_MS / 1_000, self._forget, bundle
        )

    async def sending(self, bundle: str, state: State, offset: int | None) -> Pieces:
        """Yield the state of a bundle from `offset` on, then its checksum; without `offset` the
        state alone.
        """
        self._streams += 1
        self._forget(bundle)
        is_sent = False
        try:
            pieces = pieces_of(state, what=f"the service giving the state of {bundle}")
            async with aclosing(
                pieces if offset is None else with_checksum(pieces, offset=offset)
            ) as body:
                async for piece in body:
                    self._sent(len(piece))
                    yield piece
            is_sent = True
        finally:
            self._streams -= 1
            if not is_sent:
                self.wait_for(bundle)  # The next owner asks again.
            self._changed.set()

    async def all_ended(self, *, timeout_ms: int) -> None:
        """Wait until no next owner streams from this broker, or is expected to begin, for at most
        `timeout_ms`.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while self._awaited or self._streams:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            if self._streams:
                _logger.warning(
                    "states not sent in time: next owners still stream %d from this broker, which"
                    " waits no longer; raise drain_ms",
                    self._streams,
                )

    def _forget(self, bundle: str) -> None:
        expiry = self._awaited.pop(bundle, None)
        if expiry is not None:
            expiry.cancel()
        self._changed.set()


# --- the next owner ---


class Checked:
    """A state as it arrives. The end of what came is held back, because it may be the checksum."""

    def __init__(self) -> None:
        self.received = 0
        self._checksum = sha256()
        self._held = b""

    def begin(self) -> None:
        """Note that the next data continues at `received`."""
        self._held = b""

    def take(self, data: bytes) -> bytes:
        """Return the part of the data that is certainly state."""
        data = self._held + data
        piece, self._held = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
        self._checksum.update(piece)
        self.received += len(piece)
        return piece

    @property
    def is_whole(self) -> bool:
        """Return whether what was held back is the checksum of what was received."""
        return self._held == self._checksum.digest()


class Progress:
    """Report a stream while it runs: each piece to a metric, and now and then to the agent and on
    the log.
    """

    def __init__(
        self,
        bundle: str,
        source: str,
        *,
        received: Callable[[int], None],
        goes_on: Callable[[], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`received` counts bytes; `goes_on` is called about twice a second; `now_ns` is a clock
        that only rises.
        """
        self._fields = {"bundle": bundle, "source": source}
        self._received = received
        self._goes_on = goes_on
        self._now_ns = now_ns
        self._began_ns = self._report_at_ns = now_ns()
        self._line_at_ns = self._began_ns + _LINES_NS
        self._bytes = 0

    def __call__(self, size: int) -> None:
        """Note that a piece of `size` bytes has come."""
        now_ns = self._now_ns()
        self._bytes += size
        self._received(size)
        if now_ns >= self._report_at_ns:
            self._report_at_ns = now_ns + _REPORT_NS
            self._goes_on()
        if now_ns >= self._line_at_ns:
            self._line_at_ns = now_ns + _LINES_NS
            self._write("receiving the state of a bundle", now_ns)

    def ended(self) -> None:
        """Note that the whole state has come."""
        now_ns = self._now_ns()
        if now_ns - self._began_ns >= _LINES_NS:
            self._write("received the state of a bundle", now_ns)

    def _write(self, event: str, now_ns: int) -> None:
        _logger.info(
            event,
            extra={
                **self._fields,
                "bytes": self._bytes,
                "took_ms": (now_ns - self._began_ns) // 1_000_000,
            },
        )


class Arrival:
    """The state of one bundle at its former owner."""

    def __init__(
        self,
        source: Peer,
        bundle: str,
        request: Request,
        *,
        progress: Progress | None = None,
    ) -> None:
        """`request` asks for the state, once for each connection: see `over_http`."""
        self._source = source
        self._bundle = bundle
        self._request = request
        self._progress: Callable[[int], None] = progress or (lambda _: None)
        self._ended = progress.ended if progress is not None else lambda: None

    async def stream(self) -> Pieces:
        """Yield the state, piece by piece; nothing if the source has none, one empty piece if it is
        empty.

        Return only once the checksum matches. Continue after one broken connection. Raise
        `PeerError` if the source cannot be asked, is silent for `SILENCE_MS`, breaks the connection
        again, or sends something else than its checksum says.
        """
        checked = Checked()
        for connection in range(_CONNECTIONS_MAX):
            try:
                async with self._request(checked.received) as body:
                    if body is None and not checked.received:
                        return
                    if body is None:
                        raise self._unavailable("it no longer has the state")
                    checked.begin()
                    async for data in body:
                        piece = checked.take(data)
                        self._progress(len(piece))
                        if piece:
                            yield piece
                break
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                # ValueError: an invalid address.
                if connection == _CONNECTIONS_MAX - 1 or not _is_broken(error):
                    raise self._unavailable(f"{type(error).__name__}: {error}") from error
        if not checked.is_whole:
            raise self._unavailable("what came does not match its checksum")
        self._ended()
        if not checked.received:
            yield b""

    async def whole(self) -> bytes | None:
        """Return the state as one value; None if the source has none. Raise `PeerError` as
        `stream`, and above `STATE_BYTES_MAX`.
        """
        state = None
        async with aclosing(self.stream()) as pieces:
            async for piece in pieces:
                state = bytearray() if state is None else state
                state += piece
                if len(state) > STATE_BYTES_MAX:
                    raise self._unavailable(
                        f"it is larger than {STATE_BYTES_MAX} bytes, and must be streamed"
                        " (Ownership.stream)"
                    )
        return None if state is None else bytes(state)

    def _unavailable(self, problem: str) -> PeerError:
        return _unavailable(self._bundle, self._source, problem)


def _unavailable(bundle: str, source: Peer, problem: str) -> PeerError:
    return PeerError(
        f"broker {source.broker} does not hand over the state of {bundle}: {problem}; rebuild it"
        " from the store"
    )


def _is_broken(error: Exception) -> bool:
    """Return whether a connection broke. A silent source, or a wrong address, stays so."""
    return isinstance(error, aiohttp.ClientError) and not isinstance(
        error, TimeoutError | ValueError
    )


def over_http(
    source: Peer,
    bundle: str,
    digest: str | None = None,
    *,
    token: OwnToken = NO_TOKEN,
    tls: Callable[[], ClientTls] = lambda: True,
) -> Request:
    """Ask the HTTP of `source` for the state of `bundle`; with `digest`, for the handover kept
    under it.

    `token` is that of this broker, and `tls` returns what verifies an https:// address. Both are
    read anew for each connection.
    """

    @asynccontextmanager
    async def request(offset: int) -> AsyncIterator[AsyncIterator[bytes] | None]:
        address = own_http(source.addresses)
        if address is None:
            raise _unavailable(bundle, source, "it advertises no HTTP address")
        query = {"offset": str(offset)} | ({} if digest is None else {"digest": digest})
        # `sock_read` measures silence. It stands still while this side reads nothing.
        silence = aiohttp.ClientTimeout(
            total=None, sock_connect=SILENCE_MS / 1_000, sock_read=SILENCE_MS / 1_000
        )
        async with (
            aiohttp.ClientSession(timeout=silence) as session,
            session.get(
                f"{address}/v1/handover/{bundle}",
                params=query,
                headers=token.headers(address),
                allow_redirects=False,
                ssl=tls(),
            ) as response,
        ):
            if response.status == HTTPStatus.NO_CONTENT:
                yield None
                return
            if response.status != HTTPStatus.OK:
                problem = (await response.content.read(_PROBLEM_BYTES_MAX)).decode(
                    "utf-8", "replace"
                )
                raise _unavailable(bundle, source, f"it answers {response.status}: {problem}")
            yield response.content.iter_chunked(PIECE_BYTES)

    return request


# --- handovers that are too large for a record ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a record carries instead: the `digest` to fetch the handover by, or why it is lost."""

    digest: str | None = None
    problem: str | None = None

    def encode(self) -> bytes:
        """Return the note as bytes for the `handover` of a record."""
        problem = (
            None
            if self.problem is None
            else self.problem[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()
        )
        return _MARK + orjson.dumps({"digest": self.digest, "problem": problem})


def is_like_a_note(handover: bytes) -> bool:
    """Return whether a handover looks like a note."""
    return handover.startswith(_MARK)


def note_in(handover: bytes | None) -> Note | None:
    """Return the note in a record's handover; None if it is a handover itself."""
    if handover is None or not is_like_a_note(handover):
        return None
    try:
        read = orjson.loads(handover.removeprefix(_MARK))
        digest, problem = read["digest"], read["problem"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return Note(problem="its note on the record cannot be read")
    return Note(
        digest=digest if isinstance(digest, str) else None,
        problem=problem if isinstance(problem, str) else None,
    )


def digest_of(handover: bytes) -> str:
    """Return the digest by which the next owner requests a handover and checks it."""
    return blake2b(handover, digest_size=_DIGEST_BYTES).hexdigest()


class Spilled:
    """The handovers kept for next owners, by digest, up to `bytes_max` together."""

    def __init__(self, *, bytes_max: int = KEPT_BYTES_MAX, kept_ms: int = _KEPT_MS) -> None:
        """Keep each for at most `kept_ms`. Fetched ones make room for others."""
        self._bytes_max = bytes_max
        self._kept_ms = kept_ms
        self._kept: dict[str, bytes] = {}
        self._fetched: dict[str, None] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._changed = asyncio.Event()

    def keep(self, handover: bytes) -> str | None:
        """Keep a handover. Return its digest, or None if there is no room."""
        digest = digest_of(handover)
        self._forget(digest)
        while self._fetched and self._room() < len(handover):
            self._forget(next(iter(self._fetched)))
        if self._room() < len(handover):
            return None
        self._kept[digest] = handover
        self._expiries[digest] = asyncio.get_running_loop().call_later(
            self._kept_ms / 1_000, self._forget, digest
        )
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return the handover with this digest and mark it as fetched; None if it is not kept
        here.
        """
        handover = self._kept.get(digest)
        if handover is not None:
            self._fetched[digest] = None
            self._changed.set()
        return handover

    async def all_fetched(self, *, timeout_ms: int) -> None:
        """Wait until each has been fetched or has expired, for at most `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while self._kept.keys() - self._fetched.keys():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def _room(self) -> int:
        return self._bytes_max - sum(len(handover) for handover in self._kept.values())

    def _forget(self, digest: str) -> None:
        self._kept.pop(digest, None)
        self._fetched.pop(digest, None)
        expiry = self._expiries.pop(digest, None)
        if expiry is not None:
            expiry.cancel()
        self._changed.set()
