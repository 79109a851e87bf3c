"""Run operations at a broker for the paths of its administration."""

from __future__ import annotations

from collections.abc import Awaitable

from aiohttp import web

from equipoise.brokers.http.answers import done
from equipoise.brokers.http.caller import requester_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.operations.in_worker import Operations, WorkerPort
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.system.deadline import Deadline


class Admin:
    """The base of the classes whose paths change the cluster."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._operations = Operations(worker)

    def _port(self, request: web.Request) -> WorkerPort:
        """Return the port for one operation of the caller, within `admin_ms`. Raises `NotReady`,
        and what `requester_of` raises.
        """
        ready_view(self._worker)
        deadline = Deadline.after(timeout_ms=self._worker.config.admin_ms)
        return self._operations.port(deadline, requested_by=requester_of(request))

    async def _done(self, operation: Awaitable[object]) -> web.Response:
        """Return 204 at the end of an operation."""
        await operation
        return done()
