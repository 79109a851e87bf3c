"""Check whether a broker may answer from its view. An outdated view would deny what exists.

Reading handlers use this before and after they read.
"""

from __future__ import annotations

from functools import wraps

from aiohttp import web

from equipoise.brokers.errors import NotReady
from equipoise.brokers.runtime.router import may_deny
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.view import View


def ready_view(worker: Worker) -> View:
    """Return the view of a broker that is ready. Raises `NotReady` and `WorkerEnded`."""
    worker.check()
    if not worker.agent.is_ready:
        left = worker.replay_progress.left
        raise NotReady(broker=worker.broker_id) if left is None else NotReady(broker=worker.broker_id, problem=str(left))
    return worker.view


def view_of_cluster(worker: Worker, request: web.Request) -> View:
    """Return the view of a broker that is ready. Raises `NotFound` if the path names another cluster."""
    view, cluster = ready_view(worker), request.match_info["cluster"]
    if cluster != view.cluster:
        raise NotFound(f"there is no cluster {cluster!r} here; the name of this one is {view.cluster!r}")
    return view


def denying(worker: Worker, route: web.RouteDef) -> web.RouteDef:
    """Return the same route, which raises `NotReady` instead of a denial while `worker` may not deny anything."""
    handler = route.handler

    @wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except NotFound:
            if may_deny(worker.agent, worker.clock.now(), log_is_readable=worker.log_is_available):
                raise
            problem = "it has lost the channel, and may not know the newest state"
            raise NotReady(broker=worker.broker_id, problem=problem) from None

    return web.RouteDef(route.method, route.path, answered, route.kwargs)
