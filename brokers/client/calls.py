"""Send a request to the owner of a key over a pool of connections, again and again until there is an answer, within one deadline."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, Protocol

import httpx

from equipoise.brokers.client.attempts import OUTCOME, Breakers, Call, Outcome, may_repeat, outcome_of, pause_ms, peer_in
from equipoise.brokers.errors import BrokerUnreachable
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.security.tls import client_context_of_environment
from equipoise.channel.core.errors import CallerError, DeadlineExceeded, InvalidName, Overloaded
from equipoise.channel.system.deadline import Deadline

CONNECTIONS_MAX: Final = 1_000
"""Connections at a time, to all brokers. A further request waits for one."""

IDLE_CONNECTIONS_MAX: Final = 100
IDLE_S: Final = 4.0
"""Unused connections that are kept, and how long: less than the 5 s after which uvicorn closes one."""

CONNECT_S_MAX: Final = 2.0

# How often a request that waits for a breaker looks whether the bundle has moved.
_LOOK_MS: Final = 100

# The request was certainly not sent.
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)

# The bound of the whole attempt ends after those of its steps, which say how far it got.
_LATER_S: Final = 0.05

# Characters of an answer in an error.
_TEXT_MAX: Final = 200


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

    outcome: Outcome
    problem: str
    answer: httpx.Response | None = None
    is_misrouted: bool = False
    owner: str | None = None


class Calls:
    """The requests of one client."""

    def __init__(self, owners: Owners, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` replaces the network in tests. Raise `InvalidConfig` for certificates in the environment that cannot be used."""
        self._owners = owners
        self._breakers = Breakers()
        self._http = httpx.AsyncClient(
            verify=client_context_of_environment(),
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # Requests of different callers share the client.
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=IDLE_CONNECTIONS_MAX, keepalive_expiry=IDLE_S),
            transport=transport,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def request(self, call: Call, *, timeout_ms: int) -> httpx.Response:
        """See `Client.request`."""
        if not call.path.startswith("/"):
            raise InvalidName(what="path of a request", name=call.path, expected="a path that begins with a slash")
        deadline = Deadline.after(timeout_ms=timeout_ms)
        failures, problem = 0, ""
        named: Peer | None = None
        while True:
            peer = named or await self._owner(call, deadline, problem)
            address = peer.http_url.rstrip("/")
            spared_ms = self._breakers.wait_ms(address, _now_ms())
            if spared_ms:
                named, problem = None, problem or f"{address} took no connection lately"
                await _pause(min(spared_ms, _LOOK_MS), deadline)
                continue
            result = await self._attempt(call, address, deadline)
            if isinstance(result, httpx.Response):
                return result
            if not may_repeat(result.outcome, is_idempotent=call.is_idempotent):
                if result.answer is not None:
                    return result.answer
                raise BrokerUnreachable(broker=peer.broker, address=address, problem=result.problem, in_doubt=True)
            problem = f"the last attempt, at {address}: {result.problem}"
            if result.is_misrouted and named is None:
                self._owners.misrouted(call.namespace, call.key, peer)
            if result.owner is not None and named is None:
                named = Peer(broker=f"that {peer.broker} named", addresses={"http": result.owner})
                continue
            named = None  # Redirects are followed once: two brokers with old views could name each other.
            failures += 1
            await _pause(pause_ms(failures, random.random()), deadline)  # noqa: S311 - jitter, no secret

    async def _owner(self, call: Call, deadline: Deadline, problem: str) -> Peer:
        what = f"{call} ({problem})" if problem else str(call)
        if problem:
            deadline.check(what)
        try:
            return await self._owners.owner(call.namespace, call.key, timeout_ms=deadline.remaining_ms())
        except DeadlineExceeded as error:
            raise deadline.exceeded(what if problem else f"{what} ({error.what})") from error

    async def _attempt(self, call: Call, address: str, deadline: Deadline) -> httpx.Response | _Failure:
        """Send the request once. Return the answer of the program, or what is known without one."""
        left_s = deadline.remaining_ms() / 1_000
        try:
            async with asyncio.timeout(left_s + _LATER_S):
                answer = await self._http.request(
                    call.method,
                    address + call.path,
                    headers=call.headers,
                    content=call.content,
                    json=call.json,
                    timeout=httpx.Timeout(left_s, connect=min(CONNECT_S_MAX, left_s)),
                )
        except (httpx.InvalidURL, httpx.LocalProtocolError) as error:
            raise CallerError(f"{call.method} {call.path} cannot be sent: {error}; correct the path and the headers") from error
        except httpx.PoolTimeout:
            raise Overloaded(what="the pool of connections of this client", limit=CONNECTIONS_MAX) from None
        except _NOT_SENT as error:
            is_open = self._breakers.failed(address, _now_ms())
            return _Failure(outcome=Outcome.NOT_STARTED, problem=_problem(error), is_misrouted=is_open)
        except (httpx.RequestError, TimeoutError) as error:
            self._breakers.succeeded(address)
            return _Failure(outcome=Outcome.UNKNOWN, problem=_problem(error))
        self._breakers.succeeded(address)
        owner = peer_in(answer.headers.get("Location", ""), answer.request.url.raw_path.decode())
        outcome = outcome_of(answer.status_code, answer.headers.get(OUTCOME), is_to_peer=owner not in (None, address))
        if outcome is None:
            return answer
        return _Failure(
            outcome=outcome,
            problem=f"it answered {answer.status_code} {answer.text[:_TEXT_MAX]}".rstrip(),
            answer=answer,
            is_misrouted=answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR,
            owner=owner if owner is None or owner.startswith("https:") or not address.startswith("https:") else None,
        )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def _pause(ms: int, deadline: Deadline) -> None:
    await asyncio.sleep(min(ms, deadline.remaining_ms()) / 1_000)


def _problem(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return "it took no connection in time" if isinstance(error, httpx.ConnectTimeout) else "it did not answer in time"
    return str(error) or type(error).__name__
