"""Know the addresses of this broker and of others.

A broker calls itself at the address that it advertises, until it answers there, and from then on
the next broker at its address. No limit of clients applies to the addresses of the cluster's
brokers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import aiohttp

from equipoise.brokers.runtime.hosts import host_in
from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.runtime.worker import PROCESS, Worker
from equipoise.brokers.security.limits import of_host
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.view import View
from equipoise.channel.system.failures import RepeatedFailures

_logger: Final = logging.getLogger(__name__)

# The place of the broker's own incarnation, before it has one.
_OWN: Final = -1

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Return the addresses of a host. Raise OSError."""


async def resolve(host: str) -> Sequence[str]:
    """Return the addresses of a host, by the resolver of the system. Raise OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class PeerAddresses:
    """Lifts the limits of one broker for the hosts that live brokers advertise, its own among them.

    So programs on a broker's machine have no limits by address, either. They share its processors
    and its files in any case.
    """

    def __init__(self, worker: Worker, *, resolve: Resolve = resolve) -> None:
        """Limits that `worker` lifted already remain so."""
        self._worker = worker
        self._resolve = resolve
        self._roles = worker.access.limits.unlimited
        # By incarnation, too: a broker may come back under its name with another address.
        self._resolved: dict[tuple[int, str], Sequence[str]] = {}

    async def look(self) -> None:
        """Resolve the hosts of brokers that joined, and forget those of brokers that are gone."""
        hosts = sorted(
            {(_OWN, host) for host in _hosts(self._worker.profile.addresses)}
            | _hosts_in(self._worker.view)
        )
        self._resolved = {each: self._resolved[each] for each in hosts if each in self._resolved}
        await asyncio.gather(*(self._add(each) for each in hosts if each not in self._resolved))
        addresses = {
            of_host(address) for resolved in self._resolved.values() for address in resolved
        }
        self._worker.access.limits.unlimited = self._roles | addresses

    async def _add(self, place: tuple[int, str]) -> None:
        try:
            self._resolved[place] = await self._resolve(place[1])
        except (OSError, ValueError) as error:
            # A program may advertise what is no name. Look again later.
            _logger.debug(
                "cannot resolve the host of a broker",
                extra={"host": place[1], "problem": str(error)},
            )


def _hosts_in(view: View) -> set[tuple[int, str]]:
    """Return the incarnations of live brokers with each host that they advertise."""
    return {
        (broker.incarnation, host)
        for broker in view.live_brokers()
        for host in _hosts(broker.joined.addresses)
    }


def _hosts(addresses: Mapping[str, str]) -> set[str]:
    return {host for host in map(host_in, addresses.values()) if host}


PROBLEM: Final = "own address"
"""The key of this problem in the worker's `client_problems`."""

# A server opens its listener some milliseconds after its program has started.
_FIRST_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 5.0
_LISTENS_AFTER_MS: Final = 1_000
_LINES_MS: Final = 60_000

# How long an answer may take. Others wait as long for state.
_ANSWER_S: Final = 5.0


# The interval of calls to the next broker. Each costs a new connection.
_CALL_S: Final = 5.0

METRIC: Final = "address_unreachable"


async def call_own_address(worker: Worker) -> None:
    """Return once the worker has answered at its own address, and let it join. Until then, log and
    show what is wrong there.
    """
    url = f"{own_http(worker.profile.addresses)}/health"
    began_ms, pause_s = worker.clock.now().boot_ms, _FIRST_PAUSE_S
    lines = RepeatedFailures(interval_ms=_LINES_MS)
    while (found := await _found_at(url, worker, process=worker.process)) is not None:
        now_ms = worker.clock.now().boot_ms
        if now_ms - began_ms >= _LISTENS_AFTER_MS:
            problem = (
                f"{url} does not lead to this broker: {found}; correct the address that it"
                " advertises, or set check_address=false if this network does not let a host call"
                " itself"
            )
            if not worker.agent.is_ready:
                problem = f"it takes no bundles: {problem}"
            worker.client_problems[PROBLEM] = problem
            worker.metrics.set(METRIC, 1, "own")
            if lines.failed(now_ms) is not None:
                _logger.error("not reachable: %s", problem, extra={"broker": worker.broker_id})
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
    worker.client_problems.pop(PROBLEM, None)
    worker.metrics.set(METRIC, 0, "own")
    worker.reachable()


async def call_next_address(worker: Worker) -> None:
    """Call the next broker by age at the address that it advertises, and export whether it answers
    there. So one other broker calls each, however many there are.
    """
    lines = RepeatedFailures(interval_ms=_LINES_MS)
    while True:
        await asyncio.sleep(_CALL_S)
        peer = _next(worker)
        address = None if peer is None else own_http(peer.joined.addresses)
        found = None
        if peer is not None and address is not None:
            # With authentication, a broker does not give strangers its name.
            names = (None, peer.broker)
            found = await _found_at(f"{address}/health", worker, names=names)
        worker.metrics.set(METRIC, found is not None, "next")
        if found is not None and lines.failed(worker.clock.now().boot_ms) is not None:
            _logger.error(
                "cannot reach a broker at the address that it advertises: %s: %s",
                address,
                found,
                extra={"broker": worker.broker_id},
            )


def _next(worker: Worker) -> BrokerEntry | None:
    """Return the live broker that joined after this one; after the youngest, the oldest. None while
    there is no other, and for a broker that has not joined.
    """
    mine = worker.agent.incarnation
    return None if mine is None else next(iter(worker.view.live_after(mine)), None)


async def _found_at(
    url: str,
    worker: Worker,
    *,
    process: str | None = None,
    names: Sequence[str | None] = (),
) -> str | None:
    """Return who answers a call of `worker`, or why nobody does. None: it is the `process`, or a
    broker with one of these `names`.
    """
    timeout, tls = aiohttp.ClientTimeout(total=_ANSWER_S), worker.access.certificates.client
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False, ssl=tls) as answer,
        ):
            answering = answer.headers.get(PROCESS)
            if answering is None:
                return f"what answers is no broker (HTTP {answer.status})"
            body = await answer.json(content_type=None)
            name = body.get("broker") if isinstance(body, dict) else None
            if answering == process or name in names:
                return None
            return f"{name or 'another broker'} answers"
    except TimeoutError:
        return f"no answer within {_ANSWER_S:.0f} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return str(error) or type(error).__name__
