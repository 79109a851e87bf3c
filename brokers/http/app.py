"""The HTTP interface of a broker, put together.

May live here: the application factory; `brokers.main` serves it.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from brokers.http.admin_brokers import Brokers
from brokers.http.admin_namespaces import Namespaces
from brokers.http.assignment import Assignment
from brokers.http.bodies import BODY_BYTES_MAX
from brokers.http.errors import typed
from brokers.http.health import Health
from brokers.http.lookup import Lookup
from brokers.lookups import Lookups
from brokers.worker import Worker
from channel.ranges import TopicName


def make_app(worker: Worker, lookups: Lookups, *, is_pulsars: Callable[[TopicName], bool] | None = None) -> web.Application:
    """All paths of one worker; what any of them raises becomes a typed answer. `is_pulsars` is for `Lookup`.

    Routes of services are added as `typed`, too; and after them `unmatched`, for whatever nobody takes.
    """
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    assignment = Assignment(worker)
    for paths in (Lookup(worker, lookups, is_pulsars=is_pulsars), assignment, Namespaces(worker), Brokers(worker), Health(worker)):
        app.add_routes([typed(route) for route in paths.routes()])
    # At shutdown, not at cleanup: who follows is sent home before the server waits for what is under way.
    app.on_shutdown.append(assignment.close)
    return app
