"""Ask brokers over HTTP, without a proxy, for what is not on the log. The environment has the
certificates (`brokers.security.tls`).
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from equipoise.brokers.errors import BrokerUnreachable
from equipoise.brokers.operations.access import Access
from equipoise.brokers.runtime.service import own_http, pulsar_address
from equipoise.brokers.security.own_token import TOKEN_VARIABLE, OwnToken
from equipoise.brokers.security.tls import (
    VARIABLES,
    ClientTls,
    client_context_of_environment,
    connection_problem,
)
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import CallerError
from equipoise.channel.system.clocks import Deadline

_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest answer read: the topics of a namespace at one broker."""

_CUT_OFF: Final = "Remote end closed connection without response"

_SHOWN_CHARACTERS_MAX: Final = 4_096

_DRAIN_PATH: Final = "/admin/v2/brokers/drain"
_UNDRAIN_PATH: Final = "/admin/v2/brokers/undrain"
_TOPICS_PATH: Final = "/admin/v2/non-persistent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of a broker over HTTP."""

    status: int
    text: str


# --- all brokers ---


def _document_of(broker: BrokerEntry, answer: Reply) -> object:
    """Return the document of an answer. Raise `CallerError` for a refusal, or `BrokerUnreachable`
    (not in doubt if nothing was started).
    """
    if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise CallerError(f"the broker {broker.broker} refuses: {_message(answer)}")
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        in_doubt = answer.status != HTTPStatus.SERVICE_UNAVAILABLE
        raise BrokerUnreachable(
            broker=broker.broker,
            address=_address(broker),
            problem=_message(answer),
            in_doubt=in_doubt,
        )
    return _document(answer.text)


async def topics_in_use(access: Access, namespace: str) -> Sequence[str]:
    """Return the topics of a namespace, sorted, by asking each live broker that serves Pulsar's
    clients.

    Raises `BrokerUnreachable` if one does not answer, and `CallerError` with its objection.
    """
    topics = set[str]()
    for broker in access.view.live_brokers():
        if pulsar_address(broker.joined.addresses) is not None:
            path = f"{_TOPICS_PATH}/{namespace}?local=true"
            listing = _document_of(broker, await ask(broker, "GET", path, deadline=access.deadline))
            topics |= set(listing["topics"]) if isinstance(listing, dict) else set()
    return sorted(topics)


# --- one broker ---


async def order_to_drain(broker: BrokerEntry, deadline: Deadline, *, ends: bool = False) -> None:
    """Order a broker to drain. It answers once the channel shows that it drains. With `ends`, order
    it to end that.

    Raises `BrokerUnreachable`.
    """
    answer = await ask(broker, "POST", _UNDRAIN_PATH if ends else _DRAIN_PATH, deadline=deadline)
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise BrokerUnreachable(
            broker=broker.broker, address=_address(broker), problem=_message(answer)
        )


async def ask(broker: BrokerEntry, method: str, path: str, *, deadline: Deadline) -> Reply:
    """Send one question or order to a broker's advertised address. Everything ends by `deadline`.

    Raises `BrokerUnreachable` if there is no answer. The error is in doubt if something was sent,
    because the broker may still carry it out.
    """
    return await ask_at(broker.broker, _address(broker), method, path, deadline=deadline)


async def ask_at(broker: str, address: str, method: str, path: str, *, deadline: Deadline) -> Reply:
    """Ask a broker whose `address` is not from the log; see `ask`. Errors name it `broker`."""
    url, tracing, is_sent = address + path, aiohttp.TraceConfig(), False

    async def connected(*_: object) -> None:
        nonlocal is_sent
        is_sent = True  # From now on the broker may have it.

    tracing.on_connection_create_end.append(connected)
    # 0 would be no limit.
    timeout = aiohttp.ClientTimeout(total=max(deadline.remaining_ms(), 1) / 1_000)
    try:
        async with aiohttp.ClientSession(timeout=timeout, trace_configs=[tracing]) as session:
            return await _exchange(session, method, url)
    except (OSError, aiohttp.ClientError, ValueError) as error:
        raise BrokerUnreachable(
            broker=broker, address=address, problem=_problem(error, url), in_doubt=is_sent
        ) from error


async def _exchange(session: aiohttp.ClientSession, method: str, url: str) -> Reply:
    """Return the answer. Raise `OSError`, `aiohttp.ClientError`, `ValueError`, or `PeerError` for a
    token.
    """
    if urlsplit(url).scheme not in {"http", "https"} or urlsplit(url).hostname is None:
        raise ValueError("that is no http:// or https:// address")
    async with session.request(
        method,
        URL(url, encoded=True),
        headers=OwnToken.of_environment().headers(url),
        # It could leave TLS, and no path that is asked for is another broker's.
        allow_redirects=False,
        ssl=tls_for(url),
    ) as response:
        text = bytearray()
        async for piece in response.content.iter_any():
            text += piece[: _ANSWER_BYTES_MAX - len(text)]
        return Reply(status=response.status, text=text.decode(errors="replace"))


def tls_for(url: str) -> ClientTls:
    """Return how to verify a broker at a URL. Raise `InvalidConfig` for files of the environment
    that cannot be used.
    """
    return client_context_of_environment() if url.startswith("https:") else True


def _problem(error: BaseException, url: str) -> str:
    """Return why there is no answer."""
    cause = (
        getattr(error, "os_error", None)
        or getattr(error, "certificate_error", None)
        or (error.__cause__ if isinstance(error.__cause__, OSError) else error)
    )
    if isinstance(cause, aiohttp.ServerDisconnectedError):
        cause = ConnectionError(_CUT_OFF)
    if isinstance(cause, ssl.SSLError):
        return connection_problem(cause)
    number = getattr(cause, "errno", None) or 0
    problem = (
        "it does not answer in time"
        if isinstance(cause, TimeoutError)
        else f"[Errno {number}] {os.strerror(number)}"
        if number > 0
        else str(cause) or type(cause).__name__
    )
    # As brokers do with a client that they refuse.
    is_cut_off = isinstance(cause, ConnectionError) and url.startswith("https:")
    return (
        f"{problem}; it may require a client certificate ({VARIABLES})" if is_cut_off else problem
    )


def _address(broker: BrokerEntry) -> str:
    return own_http(broker.joined.addresses) or ""


def _message(answer: Reply) -> str:
    """Return the message of an error without its JSON."""
    document = _document(answer.text)
    reason = document.get("reason") if isinstance(document, dict) else None
    if reason and answer.status == HTTPStatus.UNAUTHORIZED:
        return (
            f"{reason}; set {TOKEN_VARIABLE} to a valid token, basic:USER:PASSWORD, or the"
            " file:///PATH of either"
        )
    return (
        str(reason)
        if reason
        else f"it answers {answer.status} {answer.text.strip()[:_SHOWN_CHARACTERS_MAX]}"
    )


def _document(text: str) -> object:
    try:
        document: object = json.loads(text) if text.strip() else None
    except ValueError:
        return text
    return document
