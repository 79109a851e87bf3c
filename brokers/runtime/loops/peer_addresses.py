"""Know the addresses of the cluster's brokers, to which no limit of clients applies."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.limits import of_host
from equipoise.channel.core.view import View

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
    return {host for host in map(_host_in, addresses.values()) if host}


def _host_in(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # Programs may advertise anything.
        return None
