"""Answer requests while a broker waits for its log. Then `brokers.http.app` takes over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

from aiohttp import web

from equipoise.brokers.errors import NotReady
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.errors import typed
from equipoise.brokers.runtime.channel_loss import ChannelLoss


class WaitingRoom:
    """The paths of a broker that waits for its log."""

    def __init__(self, *, broker: str, loss: Callable[[], ChannelLoss]) -> None:
        """`broker` is its id. `loss` returns since when it waits, and the latest error of the log."""
        self._broker = broker
        self._loss = loss

    def app(self) -> web.Application:
        """Return the application that is served meanwhile."""
        app = web.Application()
        app.add_routes([typed(route) for route in self.routes()])
        return app

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes. All other paths are refused for now."""
        return (web.get("/health", self.health), web.get("/ready", self.ready), web.route("*", "/{path:(?s:.*)}", self.refused))

    async def health(self, _request: web.Request) -> web.Response:
        """Return that the process is alive. Do not kill it because of an outage of the log."""
        return json_answer({"status": "ok", "broker": self._broker, "channel_loss": self._loss().document()})

    async def ready(self, _request: web.Request) -> web.Response:
        """Return 503 with the reason: clients must use another broker."""
        loss = self._loss()
        body = {"status": "not ready", "broker": self._broker, "problems": [_problem(loss)], "channel_loss": loss.document()}
        return json_answer(body, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def refused(self, _request: web.Request) -> web.Response:
        """Refuse the request, because the channel was never read."""
        raise NotReady(broker=self._broker, problem=_problem(self._loss()))


def _problem(loss: ChannelLoss) -> str:
    return f"it waits for the log: {loss.problem}"
