"""Health, readiness and metrics: what a machine wants to know of a broker's process.

May live here: these paths. They answer in any state of the broker, and touch nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from aiohttp import web

from brokers.errors import NotReady
from brokers.http.answers import json_answer, text_answer
from brokers.metrics import CONTENT_TYPE
from brokers.worker import Worker


class Health:
    """The paths about the process of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> Sequence[web.RouteDef]:
        """The paths."""
        return (
            web.get("/health", self.health),
            web.get("/ready", self.ready),
            web.get("/metrics", self.metrics),
            web.get("/admin/v2/brokers/health", self.pulsar_health),
        )

    async def health(self, _request: web.Request) -> web.Response:
        """That the process is alive: that its loop answers says it. A broker that is cut off is not to be killed for it."""
        return json_answer({"status": "ok", "broker": self._worker.broker_id})

    async def ready(self, _request: web.Request) -> web.Response:
        """Whether clients had better be sent here, and if not, why."""
        problems = self._problems()
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        body = {"status": "not ready" if problems else "ready", "broker": self._worker.broker_id, "problems": problems}
        return json_answer(body, status=status)

    async def pulsar_health(self, _request: web.Request) -> web.Response:
        """`ok`, as Pulsar says it; 503 otherwise."""
        problems = self._problems()
        if problems:
            raise NotReady(broker=self._worker.broker_id, problem=", ".join(problems))
        return text_answer("ok")

    async def metrics(self, _request: web.Request) -> web.Response:
        """All metrics, in Prometheus' text format."""
        worker = self._worker
        scrape = worker.metrics.scrape(
            worker.view,
            incarnation=worker.agent.incarnation,
            lease_left_ms=worker.agent.lease.left_ms(worker.clock.now()),
            lag_records=worker.lag_records,
            log_is_available=worker.log_is_available,
        )
        return web.Response(body=scrape, headers={"Content-Type": CONTENT_TYPE})

    def _problems(self) -> list[str]:
        agent = self._worker.agent
        problems = []
        if not agent.is_ready:
            problems.append("it is still reading the channel, or joining")
        elif not agent.lease.good(self._worker.clock.now()):
            problems.append("its lease has run out")
        elif agent.entry is not None and agent.entry.status == "draining":
            problems.append("it drains")
        if not self._worker.log_is_available:
            problems.append("the log cannot be read")
        return problems
