"""Send a request to the owner of a key over a pool of connections, again and again until there is
an answer, within one deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import Any, Final, Protocol

import aiohttp
import orjson
from yarl import URL

from equipoise.brokers.client.attempts import (
    ADDRESSES_MAX,
    OUTCOME,
    Breakers,
    Call,
    RequestOutcome,
    may_repeat,
    outcome_of,
    pause_ms,
    peer_in,
)
from equipoise.brokers.errors import BrokerUnreachable
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.security.tls import client_context_of_environment
from equipoise.channel.core.errors import CallerError, DeadlineExceeded, InvalidName, Overloaded
from equipoise.channel.system.clocks import Deadline, now_ms

UNANSWERED_MAX: Final = 128
"""Requests at a time to one address. At 5 ms each they are 25,000/s, more than one program answers.
Further ones wait in order, and go to the owner of that time. So a program that hangs holds few
connections, and gets no more than it can answer before their callers give up."""

QUEUED_MAX: Final = 10_000
"""Requests that wait for a place, at all addresses: about 10 KiB each, 100 MB in all."""

IDLE_S: Final = 4.0
"""How long unused connections are kept: less than the 5 s after which uvicorn closes one."""

CONNECT_S_MAX: Final = 2.0

# How often a request that waits for a breaker looks whether the bundle has moved.
_LOOK_MS: Final = 100

# The request was certainly not sent.
_NOT_SENT: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)

# The bound of the whole attempt ends after that of the connection, which says how far it got.
_LATER_S: Final = 0.05

# Characters of an answer in an error.
_TEXT_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer over HTTP, read to its end. The names of `headers` are found in any case."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes

    def __repr__(self) -> str:
        return f"<Response {self.status_code}, {len(self.content)} bytes>"

    @property
    def text(self) -> str:
        """Return the body as text, in the encoding of its `Content-Type`, by default UTF-8. What
        cannot be decoded is replaced.
        """
        message = Message()
        message["Content-Type"] = self.headers.get("Content-Type", "")
        try:
            return self.content.decode(message.get_content_charset("utf-8"), "replace")
        except LookupError:  # There is no such encoding.
            return self.content.decode("utf-8", "replace")

    def json(self) -> Any:  # noqa: ANN401 - JSON has any type
        """Return what the body is in JSON. Raises `ValueError` if it is something else."""
        return orjson.loads(self.content)


class Owners(Protocol):
    """Knows the owners of keys: see `brokers.client.client.Client`."""

    async def owner(self, namespace: str, key: str, *, timeout_ms: int) -> Peer:
        """Return the broker that serves a key."""
        ...

    def misrouted(self, namespace: str, key: str, seen: Peer) -> None:
        """Report that a broker does not serve a key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """An attempt without an answer of the program.

    * `answer`: what a worker answered in its place, if anything.
    * `is_misrouted`: the broker does not serve the key, or takes no connections.
    * `owner`: the address of the owner that the broker named.
    """

    outcome: RequestOutcome
    problem: str
    answer: Response | None = None
    is_misrouted: bool = False
    owner: str | None = None


Send = Callable[[str, URL, Mapping[str, str], bytes | None, float], Awaitable[Response]]
"""Sends one request: method, address, headers, body, and seconds to connect. Raises as aiohttp
does."""


class Calls:
    """The requests of one client."""

    def __init__(self, owners: Owners, *, send: Send | None = None) -> None:
        """`send` replaces the network in tests. Raise `InvalidConfig` for certificates in the
        environment that cannot be used.
        """
        self._owners = owners
        self._breakers = Breakers()
        self._tls = client_context_of_environment()
        self._session: aiohttp.ClientSession | None = None
        self._send = send or self._over_network
        self._places: dict[str, asyncio.Semaphore] = {}  # By address.
        self._queued = 0

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def request(self, call: Call, *, timeout_ms: int) -> Response:
        """See `Client.request`."""
        if not call.path.startswith("/") or not call.path.isprintable():
            raise InvalidName(
                what="path of a request",
                name=call.path,
                expected="a path that begins with a slash, and is printable",
            )
        deadline = Deadline.after(timeout_ms=timeout_ms)
        failures, problem = 0, ""
        named: Peer | None = None
        while True:
            peer = named or await self._owner(call, deadline, problem)
            address = peer.http_url.rstrip("/")
            spared_ms = self._breakers.wait_ms(address, now_ms())
            if spared_ms:
                named, problem = None, problem or f"{address} took no connection lately"
                await _pause(min(spared_ms, _LOOK_MS), deadline)
                continue
            places = self._places_at(address)
            has_waited = await self._enter(places, call, address, deadline)
            try:
                if has_waited and named is None and await self._has_moved(call, peer):
                    continue
                result = await self._attempt(call, address, deadline)
            finally:
                places.release()
            if isinstance(result, Response):
                return result
            if not may_repeat(result.outcome, is_idempotent=call.is_idempotent):
                if result.answer is not None:
                    return result.answer
                raise BrokerUnreachable(
                    broker=peer.broker, address=address, problem=result.problem, in_doubt=True
                )
            problem = f"the last attempt, at {address}: {result.problem}"
            if result.is_misrouted and named is None:
                self._owners.misrouted(call.namespace, call.key, peer)
            if result.owner is not None and named is None:
                named = Peer(broker=f"that {peer.broker} named", addresses={"http": result.owner})
                continue
            # Redirects are followed once: two brokers with old views could name each other.
            named = None
            failures += 1
            # Jitter, no secret.
            await _pause(pause_ms(failures, random.random()), deadline)  # noqa: S311

    async def _owner(self, call: Call, deadline: Deadline, problem: str) -> Peer:
        if problem:
            deadline.check(f"{call} ({problem})")
        try:
            return await self._owners.owner(
                call.namespace, call.key, timeout_ms=deadline.remaining_ms()
            )
        except DeadlineExceeded as error:
            since = f"{problem}; then it waited for " if problem else ""
            raise deadline.exceeded(f"{call} ({since}{error.what})") from error

    def _places_at(self, address: str) -> asyncio.Semaphore:
        places = self._places.get(address)
        if places is None:
            if len(self._places) >= ADDRESSES_MAX:
                del self._places[next(iter(self._places))]
            places = self._places[address] = asyncio.Semaphore(UNANSWERED_MAX)
        return places

    async def _enter(
        self, places: asyncio.Semaphore, call: Call, address: str, deadline: Deadline
    ) -> bool:
        """Take a place at an address, and return whether that took time. Raise `Overloaded` if too
        many wait.
        """
        if not places.locked():
            return not await places.acquire()
        if self._queued >= QUEUED_MAX:
            raise Overloaded(what="the queue of requests of this client", limit=QUEUED_MAX)
        self._queued += 1
        try:
            return await deadline.wait(
                places.acquire(),
                what=f"{call} ({UNANSWERED_MAX} requests to {address} wait for answers)",
            )
        finally:
            self._queued -= 1

    async def _has_moved(self, call: Call, peer: Peer) -> bool:
        try:
            return peer != await self._owners.owner(call.namespace, call.key, timeout_ms=0)
        except DeadlineExceeded:
            return True

    async def _attempt(self, call: Call, address: str, deadline: Deadline) -> Response | _Failure:
        """Send the request once. Return the answer of the program, or what is known without one."""
        left_s = deadline.remaining_ms() / 1_000
        url = URL(address + call.path)  # Encodes what is not.
        headers, body = call.headers, call.content
        if call.json is not None:
            body = orjson.dumps(call.json)
            headers = {"Content-Type": "application/json", **headers}
        try:
            async with asyncio.timeout(left_s + _LATER_S):
                answer = await self._send(
                    call.method, url, headers, body, min(CONNECT_S_MAX, left_s)
                )
        except _NOT_SENT as error:
            is_open = self._breakers.failed(address, now_ms())
            return _Failure(
                outcome=RequestOutcome.NOT_STARTED, problem=_problem(error), is_misrouted=is_open
            )
        except ValueError as error:
            raise CallerError(
                f"{call.method} {call.path} cannot be sent: {error}; correct the headers"
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            self._breakers.succeeded(address)
            return _Failure(outcome=RequestOutcome.UNKNOWN, problem=_problem(error))
        self._breakers.succeeded(address)
        owner = peer_in(answer.headers.get("Location", ""), url.raw_path_qs)
        outcome = outcome_of(
            answer.status_code, answer.headers.get(OUTCOME), is_to_peer=owner not in (None, address)
        )
        if outcome is None:
            return answer
        return _Failure(
            outcome=outcome,
            problem=f"it answered {answer.status_code} {answer.text[:_TEXT_MAX]}".rstrip(),
            answer=answer,
            is_misrouted=answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR,
            owner=owner
            if owner is None or owner.startswith("https:") or not address.startswith("https:")
            else None,
        )

    async def _over_network(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        connect_s: float,
    ) -> Response:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # `_place` limits them.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
                # Requests of different callers share the session.
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Content-Type",),
            )
            # Else aiohttp repeats a GET or PUT when its connection breaks. Only the caller knows
            # whether that is right.
            self._session._retry_connection = False  # noqa: SLF001 - aiohttp has no setting for it
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
        async with self._session.request(
            method,
            url,
            headers=headers,
            data=body,
            allow_redirects=False,
            ssl=self._tls,
            timeout=timeout,
        ) as response:
            return Response(
                status_code=response.status, headers=response.headers, content=await response.read()
            )


async def _pause(ms: int, deadline: Deadline) -> None:
    await asyncio.sleep(min(ms, deadline.remaining_ms()) / 1_000)


def _problem(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return (
            "it took no connection in time"
            if isinstance(error, aiohttp.ConnectionTimeoutError)
            else "it did not answer in time"
        )
    return str(error) or type(error).__name__
