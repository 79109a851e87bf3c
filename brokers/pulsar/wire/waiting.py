"""Track the unanswered requests of one connection, within bounds."""

from __future__ import annotations

from enum import Enum
from typing import Final

from equipoise.brokers.pulsar.wire.errors import NothingAsked, NotServed, ServerError, UnexpectedCommand
from equipoise.brokers.pulsar.wire.limits import Limits


class Asked(Enum):
    """The classes of requests within which a waiting id is unique. Clients number some of them together, others separately."""

    PARTITIONS = "PARTITIONED_METADATA"
    LOOKUP = "LOOKUP"
    TOPICS = "GET_TOPICS_OF_NAMESPACE"
    SCHEMA = "GET_SCHEMA"
    NEW_SCHEMA = "GET_OR_CREATE_SCHEMA"
    STATS = "CONSUMER_STATS"
    PRODUCER = "PRODUCER"
    CONSUMER = "SUBSCRIBE"
    CHANGE = "CLOSE or UNSUBSCRIBE"


# These are answered before anything else is read, so they cannot accumulate. A refused CLOSE would leave the client sure that the thing is
# gone while it still gets messages.
_ANSWERED_AT_ONCE: Final = frozenset({Asked.SCHEMA, Asked.NEW_SCHEMA, Asked.STATS, Asked.CHANGE})


class Waiting:
    """The waiting requests and their total size, since the service keeps them until it answers."""

    __slots__ = ("_bytes", "_bytes_max", "_requests", "_requests_max")

    def __init__(self, *, limits: Limits) -> None:
        """Start empty."""
        self._requests: dict[tuple[Asked, int], int] = {}
        self._requests_max = limits.requests_pending_max
        self._bytes = 0
        self._bytes_max = limits.pending_bytes_max

    def ask(self, kind: Asked, request_id: int, request_bytes: int) -> None:
        """Add a request. Raise `NotServed` if there are too many, `UnexpectedCommand` if its id already waits."""
        if (kind, request_id) in self._requests:
            raise UnexpectedCommand(problem=f"a second {kind.value} {request_id} before the first was answered")
        is_full = len(self._requests) >= self._requests_max or self._bytes + request_bytes > self._bytes_max
        if is_full and kind not in _ANSWERED_AT_ONCE:
            # On SERVICE_NOT_READY clients retry a producer or consumer, also when they reconnect. On a lookup that code would end it for
            # good.
            is_creation = kind in {Asked.PRODUCER, Asked.CONSUMER}
            raise NotServed(
                error=ServerError.SERVICE_NOT_READY if is_creation else ServerError.TOO_MANY_REQUESTS,
                problem=f"{len(self._requests)} requests of this connection, of {self._bytes} bytes, wait already; ask less at once",
            )
        self._requests[kind, request_id] = request_bytes
        self._bytes += request_bytes

    def answer(self, kind: Asked, request_id: int) -> None:
        """Remove a request that is answered or cancelled. Raise `NothingAsked` if there is no such request."""
        request_bytes = self._requests.pop((kind, request_id), None)
        if request_bytes is None:
            raise NothingAsked(kind=kind.value, request_id=request_id)
        self._bytes -= request_bytes

    def clear(self) -> None:
        """Remove all requests at the end of the connection."""
        self._requests.clear()
        self._bytes = 0
