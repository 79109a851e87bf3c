"""Run operations at a broker for the paths of its administration."""

from __future__ import annotations

from typing import TypeVar

from aiohttp import web

from equipoise.brokers.http.answers import done
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

    async def _run(self, operation: Operation[T]) -> T:
        """Run an operation within `admin_ms`. Raises `NotReady`, and what `Operations.run` raises."""
        ready_view(self._worker)
        return await self._operations.run(operation, Deadline.after(timeout_ms=self._worker.config.admin_ms))

    async def _done(self, operation: Operation[object]) -> web.Response:
        """Run an operation, and return 204."""
        await self._run(operation)
        return done()
