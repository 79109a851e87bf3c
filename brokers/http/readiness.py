"""Check whether a broker may answer from its view, and bring the view up to date before it answers.

An outdated view would deny what exists.
"""

from __future__ import annotations

from functools import wraps
from typing import Final

from aiohttp import web

from equipoise.brokers.errors import not_ready
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.view import View

CHANNEL_LOST_MS: Final = "X-Channel-Lost-Ms"
"""The header of an answer that may be out of date: for how many milliseconds the broker has lost
the channel."""


def ready_view(worker: Worker) -> View:
    """Return the view of a broker that is ready. Raises `PeerError` and `WorkerEnded`."""
    worker.check()
    if not worker.agent.is_ready:
        left = worker.replay_progress.left
        raise (
            not_ready(broker=worker.broker_id)
            if left is None
            else not_ready(broker=worker.broker_id, problem=str(left))
        )
    return worker.view


def view_for(worker: Worker, request: web.Request) -> View:
    """Return the view of a broker that is ready. Raises `NotFound` if the path names another
    cluster.
    """
    view, cluster = ready_view(worker), request.match_info.get("cluster")
    if cluster is not None and cluster != view.cluster:
        raise NotFound(
            f"there is no cluster {cluster!r} here; the name of this one is {view.cluster!r}"
        )
    return view


def reading(worker: Worker, route: web.RouteDef) -> web.RouteDef:
    """Return the same route, which reads the log to its end first: the answer knows all that any
    broker has answered before.

    If the log cannot be read, the route answers from the view, says so in a header, and raises
    `PeerError` instead of a denial.
    """
    handler = route.handler

    @wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        is_up_to_date = await worker.up_to_date(timeout_ms=worker.config.lookup_ms)
        try:
            answer = await handler(request)
        except NotFound:
            if is_up_to_date:
                raise
            problem = "it has lost the channel, and may not know the newest state"
            raise not_ready(broker=worker.broker_id, problem=problem) from None
        if not is_up_to_date and not answer.prepared:
            loss = worker.channel_loss
            answer.headers[CHANNEL_LOST_MS] = str(0 if loss is None else loss.lost_ms)
        return answer

    return web.RouteDef(route.method, route.path, answered, route.kwargs)
