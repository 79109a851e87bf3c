"""Keep handovers that are too large for a record until the next owner fetches them (`state_stream`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import orjson

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
