"""Serve what the balancer would move now, and carry out exactly such a plan, a batch with each
request, so that nothing goes on after a page that was closed.

`equipoise plan` does the same on the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, TypeAdapter

from equipoise.brokers.balancing.forecast import Forecast, Standing
from equipoise.brokers.balancing.planning import cluster_snapshot_of, fresh, predicted_round
from equipoise.brokers.balancing.saved_plans import SavedPlan, read_plan, saved_plan
from equipoise.brokers.balancing.settings.balancing_settings import placement_of
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.decision_log import newest_by_kind
from equipoise.brokers.errors import invalid_request
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import required_body_of
from equipoise.brokers.http.page.sections import rounded
from equipoise.brokers.operations.applying import apply_next, check_unchanged, outcome_sentence
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.view import View
from equipoise.shedder.loads import Load

PLAN_PATH: Final = "/v1/plan"

_CORE: Final = 100
"""A core in the unit of capacities."""


class _ApplyBody(BaseModel):
    """The text of a plan, and the bundles of those of its moves that are left."""

    model_config = ConfigDict(extra="forbid")

    text: str
    left: list[str]


_APPLY_BODY: Final = TypeAdapter[_ApplyBody | None](_ApplyBody | None)


class Plans(Admin):
    """The path of plans of one worker."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._lock = asyncio.Lock()

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return web.get(PLAN_PATH, self.plan), web.post(PLAN_PATH, self.apply)

    async def plan(self, request: web.Request) -> web.Response:
        """Return what the balancer would move now: the load of each broker before and after, as a
        share of the broker, the moves with their reasons, and the text that applies them.
        """
        view, worker = self._call(request).view, self._worker
        async with self._lock:
            loads = await asyncio.to_thread(worker.load_bus.latest)
            now_ms, config = worker.clock.now().wall_ms, worker.config
            # As rounds are planned: 100,000 bundles take half a second, and the fold goes on.
            return json_answer(
                await asyncio.to_thread(_planned, view.copy(), loads, config, now_ms=now_ms)
            )

    async def apply(self, request: web.Request) -> web.Response:
        """Make the next moves of a plan, as many as may run at once. Return what became of each.
        Send it again with those that are left.

        409 if something has changed that concerns the moves that are left.
        """
        body = await required_body_of(
            request, _APPLY_BODY, "the text of a plan, and the bundles whose moves are left"
        )
        try:
            plan = read_plan(body.text.encode())
        except ValueError as error:
            raise invalid_request(what="the plan", problem=str(error)) from error
        left, port = [move for move in plan.moves if move.bundle in body.left], self._port(request)
        check_unchanged(plan, port.view, left)
        return json_answer(
            [
                {
                    "bundle": move.bundle,
                    "arrived": outcome is not None and outcome.owner == move.destination,
                    "text": outcome_sentence(move, outcome),
                }
                for move, outcome in (await apply_next(port, plan, left) if left else ())
            ]
        )


def _planned(
    view: View, loads: Sequence[Load], config: WorkerConfig, *, now_ms: int
) -> dict[str, object]:
    settings = settings_in(view, config.base_settings)
    cluster = cluster_snapshot_of(view, loads, settings, now_ms=now_ms)
    placement = placement_of(settings, fresh(loads, settings, now_ms=now_ms))
    last = newest_by_kind(config.log_url).get("shed")
    strategy, forecast = predicted_round(cluster, settings, placement, last=last)
    saved = saved_plan(view, forecast.plan, settings.balancing)
    return {"at_ms": now_ms, "strategy": strategy, **_document(saved, forecast)}


def _document(saved: SavedPlan, forecast: Forecast) -> dict[str, object]:
    predicted = {move.bundle: move.predicted for move in forecast.plan.moves}
    idle, by_cost = forecast.plan.idle, forecast.measure.kind == "cost"
    return {
        "id": saved.id,
        "text": saved.text(),
        "measure": forecast.measure.kind,
        "brokers": {
            each.broker: {
                "before": _share(each.before, each.capacity, by_cost=by_cost),
                "after": _share(each.after, each.capacity, by_cost=by_cost),
                "bundles": each.after.bundles - each.before.bundles,
                "apart": each.apart,
            }
            for each in forecast.brokers
        },
        "deviation": [
            None if each is None else rounded(each.deviation)
            for each in (forecast.before, forecast.after)
        ],
        "moves": [
            {
                "bundle": move.bundle,
                "from": move.source,
                "to": move.destination,
                "reason": move.reason,
                "predicted": None
                if (found := predicted[move.bundle]) is None
                else [found.source, found.destination],
            }
            for move in saved.moves
        ],
        "idle": None if idle is None else idle.reason,
        "stays": [f"{each.subject}: {each.reason}" for each in forecast.plan.stays],
    }


def _share(standing: Standing, capacity: int | None, *, by_cost: bool) -> float | None:
    """Return the load of a broker as a share of it, in the measure of the policy."""
    if not by_cost:
        return None if standing.used is None else rounded(standing.used)
    return rounded(_CORE * standing.cost / capacity) if capacity else None
