"""Limit what one identity takes of a broker: connections, requests and received bytes. Times are
milliseconds of a monotonic clock.

An identity is a role, or the address of a client without one. All ports share the rates of an
identity, and count its connections apart.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from equipoise.brokers.security.identity import Surface

BURST_MS: Final = 2_000
"""An identity that was silent may take at once what its rate allows in this time."""

# How often identities that no longer matter are forgotten. An identity matters while it owes more
# than it would get by waiting: after a request for `BURST_MS` at most. So a broker keeps those of
# its last two seconds and a few; 10,000 requests/s are 30,000 of 200 bytes.
_FORGET_MS: Final = 1_000

_MILLISECONDS_PER_SECOND: Final = 1_000
_SHOWN_MAX: Final = 256

# A client with an IPv6 address usually has all addresses of its network (RFC 6177).
_IPV6_NETWORK_BITS: Final = 64

# Parsing an address takes 2 microseconds. A client asks often.
_ADDRESSES_CACHED: Final = 16_384


class Limit(StrEnum):
    """What is limited; a label of the counter of what exceeds it."""

    CONNECTIONS = "connections"
    REQUESTS = "requests"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What each identity may take. `connections` holds for each port; None is no limit."""

    connections: int
    requests_per_second: int
    bytes_per_second: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """An identity exceeds a limit. After `wait_ms` it no longer does, if it takes nothing
    meanwhile.
    """

    limit: Limit
    wait_ms: int


class Rate:
    """Token buckets of one size, one for each identity. Each holds what `BURST_MS` allow, and
    starts full.

    The generic cell rate algorithm (ITU-T I.371, annex A): a bucket is one number, the time at
    which it will be full again. Numbers are whole, in units of a millisecond divided by the rate,
    so no rounding adds up.
    """

    __slots__ = ("_forgot_ms", "_full_at", "per_second")

    def __init__(self, per_second: int) -> None:
        """All buckets are full."""
        self.per_second = per_second
        self._full_at: dict[str, int] = {}
        self._forgot_ms = 0

    def wait_ms(self, identity: str, now_ms: int) -> int:
        """Return how long until a bucket has a token; 0 if it has one."""
        full_at = self._full_at.get(identity)
        if full_at is None:
            return 0
        lacking = full_at + _MILLISECONDS_PER_SECOND - (now_ms + BURST_MS) * self.per_second
        return max(-(-lacking // self.per_second), 0)

    def take(self, identity: str, tokens: int, now_ms: int) -> None:
        """Take tokens, also more than there are: what has come already cannot be refused."""
        now = now_ms * self.per_second
        self._full_at[identity] = (
            max(self._full_at.get(identity, now), now) + tokens * _MILLISECONDS_PER_SECOND
        )
        if now_ms - self._forgot_ms >= _FORGET_MS:
            self._forgot_ms = now_ms
            self._full_at = {
                each: full_at for each, full_at in self._full_at.items() if full_at > now
            }

    def __len__(self) -> int:
        """Return the number of buckets that are kept. A full one need not be."""
        return len(self._full_at)


class IdentityLimits:
    """What each identity takes of one broker."""

    def __init__(self, bounds: Bounds, *, exceeded: Callable[[Surface, Limit, str], None]) -> None:
        """`exceeded` takes each excess, with its identity."""
        self._bounds = bounds
        self._exceeded = exceeded
        self._connections = Tally[tuple[Surface, str]]()
        self._requests = Rate(bounds.requests_per_second)
        self._bytes = None if bounds.bytes_per_second is None else Rate(bounds.bytes_per_second)
        self.unlimited = frozenset[str]()
        """The identities of the cluster's brokers, to which no limit applies."""

    def connect(self, surface: Surface, identity: str) -> bool:
        """Count one more connection, if the identity may have one. Return whether it may."""
        place = surface, identity
        if self._connections[place] >= self._bounds.connections and identity not in self.unlimited:
            self._exceeded(surface, Limit.CONNECTIONS, identity)
            return False
        self._connections[place] += 1
        return True

    def disconnect(self, surface: Surface, identity: str) -> None:
        """Count one connection less."""
        place = surface, identity
        self._connections[place] -= 1
        if not self._connections[place]:
            del self._connections[place]

    def of_address(self, address: str) -> str:
        """Return the identity of clients of an address. Those of one IPv6 network of 64 bits have
        one identity, except for brokers.
        """
        alone, shared = _names_of(address)
        return alone if alone in self.unlimited else shared

    def excess(self, surface: Surface, identity: str, now_ms: int) -> Excess | None:
        """Return the rate that an identity exceeds, and report it; None if it may take more now."""
        if identity in self.unlimited:
            return None
        wait_ms = self._requests.wait_ms(identity, now_ms)
        limit = Limit.REQUESTS
        if (
            self._bytes is not None
            and (bytes_ms := self._bytes.wait_ms(identity, now_ms)) > wait_ms
        ):
            wait_ms, limit = bytes_ms, Limit.BYTES
        if not wait_ms:
            return None
        self._exceeded(surface, limit, identity)
        return Excess(limit=limit, wait_ms=wait_ms)

    def took(
        self, identity: str, now_ms: int, *, requests: int = 0, received_bytes: int = 0
    ) -> None:
        """Note what an identity took."""
        if requests:
            self._requests.take(identity, requests, now_ms)
        if received_bytes and self._bytes is not None:
            self._bytes.take(identity, received_bytes, now_ms)

    def problem(self, limit: Limit, identity: str) -> str:
        """Return a sentence about an excess: what happened, and the setting."""
        bounds, identity = self._bounds, identity[:_SHOWN_MAX]
        if limit is Limit.CONNECTIONS:
            return (
                f"{identity} has {bounds.connections} connections open (setting"
                " identity_connections_max)"
            )
        if limit is Limit.REQUESTS:
            rate, setting = (
                f"{bounds.requests_per_second} requests",
                "identity_requests_per_second_max",
            )
        else:
            rate, setting = f"{bounds.bytes_per_second} bytes", "identity_bytes_per_second_max"
        return f"{identity} sends more than {rate} a second (setting {setting})"


def of_role(role: str) -> str:
    """Return the identity of clients of a role. A log can show it: what is not printable is
    escaped.
    """
    return f"role {role!a}"


def of_host(address: str) -> str:
    """Return the identity of one address, as `IdentityLimits.unlimited` has it."""
    return _names_of(address)[0]


def identity_of_address(address: str) -> str:
    """Return the identity of all clients that may share an address: those of one IPv6 network of 64
    bits have one.
    """
    return _names_of(address)[1]


@lru_cache(_ADDRESSES_CACHED)
def _names_of(address: str) -> tuple[str, str]:
    """Return the identity of an address alone, and of all that belong to its client."""
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:  # A Unix socket, or what a program put in its place.
        return f"address {address!a}", f"address {address!a}"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is None:
            network = ip_network((int(parsed), _IPV6_NETWORK_BITS), strict=False)
            return f"address {parsed}", f"address {network}"
        parsed = parsed.ipv4_mapped
    return f"address {parsed}", f"address {parsed}"
