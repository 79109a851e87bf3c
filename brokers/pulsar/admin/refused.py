"""Refuse what Pulsar serves and this server does not: each path of a persistent topic, and its WebSocket interface."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web

from equipoise.brokers.http.errors import problem_answer
from equipoise.brokers.pulsar.topics.names import PERSISTENT, not_stored
from equipoise.brokers.runtime.service import pulsar_address
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import parse_topic

# aiohttp prefers a path whose fixed start is longer, so all these go before the paths of both domains, in any order.
_TOPIC: Final = f"/admin/v2/{PERSISTENT}/{{tenant}}/{{namespace}}/{{topic}}"


class Refused:
    """The paths that one broker refuses with one sentence."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes. Lists of persistent topics are not among them: they are empty."""
        return (
            web.route("*", f"{_TOPIC}/{{rest:.*}}", self.persistent),
            *(web.route(method, _TOPIC, self.persistent) for method in ("PUT", "POST", "DELETE")),
            web.route("*", "/ws/{path:.*}", self.websocket),
        )

    async def persistent(self, request: web.Request) -> web.Response:
        """Refuse a persistent topic. The reason names the topic to use."""
        named = request.match_info
        raise not_stored(parse_topic(f"{PERSISTENT}://{named['tenant']}/{named['namespace']}/{named['topic']}"))

    async def websocket(self, request: web.Request) -> web.Response:
        """Refuse a WebSocket client with 501."""
        url = pulsar_address(self._worker.profile.addresses) or "the broker's Pulsar address"
        reason = f"this server has no WebSocket interface; use a client of Pulsar's binary protocol at {url}"
        return problem_answer(request, HTTPStatus.NOT_IMPLEMENTED, reason, "NotSupported")
