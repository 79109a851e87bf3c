"""What commands ask of brokers over HTTP, past any proxy: that is little, because most of it stands on the log.

May live here: one question or order and its answer, to whom it may be put, and for how long.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from equipoise.brokers.errors import BrokerRefuses, BrokerUnreachable, NobodyToAsk
from equipoise.brokers.operations.access import Access
from equipoise.brokers.runtime.service import own_http
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.errors import OutcomeUnknown
from equipoise.channel.system.deadline import Deadline

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from _typeshed import ReadableBuffer, WriteableBuffer

_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""How much of an answer is read: the stats of a topic with as many producers and consumers as it may have."""

_REDIRECTS_MAX: Final = 5
"""A broker sends the caller to the one that serves the topic, which may just have moved again."""

_SHARES_MAX: Final = 4
"""Into how many parts the time that is left is cut for the brokers that are left. Of many brokers a silent one then costs a
quarter of it, and the others are still given long enough for an answer that takes its time."""

_HTTP_PORT: Final = 80

_SHOWN_CHARACTERS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a broker said."""

    status: int
    text: str


# --- any broker ---


def ask_any(access: Access, path: str) -> object:
    """Put one question to whichever broker answers, the leader first; what it says, as JSON, None if that is nothing.

    Raises `NobodyToAsk` if no broker is alive, `BrokerUnreachable` if none answers, `BrokerRefuses` with what one says against
    it, and `DeadlineExceeded` if there was no time to ask anybody.
    """
    unreachable: BrokerUnreachable | None = None
    for broker, share in _in_turn(access):
        try:
            return _said(broker, ask(broker, "GET", path, deadline=share))
        except BrokerUnreachable as error:
            unreachable = error
    raise unreachable or access.deadline.exceeded("an answer of any broker")


def tell_any(access: Access, method: str, path: str, *, subject: str, body: object = None) -> object:
    """Give one order about `subject` to whichever broker takes it, the leader first; what it says, as in `ask_any`.

    The next one is told only where the one before cannot have begun: it was never connected to, or answers 503. Raises what
    `ask_any` raises, and `OutcomeUnknown` if one was told and did not say what came of it: it is the caller's to look.
    """
    unreachable: BrokerUnreachable | None = None
    for broker, share in _in_turn(access):
        try:
            # Whoever has been told is waited for to the end: nobody else may be told any more.
            return _said(broker, ask(broker, method, path, body=body, deadline=access.deadline, connected_by=share))
        except BrokerUnreachable as error:
            if error.in_doubt:
                problem = f"the broker {broker.broker} was told to do it, and then: {error.problem}"
                raise OutcomeUnknown(log=access.log.name, subject=subject, problem=problem) from error
            unreachable = error
    raise unreachable or access.deadline.exceeded("an answer of any broker")


def _in_turn(access: Access) -> Iterator[tuple[BrokerEntry, Deadline]]:
    """The live brokers, each with its share of the time that is left, until there is none. Raises `NobodyToAsk`."""
    brokers = sorted(access.view.live_brokers(), key=lambda broker: broker.incarnation)
    if not brokers:
        raise NobodyToAsk(log=access.log.name)
    for place, broker in enumerate(brokers):
        remaining_ms = access.deadline.remaining_ms()
        if not remaining_ms:
            return
        shares = min(len(brokers) - place, _SHARES_MAX)
        yield broker, Deadline.after(timeout_ms=-(-remaining_ms // shares))


def _said(broker: BrokerEntry, answer: Answer) -> object:
    """The document in an answer. Raises `BrokerRefuses`, and `BrokerUnreachable`, not in doubt where nothing was begun."""
    if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise BrokerRefuses(broker=broker.broker, problem=_told(answer))
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        in_doubt = answer.status != HTTPStatus.SERVICE_UNAVAILABLE
        raise BrokerUnreachable(broker=broker.broker, address=_address(broker), problem=_told(answer), in_doubt=in_doubt)
    return _document(answer.text)


# --- one broker ---


def ask(
    broker: BrokerEntry, method: str, path: str, *, body: object = None, deadline: Deadline, connected_by: Deadline | None = None
) -> Answer:
    """Put one question or order to one broker, at the address that it advertises, and to whomever it sends the caller on to.

    All of it is over by `deadline`, and a connection is given up at `connected_by`, if that is given and earlier. Raises
    `BrokerUnreachable` if there is no answer; it is in doubt where something was sent, which may be carried out all the same.
    """
    return ask_at(broker.broker, _address(broker), method, path, body=body, deadline=deadline, connected_by=connected_by)


def ask_at(
    broker: str, address: str, method: str, path: str, *, body: object = None, deadline: Deadline, connected_by: Deadline | None = None
) -> Answer:
    """The same of a broker whose `address` is known from elsewhere than the log; `broker` is what errors call it."""
    from http.client import HTTPException

    url = address + path
    data = None if body is None else json.dumps(body).encode()
    is_sent = False
    try:
        for _ in range(_REDIRECTS_MAX):
            is_sent = False  # Who sends the caller on has done nothing.
            with closing(_connected(url, deadline if connected_by is None else connected_by, deadline)) as connection:
                is_sent = True
                answer, location = _exchange(connection, method, url, data)
            if location is None:
                return answer
            url = urljoin(url, location)
    except (OSError, HTTPException, ValueError) as error:
        problem = "it does not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        raise BrokerUnreachable(broker=broker, address=address, problem=problem, in_doubt=is_sent) from error
    problem = f"it sends the caller on and on, at last to {url}"
    raise BrokerUnreachable(broker=broker, address=address, problem=problem)


class _BoundedSocket(socket.socket):
    """A socket with one deadline for all that it sends and receives: a timeout alone begins anew with each byte that comes."""

    deadline: Deadline

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        self.settimeout(_left_s(self.deadline))
        super().sendall(data, flags)

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_left_s(self.deadline))
        return super().recv_into(buffer, nbytes, flags)


def _connected(url: str, connected_by: Deadline, deadline: Deadline) -> HTTPConnection:
    """A connection on which nothing has been sent yet. Raises `OSError`, `HTTPException`, `ValueError`."""
    from http.client import HTTPConnection

    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError("that is no http:// address")
    connection = HTTPConnection(parts.hostname, parts.port or _HTTP_PORT)
    problem = OSError(f"{parts.hostname} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(connection.host, connection.port, type=socket.SOCK_STREAM):
        bounded = _BoundedSocket(family, kind, protocol)
        bounded.deadline = deadline
        try:
            bounded.settimeout(min(_left_s(connected_by), _left_s(deadline)))
            bounded.connect(address)
        except OSError as error:
            bounded.close()
            problem = error
        else:
            connection.sock = bounded
            return connection
    raise problem


def _exchange(connection: HTTPConnection, method: str, url: str, data: bytes | None) -> tuple[Answer, str | None]:
    """The answer, and where it sends the caller, if it does. Raises `OSError`, `HTTPException`, `ValueError`."""
    parts = urlsplit(url)
    headers = {} if data is None else {"Content-Type": "application/json"}
    connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, body=data, headers=headers)
    with connection.getresponse() as response:
        text = response.read(_ANSWER_BYTES_MAX).decode(errors="replace")
        location = response.getheader("Location") if response.status == HTTPStatus.TEMPORARY_REDIRECT else None
        return Answer(status=response.status, text=text), location


def _left_s(deadline: Deadline) -> float:
    """What is left of a deadline, as sockets take it. Raises `TimeoutError` once it has come: of a socket, 0 asks not to wait."""
    remaining_ms = deadline.remaining_ms()
    if not remaining_ms:
        raise TimeoutError
    return remaining_ms / 1_000


def _address(broker: BrokerEntry) -> str:
    return own_http(broker.joined.addresses) or ""


def _told(answer: Answer) -> str:
    """What an error says, without the JSON around it."""
    document = _document(answer.text)
    reason = document.get("reason") if isinstance(document, dict) else None
    return str(reason) if reason else f"it answers {answer.status} {answer.text.strip()[:_SHOWN_CHARACTERS_MAX]}"


def _document(text: str) -> object:
    try:
        document: object = json.loads(text) if text.strip() else None
    except ValueError:
        return text
    return document
