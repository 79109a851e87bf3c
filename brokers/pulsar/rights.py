"""Refuse requests of Pulsar's clients whose role lacks the right for them, and end producers and
consumers that lose it.

As in Pulsar, a client whose right is revoked is disconnected from its topics. It looks them up
again, and is then refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from equipoise.brokers.pulsar.link import ClientLink
from equipoise.brokers.pulsar.topics.clients import Refusal
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
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

    def __init__(self, authorization: Authorization, worker: Worker) -> None:
        """`worker` has read who has which rights."""
        self._authorization = authorization
        self._worker = worker
        self._changed = asyncio.Event()

    def lacking(self, client: ClientLink, request: Guarded) -> str | None:
        """Return why the role of the client lacks the right for a request; None if it has the
        right.
        """
        place, identity = _place_of(request), client.identity
        if place is None:
            return None  # The name is none, which is the next thing that is found.
        assert identity is not None, "rights need authentication, which comes first"
        on = request.namespace if isinstance(request, TopicsAsked) else request.topic
        what, address = (
            f"{request.asked.value} {on[:_SHOWN_MAX]}",
            client.address.rpartition(":")[0],
        )
        return self._authorization.check(
            Surface.PULSAR, identity, NEEDS[type(request)], place, what=what, client=address
        )

    async def refusal(self, client: ClientLink, request: Guarded, why: str) -> Refusal:
        """Return the refusal of a request whose right is lacking, once all rights are read.

        A client whose right was granted a moment ago tries again, as it does if this broker may not
        have read all rights.
        """
        place, identity = _place_of(request), client.identity
        assert place is not None, "the right is lacking"
        assert identity is not None, "rights need authentication, which comes first"
        is_certain = await self._worker.up_to_date(timeout_ms=self._worker.config.lookup_ms)
        is_final = is_certain and not self._authorization.is_allowed(
            identity, NEEDS[type(request)], place
        )
        return Refusal(
            error=ServerError.AuthorizationError if is_final else ServerError.MetadataError,
            message=why,
        )

    async def follow(self, clients: Callable[[], Iterable[ClientLink]]) -> None:
        """End producers and consumers whose right is revoked, as soon as this broker has read
        that. `clients` returns those that are connected.
        """
        end = self._worker.listen(self._heard, resynced=lambda _: self._changed.set())
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._end_revoked(clients())
        finally:
            end()

    def _heard(self, folded: Folded) -> None:
        if any(
            isinstance(change, PolicyChanged | NamespaceChanged)
            for change in folded.verdict.changes
        ):
            self._changed.set()

    async def _end_revoked(self, clients: Iterable[ClientLink]) -> None:
        for number, client in enumerate(clients):
            if number % _SESSIONS_PER_TURN == 0:
                await asyncio.sleep(0)  # Clients are served between them.
            try:
                self._revoke(client)
            except Exception:  # Rights of other clients must still end.
                _logger.exception(
                    "rights of a Pulsar client could not be ended",
                    extra={"client": client.address},
                )
                client.abort()

    def _revoke(self, client: ClientLink) -> None:
        identity = client.identity
        if identity is None:
            return

        def has(need: Need, topic: str) -> bool:
            place = _place_in(parse_topic(topic).namespace)
            return self._authorization.is_allowed(identity, need, place)

        client.revoke(has)


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
