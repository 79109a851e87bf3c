"""State too large for a handover record, asked of the former owner's service over HTTP.

May live here: the client's half. The server's half is a route of `brokers.http`.
"""

from __future__ import annotations

from typing import Final

import aiohttp

from brokers.service import Peer
from channel.errors import PeerError

# As long as the former owner keeps what it has parted with; the bundle is opened within its own deadline anyway.
_TIMEOUT_S: Final = 10.0

# A bound for a mistake, not for a use: a bundle's state beyond this belongs into a store.
_STATE_BYTES_MAX: Final = 64 * 1024 * 1024


class HandoverUnavailable(PeerError):
    """The former owner does not give the state of a bundle."""

    def __init__(self, *, bundle: str, broker: str, problem: str) -> None:
        """`broker` was asked for the state of `bundle`, and `problem` came of it."""
        self.bundle = bundle
        self.broker = broker
        self.problem = problem
        super().__init__(f"broker {broker} does not hand over the state of {bundle}: {problem}; rebuild it from the store")


async def fetch_from(source: Peer, bundle: str) -> bytes | None:
    """What the service of `source` still holds of `bundle`; None if it has nothing to give.

    Raises `HandoverUnavailable` if it cannot be asked.
    """
    address = source.addresses.get("http")
    if address is None:
        raise HandoverUnavailable(bundle=bundle, broker=source.broker, problem="it advertises no HTTP address")
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{address}/v1/handover/{bundle}") as response:
            if response.status == 204:  # noqa: PLR2004 - No Content
                return None
            if response.status != 200:  # noqa: PLR2004 - OK
                raise HandoverUnavailable(bundle=bundle, broker=source.broker, problem=await response.text())
            if (response.content_length or 0) > _STATE_BYTES_MAX:
                raise HandoverUnavailable(bundle=bundle, broker=source.broker, problem="it is larger than 64 MiB")
            return await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise HandoverUnavailable(bundle=bundle, broker=source.broker, problem=f"{type(error).__name__}: {error}") from error
