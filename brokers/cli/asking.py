"""What commands ask of brokers over HTTP, past any proxy: that is little, because most of it stands on the log.

May live here: one question and its answer, and to whom it may be put.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urljoin, urlsplit

from brokers.admin.access import Access
from channel.entries import BrokerEntry
from channel.errors import BrokerRefuses, BrokerUnreachable, NobodyToAsk

_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""How much of an answer is read: the stats of a topic with as many producers and consumers as it may have."""

_REDIRECTS_MAX: Final = 5
"""A broker sends the caller to the one that serves the topic, which may just have moved again."""

_SHOWN_CHARACTERS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a broker said."""

    status: int
    text: str


def ask(broker: BrokerEntry, method: str, path: str, *, body: object = None, timeout_s: float) -> Answer:
    """Put one question to one broker, at the address that it advertises; raises `BrokerUnreachable` if it does not answer."""
    from http.client import HTTPException

    address = broker.joined.addresses.get("http", "")
    url = address + path
    data = None if body is None else json.dumps(body).encode()
    try:
        for _ in range(_REDIRECTS_MAX):
            answer, location = _exchange(method, url, data, timeout_s)
            if location is None:
                return answer
            url = urljoin(url, location)
    except (OSError, HTTPException, ValueError) as error:
        raise BrokerUnreachable(broker=broker.broker, address=address, problem=str(error) or type(error).__name__) from error
    raise BrokerUnreachable(broker=broker.broker, address=address, problem=f"it sends the caller on and on, at last to {url}")


def ask_any(access: Access, method: str, path: str, *, body: object = None) -> object:
    """Put one question to whichever broker answers, the leader first; what it says, as JSON, None if that is nothing.

    Raises `NobodyToAsk` if no broker is alive, `BrokerUnreachable` if none answers, and `BrokerRefuses` with what one says against it.
    """
    view = access.view
    brokers = sorted(view.live_brokers(), key=lambda broker: broker.incarnation)
    unreachable: BrokerUnreachable | None = None
    for broker in brokers:
        try:
            answer = ask(broker, method, path, body=body, timeout_s=access.deadline.remaining_ms() / 1_000)
        except BrokerUnreachable as error:
            unreachable = error
            continue
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            unreachable = BrokerUnreachable(broker=broker.broker, address=path, problem=_told(answer))
        elif answer.status >= HTTPStatus.BAD_REQUEST:
            raise BrokerRefuses(broker=broker.broker, problem=_told(answer))
        else:
            return _document(answer.text)
    raise unreachable or NobodyToAsk(log=access.log.name)


def _exchange(method: str, url: str, data: bytes | None, timeout_s: float) -> tuple[Answer, str | None]:
    """The answer, and where it sends the caller, if it does. Raises `OSError`, `HTTPException`, `ValueError`."""
    from http.client import HTTPConnection

    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError("that is no http:// address")
    connection = HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, body=data)
        with connection.getresponse() as response:
            text = response.read(_ANSWER_BYTES_MAX).decode(errors="replace")
            location = response.getheader("Location") if response.status == HTTPStatus.TEMPORARY_REDIRECT else None
            return Answer(status=response.status, text=text), location
    finally:
        connection.close()


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
