"""Callers of the counter service: they follow redirects, retry what they do not know the outcome of, and write down everything.

May live here: what a well-behaved client of a fenced service does, and the stubborn one that keeps calling former owners.
What callers may do without the judge raising a false alarm is said in `tests/judge/README.md`; they share no code with it.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from equipoise.channel.system import private_files
from equipoise.channel.system.boot_clock import boot_ns

# A broker that was stopped inside a call keeps its callers for this long; then another one is asked.
ATTEMPT_S: Final = 2.0

# Between two attempts: a broker that is gone refuses a connection at once, and would be asked a thousand times a second.
_BETWEEN_ATTEMPTS_S: Final = 0.025

# A refusal may name its own pause (Retry-After); longer than this a caller of the demo does not wait.
_RETRY_AFTER_S_MAX: Final = 1.0

# Redirects followed in a row: brokers whose views differ by a hop of the log send a caller to and fro.
_REDIRECTS_MAX: Final = 8

# Attempts at one request, and requests for one increment: at 25 ms and more each, far longer than any outage lasts.
_ATTEMPTS_MAX: Final = 10_000

_ACKNOWLEDGED: Final = 200
_REDIRECTED: Final = 307
_FAILED: Final = 500
_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back of one attempt; all None where the connection broke. `location` is where a redirect points."""

    status: int | None = None
    broker: str | None = None
    token: int | None = None
    value: int | None = None
    location: str | None = None
    retry_after_s: float | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether it promises that nothing was or will be applied."""
        return self.status is not None and (self.status == _UNAVAILABLE or 400 <= self.status < 500)  # noqa: PLR2004 - HTTP's classes


class History:
    """A file with one line for each attempt, in the format that the judge reads."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be made; it must be a new one, since a killed writer may leave half a line."""
        os.mknod(path, private_files.MODE)
        self._file = path.open("ab")
        self._lines: list[bytes] = []

    def note(self, *, request: str, key: str, call_ns: int, return_ns: int, answer: Answer, caller: str, target: str) -> None:
        """Remember one attempt until the next `flush`."""
        line = {
            "request": request,
            "key": key,
            "call_ns": call_ns,
            "return_ns": return_ns,
            "status": answer.status,
            "broker": answer.broker,
            "token": answer.token,
            "value": answer.value,
            "caller": caller,
            "target": target,
        }
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> None:
        """Write what was noted."""
        lines, self._lines = self._lines, []
        self._file.write(b"".join(lines))
        self._file.flush()

    def close(self) -> None:
        """Write the rest, and close."""
        self.flush()
        self._file.close()


@dataclass(slots=True, kw_only=True)
class Tally:
    """What callers saw since they began. A pause is the time from a call's first attempt to its acknowledgement."""

    acknowledged: int = 0
    redirected: int = 0
    refused: int = 0
    unknown: int = 0
    longest_pause_ms: float = 0.0
    recent_pause_ms: float = 0.0

    def count(self, answer: Answer) -> None:
        """Count one attempt by its outcome."""
        if answer.status == _ACKNOWLEDGED:
            self.acknowledged += 1
        elif answer.status == _REDIRECTED:
            self.redirected += 1
        elif answer.is_refusal:
            self.refused += 1
        else:
            self.unknown += 1

    def paused(self, pause_ms: float) -> None:
        """A call that took `pause_ms`, retries included."""
        self.longest_pause_ms = max(self.longest_pause_ms, pause_ms)
        self.recent_pause_ms = max(self.recent_pause_ms, pause_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How callers reach brokers: one HTTP session, the brokers' base URLs, and where attempts are noted."""

    http: aiohttp.ClientSession
    brokers: Sequence[str]
    history: History
    tally: Tally

    async def attempt(self, key: str, *, broker: str, request: str, caller: str) -> Answer:
        """Ask `broker`, a base URL, once to increment `key`, and note what came of it, even if the caller is stopped meanwhile."""
        answer = Answer()
        call_ns = boot_ns()
        try:
            answer = await self._post(f"{broker}/counter/{key}", request)
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass  # The outcome stays unknown.
        finally:
            self.tally.count(answer)
            self.history.note(request=request, key=key, call_ns=call_ns, return_ns=boot_ns(), answer=answer, caller=caller, target=broker)
        return answer

    async def _post(self, url: str, request: str) -> Answer:
        async with self.http.post(url, headers={"X-Request-Id": request}, allow_redirects=False) as response:
            body = await response.read()
            if response.status == _ACKNOWLEDGED:
                return _acknowledged(body)
            return Answer(
                status=response.status,
                location=_base_url(response.headers.get("Location")) if response.status == _REDIRECTED else None,
                retry_after_s=_seconds(response.headers.get("Retry-After")),
            )


def _acknowledged(body: bytes) -> Answer:
    """An acknowledgement that cannot be read is none."""
    try:
        document = orjson.loads(body)
        broker, token, value = document["broker"], document["token"], document["value"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Answer()
    if not (isinstance(broker, str) and type(token) is int and type(value) is int):
        return Answer()
    return Answer(status=_ACKNOWLEDGED, broker=broker, token=token, value=value)


def _base_url(location: str | None) -> str | None:
    parts = urlsplit(location or "")
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme == "http" and parts.netloc else None


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


@dataclass(slots=True, kw_only=True)
class Caller:
    """Calls one key, asks the owner that it knows, and gives up on no call before it is acknowledged.

    The rules: a redirect is followed; an unknown outcome is tried again under the same request id; after a refusal the next
    attempt is a new request. A broker that broke the connection or refused is not the next one asked, and from the second
    that was of no use on a caller pauses.
    """

    line: Line
    name: str
    key: str
    random: Random
    owner: str | None = None

    async def increment(self) -> None:
        """Call until it is acknowledged. Every attempt has a deadline; their number has the bound `_ATTEMPTS_MAX`."""
        began_ns = boot_ns()
        request = uuid.uuid4().hex
        target = self.owner or self.random.choice(self.line.brokers)
        redirects = useless = 0
        for _ in range(_ATTEMPTS_MAX):
            answer = await self.line.attempt(self.key, broker=target, request=request, caller=self.name)
            if answer.status == _ACKNOWLEDGED:
                self.owner = target
                self.line.tally.paused((boot_ns() - began_ns) / 1e6)
                return
            if answer.is_refusal:
                request = uuid.uuid4().hex
            if answer.location is not None and redirects < _REDIRECTS_MAX:
                target, redirects = answer.location, redirects + 1
                continue
            useless += 1
            if useless > 1:
                await asyncio.sleep(min(answer.retry_after_s or _BETWEEN_ATTEMPTS_S, _RETRY_AFTER_S_MAX))
            target, redirects = self._next(target, answer), 0

    def _next(self, target: str, answer: Answer) -> str:
        """Whom to ask after `target` was of no use. One that fails (500) is alive, and knows best where the key has gone."""
        if answer.status is not None and answer.status >= _FAILED and not answer.is_refusal:
            return target
        others = [broker for broker in self.line.brokers if broker != target]
        return self.random.choice(others or self.line.brokers)


@dataclass(slots=True, kw_only=True)
class StubbornCaller:
    """Calls one key at whoever ever owned it, follows no redirect, and tries nothing again.

    So old owners are asked to work, and a call that was caught in a stopped broker is still a new one when it goes on.
    """

    line: Line
    name: str
    key: str
    random: Random
    owners: dict[str, None] = field(default_factory=dict)

    async def increment(self) -> None:
        """Call one of the owners that it ever heard of, once; any broker as long as it has heard of none."""
        target = self.random.choice(list(self.owners or self.line.brokers))
        answer = await self.line.attempt(self.key, broker=target, request=uuid.uuid4().hex, caller=self.name)
        owner = target if answer.status == _ACKNOWLEDGED else answer.location
        if owner is not None:
            self.owners[owner] = None
