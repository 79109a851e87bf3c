"""Ask brokers over HTTP, without a proxy, for what is not on the log. The environment has the
certificates (`brokers.security.tls`).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from equipoise.brokers.errors import BrokerUnreachable
from equipoise.brokers.operations.access import Access
from equipoise.brokers.runtime.router import (
    CONNECT_MS,
    OPENED_PATH,
    OpenedBundles,
    all_of,
    by_owner,
    opened_in,
    opened_question,
)
from equipoise.brokers.runtime.service import own_http, pulsar_address
from equipoise.brokers.security.own_token import TOKEN_VARIABLE, OwnToken
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import CallerError, OutcomeUnknown, PeerError
from equipoise.channel.system.deadline import Deadline

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from _typeshed import ReadableBuffer, WriteableBuffer

    from equipoise.brokers.security.tls import ClientTls

_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest answer read: the stats of a topic with as many producers and consumers as it may
have."""

_REDIRECTS_MAX: Final = 5
"""A broker redirects to the owner of the topic, which may just have moved again."""

_SHARES_MAX: Final = 4
"""The remaining time is split into at most this many shares among the remaining brokers.

A silent broker then costs a quarter of it, and the others still have time for a slow answer.
"""

_PORT_OF_SCHEME: Final = {"http": 80, "https": 443}

_SHOWN_CHARACTERS_MAX: Final = 4_096

_DRAIN_PATH: Final = "/admin/v2/brokers/drain"
_UNDRAIN_PATH: Final = "/admin/v2/brokers/undrain"
_TOPICS_PATH: Final = "/admin/v2/non-persistent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of a broker over HTTP."""

    status: int
    text: str


# --- any broker ---


def ask_any(access: Access, path: str) -> object:
    """Ask one question of the first broker that answers, the leader first. Return its JSON, or None
    if it is empty.

    Raises `PeerError` if no broker is alive, `BrokerUnreachable` if none answers, `CallerError`
    with a broker's objection, and `DeadlineExceeded` if there was no time to ask.
    """
    unreachable: BrokerUnreachable | None = None
    for broker, share in _in_turn(access):
        try:
            return _document_of(broker, ask(broker, "GET", path, deadline=share))
        except BrokerUnreachable as error:
            unreachable = error
    raise unreachable or access.deadline.exceeded("an answer of any broker")


def order_any(
    access: Access, method: str, path: str, *, subject: str, body: object = None
) -> object:
    """Give one order about `subject` to the first broker that takes it, the leader first. Return
    its answer as `ask_any` does.

    The next broker is tried only if the one before cannot have started: no connection, or status
    503. Raises what `ask_any` raises, and `OutcomeUnknown` if a broker got the order and did not
    answer; the caller must check the result.
    """
    unreachable: BrokerUnreachable | None = None
    for broker, share in _in_turn(access):
        try:
            # Wait for this broker to the end: no other broker may get the order now.
            return _document_of(
                broker,
                ask(broker, method, path, body=body, deadline=access.deadline, connected_by=share),
            )
        except BrokerUnreachable as error:
            if error.in_doubt:
                problem = f"the broker {broker.broker} got the order, and then: {error.problem}"
                raise OutcomeUnknown(
                    log=access.log.name, subject=subject, problem=problem
                ) from error
            unreachable = error
    raise unreachable or access.deadline.exceeded("an answer of any broker")


def _in_turn(access: Access) -> Iterator[tuple[BrokerEntry, Deadline]]:
    """Yield the live brokers, each with its share of the remaining time. Raise `PeerError` if there
    is none.
    """
    brokers = sorted(access.view.live_brokers(), key=lambda broker: broker.incarnation)
    if not brokers:
        raise PeerError(
            f"no broker is alive on {access.log.name}, and only a broker knows; start one, and ask"
            " again"
        )
    for place, broker in enumerate(brokers):
        remaining_ms = access.deadline.remaining_ms()
        if not remaining_ms:
            return
        shares = min(len(brokers) - place, _SHARES_MAX)
        yield broker, Deadline.after(timeout_ms=-(-remaining_ms // shares))


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


def topics_in_use(access: Access, namespace: str) -> Sequence[str]:
    """Return the topics of a namespace, sorted, by asking each live broker that serves Pulsar's
    clients.

    Raises `BrokerUnreachable` if one does not answer, and `CallerError` with its objection.
    """
    topics = set[str]()
    for broker in access.view.live_brokers():
        if pulsar_address(broker.joined.addresses) is not None:
            listing = _document_of(
                broker,
                ask(
                    broker,
                    "GET",
                    f"{_TOPICS_PATH}/{namespace}?local=true",
                    deadline=access.deadline,
                ),
            )
            topics |= set(listing["topics"]) if isinstance(listing, dict) else set()
    return sorted(topics)


# --- one broker ---


def order_to_drain(broker: BrokerEntry, deadline: Deadline, *, ends: bool = False) -> None:
    """Order a broker to drain. It answers once the channel shows that it drains. With `ends`, order
    it to end that.

    Raises `BrokerUnreachable`.
    """
    answer = ask(broker, "POST", _UNDRAIN_PATH if ends else _DRAIN_PATH, deadline=deadline)
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise BrokerUnreachable(
            broker=broker.broker, address=_address(broker), problem=_message(answer)
        )


def ask_opened(access: Access, tokens: Mapping[str, int], deadline: Deadline) -> OpenedBundles:
    """Ask the owners of bundles which they have opened under these `tokens`. An owner that does not
    answer has opened nothing.
    """
    answers = []
    for owner, part in by_owner(access.view, tokens):
        body = opened_question(part, timeout_ms=deadline.remaining_ms())
        try:
            answer = ask(
                owner,
                "POST",
                OPENED_PATH,
                body=body,
                deadline=deadline,
                connected_by=Deadline.after(timeout_ms=CONNECT_MS),
            )
        except PeerError:  # It is unreachable, or the token is not for its address.
            continue
        answers.append(opened_in(_document(answer.text)))
    return all_of(answers)


def ask(
    broker: BrokerEntry,
    method: str,
    path: str,
    *,
    body: object = None,
    deadline: Deadline,
    connected_by: Deadline | None = None,
) -> Reply:
    """Send one question or order to a broker's advertised address, and follow its redirects.

    Everything ends by `deadline`; a connection attempt also ends by `connected_by`. Raises
    `BrokerUnreachable` if there is no answer. The error is in doubt if something was sent, because
    the broker may still carry it out.
    """
    return ask_at(
        broker.broker,
        _address(broker),
        method,
        path,
        body=body,
        deadline=deadline,
        connected_by=connected_by,
    )


def ask_at(
    broker: str,
    address: str,
    method: str,
    path: str,
    *,
    body: object = None,
    deadline: Deadline,
    connected_by: Deadline | None = None,
) -> Reply:
    """Ask a broker whose `address` is not from the log; see `ask`. Errors name it `broker`."""
    from http.client import HTTPException

    url = address + path
    data = None if body is None else json.dumps(body).encode()
    is_sent = False
    try:
        for _ in range(_REDIRECTS_MAX):
            is_sent = False  # A redirecting broker has done nothing.
            with closing(
                _connected(url, deadline if connected_by is None else connected_by, deadline)
            ) as connection:
                is_sent = True
                answer, location = _exchange(connection, method, url, data)
            if location is None:
                return answer
            url = redirected(url, location)
    except (OSError, HTTPException, ValueError) as error:
        raise BrokerUnreachable(
            broker=broker, address=address, problem=_problem(error, url), in_doubt=is_sent
        ) from error
    problem = f"it redirects more than {_REDIRECTS_MAX} times, at last to {url}"
    raise BrokerUnreachable(broker=broker, address=address, problem=problem)


def redirected(url: str, location: str) -> str:
    """Return where a redirect leads. Raise `ValueError` if it leaves TLS: anyone on the way could
    read the token.
    """
    target = urljoin(url, location)
    if url.startswith("https:") and not target.startswith("https:"):
        raise ValueError(
            f"it redirects to {target}, without TLS; advertise an https:// address there"
        )
    return target


class _BoundedSocket(socket.socket):
    """A socket with one deadline for everything. A plain timeout restarts with each byte
    received.
    """

    deadline: Deadline

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        self.settimeout(_left_s(self.deadline))
        super().sendall(data, flags)

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_left_s(self.deadline))
        return super().recv_into(buffer, nbytes, flags)


def _connected(url: str, connected_by: Deadline, deadline: Deadline) -> HTTPConnection:
    """Return a new connection. Raise `OSError`, `HTTPException` or `ValueError`."""
    from http.client import HTTPConnection

    from equipoise.brokers.security.tls import client_context_of_environment

    parts = urlsplit(url)
    if parts.scheme not in _PORT_OF_SCHEME or parts.hostname is None:
        raise ValueError("that is no http:// or https:// address")
    connection = HTTPConnection(parts.hostname, parts.port or _PORT_OF_SCHEME[parts.scheme])
    tls = client_context_of_environment() if parts.scheme == "https" else None
    problem = OSError(f"{parts.hostname} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        connection.host, connection.port, type=socket.SOCK_STREAM
    ):
        bounded = _BoundedSocket(family, kind, protocol)
        bounded.deadline = deadline
        try:
            bounded.settimeout(min(_left_s(connected_by), _left_s(deadline)))
            bounded.connect(address)
            connection.sock = bounded if tls is None else _by_tls(bounded, connection.host, tls)
        except OSError as error:
            bounded.close()
            problem = error
        else:
            return connection
    raise problem


def _by_tls(connected: _BoundedSocket, host: str, tls: ClientTls) -> _BoundedSocket:
    """Return a connected socket after its handshake, with the same deadline. Raise `OSError`."""
    import ssl

    # `recv_into` has the same parameters under two types.
    class Bounded(_BoundedSocket, ssl.SSLSocket):  # type: ignore[misc]
        """A socket with TLS and one deadline."""

    context = ssl.create_default_context() if tls is True else tls
    context.sslsocket_class = Bounded
    deadline = connected.deadline
    encrypted = context.wrap_socket(connected, server_hostname=host)
    assert isinstance(encrypted, Bounded), "the context makes these"
    encrypted.deadline = deadline
    return encrypted


def _problem(error: Exception, url: str) -> str:
    """Return why there is no answer."""
    import ssl

    from equipoise.brokers.security.tls import VARIABLES, connection_problem

    if isinstance(error, ssl.SSLError):
        return connection_problem(error)
    problem = (
        "it does not answer in time"
        if isinstance(error, TimeoutError)
        else str(error) or type(error).__name__
    )
    # As brokers do with a client that they refuse.
    is_cut_off = isinstance(error, ConnectionError) and url.startswith("https:")
    return (
        f"{problem}; it may require a client certificate ({VARIABLES})" if is_cut_off else problem
    )


def _exchange(
    connection: HTTPConnection, method: str, url: str, data: bytes | None
) -> tuple[Reply, str | None]:
    """Return the answer and the URL it redirects to, if any. Raise `OSError`, `HTTPException`,
    `ValueError`, or `PeerError` for a token.
    """
    parts = urlsplit(url)
    headers = {} if data is None else {"Content-Type": "application/json"}
    headers |= OwnToken.of_environment().headers(url)
    connection.request(
        method,
        f"{parts.path}?{parts.query}" if parts.query else parts.path,
        body=data,
        headers=headers,
    )
    with connection.getresponse() as response:
        text = response.read(_ANSWER_BYTES_MAX).decode(errors="replace")
        location = (
            response.getheader("Location")
            if response.status == HTTPStatus.TEMPORARY_REDIRECT
            else None
        )
        return Reply(status=response.status, text=text), location


def _left_s(deadline: Deadline) -> float:
    """Return the remaining time in seconds. Raise `TimeoutError` if it is over, because a socket
    timeout of 0 means non-blocking.
    """
    remaining_ms = deadline.remaining_ms()
    if not remaining_ms:
        raise TimeoutError
    return remaining_ms / 1_000


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
