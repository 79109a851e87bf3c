"""Keep handovers that are too large for a record, and fetch them from the former owner's broker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from typing import Final

import aiohttp
import orjson

from equipoise.brokers.runtime.service import Peer, own_http
from equipoise.brokers.security.own_token import NO_TOKEN, OwnToken
from equipoise.brokers.security.tls import ClientTls
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX

# A note's beginning. A handover that begins so is spilled too, at any size.
_MARK: Final = b"\x00equipoise:handover\x00"

_DIGEST_BYTES: Final = 16

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of all handovers together that one broker keeps for next owners."""

# The next owner asks within milliseconds, or gives up with its opening.
_KEPT_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a record carries instead: the `digest` to fetch the handover by, or why it is lost."""

    digest: str | None = None
    problem: str | None = None

    def encode(self) -> bytes:
        """Return the note as bytes for the `handover` of a record."""
        problem = None if self.problem is None else self.problem[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()
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
    return Note(digest=digest if isinstance(digest, str) else None, problem=problem if isinstance(problem, str) else None)


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
        self._expiries[digest] = asyncio.get_running_loop().call_later(self._kept_ms / 1_000, self._forget, digest)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return the handover with this digest and mark it as fetched; None if it is not kept here."""
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


# As long as the former owner's service may take. The opening has its own deadline.
_TIMEOUT_S: Final = 10.0

STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of a bundle's state, against mistakes. Larger state belongs in a store."""

# Bytes of an error response that are quoted.
_PROBLEM_BYTES_MAX: Final = 1_024

_READ_BYTES: Final = 64 * 1024


def _unavailable(bundle: str, source: Peer, problem: str) -> PeerError:
    return PeerError(f"broker {source.broker} does not hand over the state of {bundle}: {problem}; rebuild it from the store")


async def fetch_from(
    source: Peer, bundle: str, digest: str | None = None, *, token: OwnToken = NO_TOKEN, tls: ClientTls = True
) -> bytes | None:
    """Return the state of `bundle` that `source` still holds; None if it has none. `token` is that of this broker.

    With `digest`, fetch the handover kept under it. `tls` verifies an https:// address. Raise `PeerError` if `source` cannot be asked, is
    too slow, or sends more than `STATE_BYTES_MAX`.
    """
    address = own_http(source.addresses)
    if address is None:
        raise _unavailable(bundle, source, "it advertises no HTTP address")
    query = "" if digest is None else f"?digest={digest}"
    try:
        # aiohttp's own timeout restarts with each redirect, and ends before the session is closed.
        async with (
            asyncio.timeout(_TIMEOUT_S),
            aiohttp.ClientSession() as session,
            session.get(f"{address}/v1/handover/{bundle}{query}", headers=token.headers(), allow_redirects=False, ssl=tls) as response,
        ):
            if response.status == HTTPStatus.NO_CONTENT:
                return None
            if response.status != HTTPStatus.OK:
                body = await _read(response, _PROBLEM_BYTES_MAX)
                problem = f"it answers {response.status}: {body[:_PROBLEM_BYTES_MAX].decode('utf-8', 'replace')}"
                raise _unavailable(bundle, source, problem)
            state = await _read(response, STATE_BYTES_MAX)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: an invalid address.
        raise _unavailable(bundle, source, f"{type(error).__name__}: {error}") from error
    if len(state) > STATE_BYTES_MAX:
        raise _unavailable(bundle, source, f"it is larger than {STATE_BYTES_MAX} bytes")
    return state


async def _read(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Read at most slightly more than `bytes_max`. The length in the header is not trusted."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(_READ_BYTES):
        body += chunk
        if len(body) > bytes_max:
            break
    return bytes(body)
