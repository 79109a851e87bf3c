"""Fetch state that is too large for a record from the former owner, over HTTP. `brokers.http` serves it."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

import aiohttp

from equipoise.brokers.runtime.service import Peer, own_http
from equipoise.channel.core.errors import PeerError

# As long as the former owner's service may take. The opening has its own deadline.
_TIMEOUT_S: Final = 10.0

STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of a bundle's state, against mistakes. Larger state belongs in a store."""

# Bytes of an error response that are quoted.
_PROBLEM_BYTES_MAX: Final = 1_024

_READ_BYTES: Final = 64 * 1024


class HandoverUnavailable(PeerError):
    """The former owner does not give the state of a bundle."""

    def __init__(self, *, bundle: str, broker: str, problem: str) -> None:
        """`broker` was asked for the state of `bundle`, and failed with `problem`."""
        self.bundle = bundle
        self.broker = broker
        self.problem = problem
        super().__init__(f"broker {broker} does not hand over the state of {bundle}: {problem}; rebuild it from the store")


async def fetch_from(source: Peer, bundle: str, digest: str | None = None) -> bytes | None:
    """Return the state of `bundle` that `source` still holds; None if it has none.

    With `digest`, fetch the handover kept under it. Raise `HandoverUnavailable` if `source` cannot be asked, is too slow, or sends more
    than `STATE_BYTES_MAX`.
    """
    address = own_http(source.addresses)
    if address is None:
        raise HandoverUnavailable(bundle=bundle, broker=source.broker, problem="it advertises no HTTP address")
    query = "" if digest is None else f"?digest={digest}"
    try:
        # aiohttp's own timeout restarts with each redirect, and ends before the session is closed.
        async with (
            asyncio.timeout(_TIMEOUT_S),
            aiohttp.ClientSession() as session,
            session.get(f"{address}/v1/handover/{bundle}{query}", allow_redirects=False) as response,
        ):
            if response.status == HTTPStatus.NO_CONTENT:
                return None
            if response.status != HTTPStatus.OK:
                told = await _read(response, _PROBLEM_BYTES_MAX)
                problem = f"it answers {response.status}: {told[:_PROBLEM_BYTES_MAX].decode('utf-8', 'replace')}"
                raise HandoverUnavailable(bundle=bundle, broker=source.broker, problem=problem)
            state = await _read(response, STATE_BYTES_MAX)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: an invalid address.
        raise HandoverUnavailable(bundle=bundle, broker=source.broker, problem=f"{type(error).__name__}: {error}") from error
    if len(state) > STATE_BYTES_MAX:
        raise HandoverUnavailable(bundle=bundle, broker=source.broker, problem=f"it is larger than {STATE_BYTES_MAX} bytes")
    return state


async def _read(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Read at most slightly more than `bytes_max`. The length in the header is not trusted."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(_READ_BYTES):
        body += chunk
        if len(body) > bytes_max:
            break
    return bytes(body)
