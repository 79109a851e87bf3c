"""Track the ids of a connection: producers and consumers that are asked for, live or recently
closed, and unanswered requests.

Clients choose the ids. They mean nothing on other connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from equipoise.brokers.pulsar.wire.errors import NotServed
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import Asked, PulsarProtocolError, Violation
from equipoise.channel.core.errors import Bug


@dataclass(slots=True, kw_only=True)
class Attached:
    """What a client asked for under an id at a `place` (a topic, or a topic and subscription), and
    the `thing` and `name` that the service then attached to the id.
    """

    request_id: int
    place: tuple[str, ...]
    kept_bytes: int
    thing: object = None
    name: str = ""


class Kept:
    """A count of the bytes of names and properties kept for all producers and consumers of a
    connection.
    """

    __slots__ = ("_bytes_max", "bytes")

    def __init__(self, *, bytes_max: int) -> None:
        """Start with 0 of `bytes_max`."""
        self._bytes_max = bytes_max
        self.bytes = 0

    def check(self, bytes_: int) -> None:
        """Raise `NotServed` if there is no room for `bytes_` more."""
        if self.bytes + bytes_ > self._bytes_max:
            problem = (
                f"the names and properties of this connection take {self.bytes} of"
                f" {self._bytes_max} bytes; use another connection"
            )
            raise NotServed(error=ServerError.TooManyRequests, problem=problem)


class Attachments:
    """The ids of one kind on one connection. Each id is in at most one of the three states."""

    __slots__ = (
        "_closed_at_ms",
        "_closed_for_ms",
        "_closed_ids_max",
        "_count_max",
        "_kept",
        "asked",
        "creations",
        "live",
    )

    def __init__(self, asked: Asked, *, limits: Limits, count_max: int, kept: Kept) -> None:
        """Start empty. At most `count_max` ids are live or asked for at once.

        `asked` is the class of the creating requests; producers and consumers of a connection share
        `kept`.
        """
        self.asked = asked
        self._kept = kept
        self._count_max = count_max
        self._closed_for_ms = limits.closed_for_ms
        self._closed_ids_max = limits.closed_ids_max
        self._closed_at_ms: dict[int, int] = {}
        self.creations: dict[int, Attached] = {}
        """What the service has not answered."""
        self.live: dict[int, Attached] = {}

    def check_creation(self, id_: int, place: tuple[str, ...], kept_bytes: int) -> Attached | None:
        """Return what is already live under this id at this place, or None. Raise `NotServed` if it
        cannot be created.
        """
        live = self.live.get(id_)
        if live is not None and live.place == place:
            return live
        if live is not None:
            raise NotServed(
                error=ServerError.NotAllowedError,
                problem=f"the id {id_} is in use for {' '.join(live.place)}; close it first",
            )
        if id_ in self.creations:
            raise NotServed(
                error=ServerError.ServiceNotReady,
                problem=f"the id {id_} is already being created; try again",
            )
        count = len(self.creations) + len(self.live)
        if count >= self._count_max:
            problem = (
                f"this connection already has {count}, the maximum; close some, or use another"
                " connection"
            )
            raise NotServed(error=ServerError.TooManyRequests, problem=problem)
        self._kept.check(kept_bytes)
        return None

    def ask(self, id_: int, creation: Attached) -> None:
        """Start a creation."""
        self._closed_at_ms.pop(id_, None)
        self.creations[id_] = creation
        self._kept.bytes += creation.kept_bytes

    def settle(self, id_: int, request_id: int) -> Attached | None:
        """End a creation that the service answers, and return it. Return None if it was cancelled
        or already answered.
        """
        creation = self.creations.get(id_)
        if creation is None or creation.request_id != request_id:
            return None
        self._kept.bytes -= creation.kept_bytes
        return self.creations.pop(id_)

    def attach(self, id_: int, settled: Attached) -> None:
        """Make the result of a settled creation live."""
        self.live[id_] = settled
        self._kept.bytes += settled.kept_bytes

    def detach(self, id_: int) -> bool:
        """Remove a live id. Return False if it is not live."""
        attached = self.live.pop(id_, None)
        if attached is None:
            return False
        self._kept.bytes -= attached.kept_bytes
        return True

    def close(self, id_: int, now_ms: int) -> bool:
        """Close a live id on the broker's side. Return False if it is not live."""
        if not self.detach(id_):
            return False
        self._closed_at_ms[id_] = now_ms
        if len(self._closed_at_ms) > self._closed_ids_max:
            # A dict keeps insertion order and `ask` removes ids, so the first id was closed longest
            # ago.
            del self._closed_at_ms[next(iter(self._closed_at_ms))]
        return True

    def was_closed(self, id_: int, now_ms: int) -> bool:
        """Return whether the broker closed the id so recently that the client may not have known
        when it last wrote.
        """
        closed_at_ms = self._closed_at_ms.get(id_)
        return closed_at_ms is not None and now_ms - closed_at_ms < self._closed_for_ms

    def clear(self) -> None:
        """Clear all ids at the end of the connection."""
        self._closed_at_ms.clear()
        self.creations.clear()
        self.live.clear()
        self._kept.bytes = 0


# These are answered before anything else is read, so they cannot accumulate. A refused CLOSE would
# leave the client sure that the thing is gone while it still gets messages.
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
        """Add a request. Raise `NotServed` if there are too many, `PulsarProtocolError` if its id
        already waits.
        """
        if (kind, request_id) in self._requests:
            raise PulsarProtocolError(
                Violation.UNEXPECTED_COMMAND,
                f"a second {kind.value} {request_id} before the first was answered",
            )
        is_full = (
            len(self._requests) >= self._requests_max
            or self._bytes + request_bytes > self._bytes_max
        )
        if is_full and kind not in _ANSWERED_AT_ONCE:
            # On SERVICE_NOT_READY clients retry a producer or consumer, also when they reconnect.
            # On a lookup that code would end it for good.
            is_creation = kind in {Asked.PRODUCER, Asked.CONSUMER}
            raise NotServed(
                error=(ServerError.ServiceNotReady if is_creation else ServerError.TooManyRequests),
                problem=(
                    f"{len(self._requests)} requests of this connection ({self._bytes} bytes)"
                    " already wait; send fewer at once"
                ),
            )
        self._requests[kind, request_id] = request_bytes
        self._bytes += request_bytes

    def answer(self, kind: Asked, request_id: int) -> None:
        """Remove a request that is answered or cancelled. Raise `Bug` if there is no such
        request.
        """
        request_bytes = self._requests.pop((kind, request_id), None)
        if request_bytes is None:
            raise Bug(
                f"the Pulsar service answered {kind.value} {request_id}, which waits for no answer;"
                " please report this message"
            )
        self._bytes -= request_bytes

    def clear(self) -> None:
        """Remove all requests at the end of the connection."""
        self._requests.clear()
        self._bytes = 0
