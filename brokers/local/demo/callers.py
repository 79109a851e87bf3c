"""Call the counter service: follow redirects, retry unknown outcomes, and record every attempt.

`tests/judge/README.md` defines what callers may do without a false alarm of the checker, which shares no code with them.
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

# A broker that is stopped in the middle of a call holds its caller for this long. Then the caller asks another broker.
ATTEMPT_S: Final = 2.0

# Pause between attempts. A dead broker refuses at once, and would otherwise be asked a thousand times a second.
_BETWEEN_ATTEMPTS_S: Final = 0.025

# Limit of the pause that a refusal may request (Retry-After).
_RETRY_AFTER_S_MAX: Final = 1.0

# Limit of redirects in a row. Brokers whose views differ by a record may redirect a caller to and fro.
_REDIRECTS_MAX: Final = 8

# Limit of attempts at one request, and of requests for one increment. At 25 ms and more each this outlasts any outage.
_ATTEMPTS_MAX: Final = 10_000

_ACKNOWLEDGED: Final = 200
_REDIRECTED: Final = 307
_FAILED: Final = 500
_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one attempt. All fields are None if the connection broke. `location` is the target of a redirect."""

    status: int | None = None
    broker: str | None = None
    token: int | None = None
    value: int | None = None
    location: str | None = None
    retry_after_s: float | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether the answer promises that the request was not applied and will not be."""
        return self.status is not None and (self.status == _UNAVAILABLE or 400 <= self.status < 500)  # noqa: PLR2004 - HTTP's classes


class History:
    """A file with one line per attempt, in the format that the checker reads."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises OSError if that fails or the file exists: a killed writer may have left half a line in it."""
        os.mknod(path, private_files.MODE)
        self._file = path.open("ab")
        self._lines: list[bytes] = []

    def note(self, *, request: str, key: str, call_ns: int, return_ns: int, answer: Answer, caller: str, target: str) -> None:
        """Keep one attempt in memory until the next `flush`."""
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
        """Write the attempts kept in memory."""
        lines, self._lines = self._lines, []
        self._file.write(b"".join(lines))
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        self._file.close()


@dataclass(slots=True, kw_only=True)
class Tally:
    """What callers saw so far. A pause is the time from a call's first attempt to its acknowledgement."""

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
        """Note a call that took `pause_ms`, including retries."""
        self.longest_pause_ms = max(self.longest_pause_ms, pause_ms)
        self.recent_pause_ms = max(self.recent_pause_ms, pause_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How callers reach brokers: an HTTP session, the brokers' base URLs, the history and the tally."""

    http: aiohttp.ClientSession
    brokers: Sequence[str]
    history: History
    tally: Tally

    async def attempt(self, key: str, *, broker: str, request: str, caller: str) -> Answer:
        """Ask `broker` (a base URL) once to increment `key`, and record the answer, even if the caller is stopped meanwhile."""
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
    """Parse an acknowledgement. One that cannot be read counts as an unknown outcome."""
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
    """Calls the known owner of one key, and retries each call until it is acknowledged.

    * It follows redirects.
    * It retries an unknown outcome with the same request id.
    * After a refusal it makes a new request.
    * After a broken connection or a refusal it asks another broker next.
    * It pauses from the second useless attempt on.
    """

    line: Line
    name: str
    key: str
    random: Random
    owner: str | None = None

    async def increment(self) -> None:
        """Increment the key once. Every attempt has a deadline; there are at most `_ATTEMPTS_MAX`."""
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
        """Return the broker to ask after `target` was of no use. A broker that answers 500 is alive, and best knows where the key is."""
        if answer.status is not None and answer.status >= _FAILED and not answer.is_refusal:
            return target
        others = [broker for broker in self.line.brokers if broker != target]
        return self.random.choice(others or self.line.brokers)


@dataclass(slots=True, kw_only=True)
class StubbornCaller:
    """Calls any past owner of one key once, follows no redirect, and retries nothing.

    Former owners thus get work, and a call that was held by a stopped broker is still new when the broker resumes.
    """

    line: Line
    name: str
    key: str
    random: Random
    owners: dict[str, None] = field(default_factory=dict)

    async def increment(self) -> None:
        """Call one of the known owners once; any broker while none is known."""
        target = self.random.choice(list(self.owners or self.line.brokers))
        answer = await self.line.attempt(self.key, broker=target, request=uuid.uuid4().hex, caller=self.name)
        owner = target if answer.status == _ACKNOWLEDGED else answer.location
        if owner is not None:
            self.owners[owner] = None
