"""Serve health, readiness and metrics of a broker, also while it waits for its log. These paths
answer in any state, and change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from http import HTTPStatus

from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from equipoise.brokers.errors import not_ready
from equipoise.brokers.http.answers import json_answer, text_answer, typed
from equipoise.brokers.http.otlp import export_metrics
from equipoise.brokers.http.page.files import PageFiles
from equipoise.brokers.runtime.metrics import CONTENT_TYPE
from equipoise.brokers.runtime.router import ChannelLoss
from equipoise.brokers.runtime.worker import PROCESS, Worker


class Health:
    """The paths about the process of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get("/health", self.health),
            web.get("/ready", self.ready),
            web.get("/metrics", self.metrics),
            web.get("/admin/v2/broker-stats/metrics", self.metrics_as_json),
            web.get("/admin/v2/brokers/health", self.pulsar_health),
        )

    async def health(self, _request: web.Request) -> web.Response:
        """Return whether the broker is alive. A broker that is cut off is alive: do not kill it.
        503: it has ended, restart it.
        """
        self._worker.check()
        answer = json_answer(
            {"status": "ok", "broker": self._worker.broker_id, "channel_loss": self._channel_loss()}
        )
        answer.headers[PROCESS] = self._worker.process
        return answer

    async def ready(self, _request: web.Request) -> web.Response:
        """Return whether clients may be sent here; 503, with the problems, if not."""
        problems, losses, maintenance = (
            self._problems(),
            self._losses(),
            self._worker.agent.maintenance,
        )
        serves_on = bool(losses) and not problems and self._serves_on()
        is_ready = not problems and (serves_on or not losses)
        body = {
            "status": "serving on" if serves_on else "ready" if is_ready else "not ready",
            "broker": self._worker.broker_id,
            "problems": problems + losses,
            "channel_loss": self._channel_loss(),
            "maintenance": None if maintenance is None else maintenance.reason,
        }
        return json_answer(
            body, status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        )

    async def pulsar_health(self, _request: web.Request) -> web.Response:
        """Return `ok`, in Pulsar's form; 503 otherwise."""
        problems = self._problems() + ([] if self._serves_on() else self._losses())
        if problems:
            raise not_ready(broker=self._worker.broker_id, problem=", ".join(problems))
        return text_answer("ok")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Return all metrics, in Prometheus' text format."""
        return web.Response(body=self.scrape(), headers={"Content-Type": CONTENT_TYPE})

    async def metrics_as_json(self, _request: web.Request) -> web.Response:
        """Return all metrics in the JSON form of Pulsar's `monitoring-metrics`: an object for each
        set of labels, with its samples.

        Buckets of histograms are left out.
        """
        found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for family in text_string_to_metric_families(self.scrape().decode()):
            for sample in family.samples:
                # JSON has no infinity.
                if math.isfinite(sample.value) and not sample.name.endswith("_bucket"):
                    found.setdefault(tuple(sample.labels.items()), {})[sample.name] = sample.value
        return json_answer(
            [{"metrics": values, "dimensions": dict(labels)} for labels, values in found.items()]
        )

    async def export_metrics(self) -> None:
        """Export all metrics by OTLP until cancelled, if OpenTelemetry's variables ask for that."""
        await export_metrics(self._worker, self.scrape)

    def scrape(self) -> bytes:
        """Return all metrics of now, in Prometheus' text format."""
        worker = self._worker
        lease, now = worker.agent.lease, worker.clock.now()
        return worker.metrics.scrape(
            worker.view,
            incarnation=worker.agent.incarnation,
            lease_left_ms=lease.left_ms(now),
            lease_is_extended=lease.outlasts(now),
            lag_records=worker.lag_records,
            log_is_available=worker.log_is_available,
            channel_loss=worker.channel_loss,
        )

    def _problems(self) -> list[str]:
        agent, ended = self._worker.agent, self._worker.ended
        problems = []
        if ended is not None:
            problems.append(str(ended))
        elif not agent.is_ready:
            left = self._worker.replay_progress.left
            problems.append(
                "it is still reading the channel, or joining" if left is None else str(left)
            )
            # For a member this is only an alarm, and no reason to redirect clients.
            if self._worker.disk_problem is not None:
                problems.append(str(self._worker.disk_problem))
        elif agent.drains:
            problems.append("it drains")
        return problems + list(self._worker.client_problems.values())

    def _losses(self) -> list[str]:
        """Return the effects of a lost channel on this broker so far."""
        worker = self._worker
        is_fenced = worker.agent.is_ready and not worker.agent.lease.good(worker.clock.now())
        losses = ["its lease has run out"] if is_fenced else []
        if worker.append_problem is not None:
            losses.append(f"the log takes no records: {worker.append_problem}")
        return losses if worker.log_is_available else [*losses, "the log cannot be read"]

    def _serves_on(self) -> bool:
        """Return whether it still serves bundles although the channel is lost: by its lease, by
        assurances, or by a policy. It must then stay in rotation for clients.
        """
        worker = self._worker
        loss, lease = worker.channel_loss, worker.agent.lease
        return loss is not None and (lease.good(worker.clock.now()) or bool(loss.serving_on))

    def _channel_loss(self) -> dict[str, object] | None:
        loss = self._worker.channel_loss
        return None if loss is None else loss.document()


class WaitingRoom:
    """The paths of a broker that waits for its log."""

    def __init__(self, *, broker: str, loss: Callable[[], ChannelLoss]) -> None:
        """`broker` is its id. `loss` returns since when it waits, and the latest error of the
        log.
        """
        self._broker = broker
        self._loss = loss

    def app(self) -> web.Application:
        """Return the application that is served meanwhile."""
        app = web.Application()
        app.add_routes([typed(route) for route in self.routes()])
        return app

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes. All other paths are refused for now."""
        return (
            web.get("/health", self.health),
            web.get("/ready", self.ready),
            *PageFiles().routes(),
            web.route("*", "/{path:(?s:.*)}", self.refused),
        )

    async def health(self, _request: web.Request) -> web.Response:
        """Return that the process is alive. Do not kill it because of an outage of the log."""
        return json_answer(
            {"status": "ok", "broker": self._broker, "channel_loss": self._loss().document()}
        )

    async def ready(self, _request: web.Request) -> web.Response:
        """Return 503 with the reason: clients must use another broker."""
        loss = self._loss()
        body = {
            "status": "not ready",
            "broker": self._broker,
            "problems": [_problem(loss)],
            "channel_loss": loss.document(),
        }
        return json_answer(body, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def refused(self, _request: web.Request) -> web.Response:
        """Refuse the request, because the channel was never read."""
        raise not_ready(broker=self._broker, problem=_problem(self._loss()))


def _problem(loss: ChannelLoss) -> str:
    return f"it waits for the log: {loss.problem}"
