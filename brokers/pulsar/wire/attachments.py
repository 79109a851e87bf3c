"""What a connection has of producers, or of consumers: asked for, live, or closed by this side a moment ago.

May live here: the table of one kind of id. Ids are chosen by the client, and mean nothing on any other connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.requests import Kind
from equipoise.brokers.pulsar.wire.waiting import Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What the service attached to an id: its `thing`, the `place` (a topic, or a topic and subscription) and the `name` it has."""

    thing: object
    place: tuple[str, ...]
    name: str
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Attach this in place of a `thing` that another broker serves: the connection sends the client to `url` at the first SEND or FLOW.

    Not sooner: some clients ignore a CLOSE that comes before they have taken in the success (docs/adr/0014-wrong-broker.md).
    Without a `url` the client looks the topic up again.
    """

    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A creation that the service has not answered: the request that wants the answer, and the place."""

    request_id: int
    place: tuple[str, ...]
    kept_bytes: int


class Kept:
    """What is kept of the texts with which a connection has asked for producers and consumers, of both together."""

    __slots__ = ("_bytes_max", "bytes")

    def __init__(self, *, bytes_max: int) -> None:
        """Nothing is kept yet; `bytes_max` may be."""
        self._bytes_max = bytes_max
        self.bytes = 0

    def check(self, bytes_: int) -> None:
        """Raises `NotServed` if there is no room for so much more."""
        if self.bytes + bytes_ > self._bytes_max:
            problem = f"the names and properties of what this connection has take {self.bytes} of {self._bytes_max} bytes; use another one"
            raise NotServed(error=ServerError.TOO_MANY_REQUESTS, problem=problem)


class Attachments:
    """The ids of one kind on one connection; each is in at most one of the three states."""

    __slots__ = ("_closed_at_ms", "_closed_for_ms", "_closed_ids_max", "_count_max", "_kept", "asked", "creations", "kind", "live")

    def __init__(self, *, kind: Kind, asked: Asked, limits: Limits, count_max: int, kept: Kept) -> None:
        """Of one `kind`, created by requests `asked` for; at most `count_max` are live or asked for at once. `kept` is the connection's."""
        self.kind = kind
        self._kept = kept
        self.asked = asked
        self._count_max = count_max
        self._closed_for_ms = limits.closed_for_ms
        self._closed_ids_max = limits.closed_ids_max
        self._closed_at_ms: dict[int, int] = {}
        self.creations: dict[int, Creation] = {}
        self.live: dict[int, Attached] = {}

    def check_creation(self, id_: int, place: tuple[str, ...], kept_bytes: int) -> Attached | None:
        """What is live under this id at this very place, so that there is nothing to create; raises `NotServed` if it cannot be."""
        live = self.live.get(id_)
        if live is not None and live.place == place:
            return live
        if live is not None:
            raise NotServed(error=ServerError.NOT_ALLOWED, problem=f"the id {id_} is in use for {' '.join(live.place)}; close that first")
        if id_ in self.creations:
            raise NotServed(error=ServerError.SERVICE_NOT_READY, problem=f"the creation of {id_} is under way already; try again")
        count = len(self.creations) + len(self.live)
        if count >= self._count_max:
            problem = f"this connection has {count} of them, the most that it may have; close some, or use another connection"
            raise NotServed(error=ServerError.TOO_MANY_REQUESTS, problem=problem)
        self._kept.check(kept_bytes)
        return None

    def ask(self, id_: int, creation: Creation) -> None:
        """A creation begins."""
        self._closed_at_ms.pop(id_, None)
        self.creations[id_] = creation
        self._kept.bytes += creation.kept_bytes

    def settle(self, id_: int, request_id: int) -> Creation | None:
        """The service answers a creation; None if that one was cancelled, or answered already."""
        creation = self.creations.get(id_)
        if creation is None or creation.request_id != request_id:
            return None
        self._kept.bytes -= creation.kept_bytes
        return self.creations.pop(id_)

    def attach(self, id_: int, thing: object, creation: Creation, *, name: str = "") -> None:
        """What was asked for with `creation`, which is settled, is live."""
        self.live[id_] = Attached(thing=thing, place=creation.place, name=name, kept_bytes=creation.kept_bytes)
        self._kept.bytes += creation.kept_bytes

    def detach(self, id_: int) -> bool:
        """What was live is not; False if it is not live anyway."""
        attached = self.live.pop(id_, None)
        if attached is None:
            return False
        self._kept.bytes -= attached.kept_bytes
        return True

    def close(self, id_: int, now_ms: int) -> bool:
        """This side closes a live one; False if it is not live."""
        if not self.detach(id_):
            return False
        self._closed_at_ms[id_] = now_ms
        if len(self._closed_at_ms) > self._closed_ids_max:
            # A dict keeps the order of insertion, and `ask` takes an id out: the first is the one closed longest ago.
            del self._closed_at_ms[next(iter(self._closed_at_ms))]
        return True

    def was_closed(self, id_: int, now_ms: int) -> bool:
        """Whether this side closed it so short a while ago that the client may not have known when it last wrote."""
        closed_at_ms = self._closed_at_ms.get(id_)
        return closed_at_ms is not None and now_ms - closed_at_ms < self._closed_for_ms

    def clear(self) -> None:
        """The connection is over."""
        self._closed_at_ms.clear()
        self.creations.clear()
        self.live.clear()
        self._kept.bytes = 0
