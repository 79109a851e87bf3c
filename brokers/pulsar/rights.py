"""Refuse requests of Pulsar's clients whose role lacks the right for them, and end producers and
consumers that lose it.

As in Pulsar, a client whose right is revoked is disconnected from its topics. It looks them up
again, and is then refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from equipoise.brokers.pulsar.topics.dispatch import Refusal
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import (
    LookupAsked,
    PartitionsAsked,
    ProducerAsked,
    Request,
    SchemaAsked,
    SchemaOffered,
    SubscribeAsked,
    TopicsAsked,
)
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.identity import Surface
from equipoise.brokers.security.rights import CONSUME, PRODUCE, USE, Authorization, Need, Place
from equipoise.channel.core.entries import NamespaceChanged, PolicyChanged
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import parse_topic, tenant_in
from equipoise.channel.core.reader import Folded

if TYPE_CHECKING:
    from equipoise.brokers.pulsar.session import Session

_logger: Final = logging.getLogger(__name__)

Guarded = (
    PartitionsAsked
    | LookupAsked
    | TopicsAsked
    | SchemaAsked
    | SchemaOffered
    | ProducerAsked
    | SubscribeAsked
)

NEEDS: Final[Mapping[type[Request], Need]] = {
    PartitionsAsked: USE,
    LookupAsked: USE,
    TopicsAsked: USE,
    SchemaAsked: USE,
    SchemaOffered: PRODUCE,
    ProducerAsked: PRODUCE,
    SubscribeAsked: CONSUME,
}
"""What requests need. The others are about what the client has opened, or about its connection."""

_SHOWN_MAX: Final = 256
_SESSIONS_PER_TURN: Final = 64


class Rights:
    """The rights of all clients of one broker."""

    def __init__(
        self,
        authorization: Authorization,
        worker: Worker,
        sessions: Callable[[], Iterable[Session]],
    ) -> None:
        """`sessions` returns the connected clients."""
        self._authorization = authorization
        self._worker = worker
        self._sessions = sessions
        self._changed = asyncio.Event()

    def lacking(self, session: Session, request: Guarded) -> str | None:
        """Return why the role of the client lacks the right for a request; None if it has the
        right.
        """
        place, identity = _place_of(request), session.connection.identity
        if place is None:
            return None  # The name is none, which is the next thing that is found.
        assert identity is not None, "rights need authentication, which comes first"
        on = request.namespace if isinstance(request, TopicsAsked) else request.topic
        what, client = (
            f"{request.asked.value} {on[:_SHOWN_MAX]}",
            session.address.rpartition(":")[0],
        )
        return self._authorization.check(
            Surface.PULSAR, identity, NEEDS[type(request)], place, what=what, client=client
        )

    async def refusal(self, session: Session, request: Guarded, why: str) -> Refusal:
        """Return the refusal of a request whose right is lacking, once all rights are read.

        A client whose right was granted a moment ago tries again, as it does if this broker may not
        have read all rights.
        """
        place, identity = _place_of(request), session.connection.identity
        assert place is not None, "the right is lacking"
        assert identity is not None, "rights need authentication, which comes first"
        is_certain = await self._worker.up_to_date(timeout_ms=self._worker.config.lookup_ms)
        is_final = is_certain and not self._authorization.is_allowed(
            identity, NEEDS[type(request)], place
        )
        return Refusal(
            error=ServerError.AUTHORIZATION_ERROR if is_final else ServerError.METADATA_ERROR,
            message=why,
        )

    async def follow(self) -> None:
        """End producers and consumers whose right is revoked, as soon as this broker has read
        that.
        """
        end = self._worker.listen(self._heard, resynced=lambda _: self._changed.set())
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._end_revoked()
        finally:
            end()

    def _heard(self, folded: Folded) -> None:
        if any(
            isinstance(change, PolicyChanged | NamespaceChanged)
            for change in folded.verdict.changes
        ):
            self._changed.set()

    async def _end_revoked(self) -> None:
        for number, session in enumerate(tuple(self._sessions())):
            if number % _SESSIONS_PER_TURN == 0:
                await asyncio.sleep(0)  # Clients are served between them.
            try:
                self._end_revoked_of(session)
            except Exception:  # Rights of other clients must still end.
                _logger.exception(
                    "rights of a Pulsar client could not be ended",
                    extra={"client": session.address},
                )
                session.abort()

    def _end_revoked_of(self, session: Session) -> None:
        identity = session.connection.identity
        if identity is None:
            return

        def has(need: Need, topic: str) -> bool:
            place = _place_in(parse_topic(topic).namespace)
            return self._authorization.is_allowed(identity, need, place)

        for producer, served in tuple(session.producers.items()):
            if not has(PRODUCE, served.name):
                session.redirect_producer(producer, None)
                session.drop_producer(producer, served)
        for consumer, served in tuple(session.consumers.items()):
            if not has(CONSUME, served.name):
                session.redirect_consumer(consumer, None)
                session.drop_consumer(consumer, served)


def _place_of(request: Guarded) -> Place | None:
    """Return where a request acts; None if its topic has no valid name."""
    if isinstance(request, TopicsAsked):
        return _place_in(request.namespace)
    try:
        return _place_in(parse_topic(request.topic).namespace)
    except InvalidName:
        return None


def _place_in(namespace: str) -> Place:
    return Place(tenant=tenant_in(namespace), namespace=namespace)
