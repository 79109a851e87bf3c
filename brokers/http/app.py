"""Assemble the HTTP application of a broker, and serve it at a socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import hdrs, web

from equipoise.brokers.http.admin.absent import DEFAULTS, defaults
from equipoise.brokers.http.admin.balancing import Balancing, Controls, Decisions
from equipoise.brokers.http.admin.brokers import Brokers, Handovers
from equipoise.brokers.http.admin.cluster_policies import Clusters, Policies
from equipoise.brokers.http.admin.namespaces import Grants, Namespaces, NamespaceTopics, Tenants
from equipoise.brokers.http.answers import SERVER, traced, typed
from equipoise.brokers.http.assignment import Assignment
from equipoise.brokers.http.authentication import authenticated
from equipoise.brokers.http.bodies import BODY_BYTES_MAX
from equipoise.brokers.http.connections import Connections
from equipoise.brokers.http.guard import guarded
from equipoise.brokers.http.health import Health
from equipoise.brokers.http.lookup import Lookup
from equipoise.brokers.http.page.live import LiveOverview, page_routes
from equipoise.brokers.http.readiness import reading
from equipoise.brokers.http.rights import authorized
from equipoise.brokers.runtime.listening import listen
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.ranges import TopicName

SHUTDOWN_S: Final = 2.0
"""After a broker has left, requests in progress get this long to finish."""


def make_app(
    worker: Worker,
    lookups: Lookups,
    *,
    is_pulsars: Callable[[TopicName], bool] | None = None,
    end: Callable[[], None] | None = None,
    topics: NamespaceTopics | None = None,
) -> web.Application:
    """Return an application with all paths of one worker. Errors become typed answers.

    `is_pulsars` is for `Lookup`, `end` for `Brokers`, and `topics` for `Namespaces`.

    Add the routes of services as `typed`, too, and `unmatched` after them.
    """
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    assignment, overview = Assignment(worker), LiveOverview(worker)
    lookup = Lookup(worker, lookups, is_pulsars=is_pulsars)
    # Lookups read the log to its end only before they deny something.
    app.add_routes(
        [
            typed(route)
            for route in (
                *lookup.routes(),
                *Handovers(worker).routes(),
                *Health(worker).routes(),
                *page_routes(worker, overview),
            )
        ]
    )
    groups = (
        assignment,
        Clusters(worker),
        Tenants(worker),
        Namespaces(worker, topics),
        Grants(worker),
        Policies(worker),
        Brokers(worker, end),
        Balancing(worker),
        Controls(worker),
        Decisions(worker),
    )
    routes = [*(route for each in groups for route in each.routes()), *defaults(worker, DEFAULTS)]
    app.add_routes([typed(reading(worker, route)) for route in routes])
    # At shutdown, not at cleanup: followers must end before the server waits for requests in
    # progress.
    app.on_shutdown.extend((assignment.close, overview.close))
    return app


@asynccontextmanager
async def served(
    app: web.Application, listening: socket.socket, worker: Worker
) -> AsyncIterator[None]:
    """Serve an application at a bound socket, TCP or Unix, and close the socket at the end.
    Requests in progress may still be answered.

    This also adds the guard, authentication, the limits of connections and of each client, and
    rights, for each application of a broker.
    """
    if worker.traces is not None:
        app.middlewares.append(traced(worker.traces))
    app.middlewares.append(guarded(worker.config, tuple(worker.profile.addresses.values())))
    app.middlewares.append(
        authenticated(worker.access.gate, worker.access.limits, worker.access.audit)
    )
    if worker.access.authorization is not None:
        app.middlewares.append(authorized(worker, worker.access.authorization))
    app.on_response_prepare.append(_signed)
    is_local = listening.family == socket.AF_UNIX
    # Linux has it. All connections inherit it.
    if hasattr(socket, "TCP_USER_TIMEOUT") and not is_local:
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, worker.config.http_idle_ms
        )
    runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    server = runner.server
    assert server is not None, "it was set up"
    listener = None
    try:
        connections = Connections(server, worker)
        listener = await listen(
            listening,
            connections.made,
            port="http",
            certificates=worker.access.certificates,
            handshakes=worker.access.handshakes,
        )
        yield
    finally:
        if listener is not None:
            listener.close()
        await runner.cleanup()


async def _signed(request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers[hdrs.SERVER] = SERVER
    # Nobody reads the rest of the body, so no other request can follow it.
    if not request.content.is_eof():
        answer.force_close()
        answer.headers[hdrs.CONNECTION] = "close"  # aiohttp has decided on this header before.
