"""Run operations at a broker for the paths of its administration."""

from __future__ import annotations

from typing import TypeVar

from aiohttp import web

from equipoise.brokers.http.answers import done
from equipoise.brokers.http.caller import requester_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.operations.in_worker import Operations
from equipoise.brokers.operations.steps import Operation
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.system.deadline import Deadline

T = TypeVar("T")


class Admin:
    """The base of the classes whose paths change the cluster."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._operations = Operations(worker)

    async def _run(self, request: web.Request, operation: Operation[T]) -> T:
        """Run an operation for the caller within `admin_ms`. Raises `NotReady`, and what
        `requester_of` and `Operations.run` raise.
        """
        ready_view(self._worker)
        deadline = Deadline.after(timeout_ms=self._worker.config.admin_ms)
        return await self._operations.run(operation, deadline, requested_by=requester_of(request))

    async def _done(self, request: web.Request, operation: Operation[object]) -> web.Response:
        """Run an operation for the caller, and return 204."""
        await self._run(request, operation)
        return done()
