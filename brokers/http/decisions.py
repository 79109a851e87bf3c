"""Serve the balancing decisions of the whole cluster, from any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.decision_log import open_decision_log
from equipoise.brokers.decision_log.spelling import document_of
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import integer_of
from equipoise.brokers.runtime.worker import Worker

LIMIT: Final = 20
LIMIT_MAX: Final = 1_000


class Decisions:
    """The path of decisions of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._log_url = worker.config.log_url

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the route."""
        return (web.get("/admin/v2/balancing/decisions", self.newest),)

    async def newest(self, request: web.Request) -> web.Response:
        """Return the newest decisions, oldest first."""
        limit = integer_of(request, "limit", default=LIMIT, at_most=LIMIT_MAX)
        found = await asyncio.to_thread(lambda: open_decision_log(self._log_url).newest(limit))
        return json_answer([document_of(decision) for decision in found])
