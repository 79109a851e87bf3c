"""Answer the paths of the administration from rows of a table: most of them read one fact, or run
one operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, ClassVar, TypeVar

from aiohttp import web
from pydantic import TypeAdapter

from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import bundle_of, namespace_of, required_body_of
from equipoise.brokers.http.caller import requester_of
from equipoise.brokers.http.readiness import view_for
from equipoise.brokers.operations.in_worker import Operations, WorkerPort
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import NamespaceEntry
from equipoise.channel.core.view import View
from equipoise.channel.system.clocks import Deadline

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request at one broker. Its properties are what the path names; they raise what is wrong
    with it.
    """

    request: web.Request
    worker: Worker
    operations: Operations

    @property
    def view(self) -> View:
        """The view of this cluster. Raises as `view_for` does."""
        return view_for(self.worker, self.request)

    @property
    def port(self) -> WorkerPort:
        """The port for one operation of the caller, within `admin_ms`. Raises as `view_for` and
        `requester_of` do.
        """
        view_for(self.worker, self.request)
        deadline = Deadline.after(timeout_ms=self.worker.config.admin_ms)
        return self.operations.port(deadline, requested_by=requester_of(self.request))

    @property
    def namespace(self) -> str:
        """The name of the namespace. Raises `InvalidName`."""
        return namespace_of(self.request)

    @property
    def entry(self) -> NamespaceEntry:
        """The namespace in the view. Raises `UnknownNamespace`."""
        return namespace_named(self.view, self.namespace)

    @property
    def bundle(self) -> str:
        """The full name of the bundle. Raises `InvalidName`."""
        return bundle_of(self.request)

    def named(self, part: str) -> str:
        """Return a part of the path as it stands."""
        return self.request.match_info[part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method of one path. `text` and `answers` describe it in the reference of HTTP.

    `answer` gets the call, and the body if the row has one. A result that is to be awaited is an
    operation, which is answered with 204; any other is the answer, as JSON unless it is one
    already. `expected` describes a body.
    """

    name: str
    method: str
    path: str
    text: str
    answer: Callable[..., object]
    answers: Sequence[Callable[..., web.Response]]
    body: TypeAdapter[Any] | None = None
    expected: str = ""


def fact(
    name: str,
    path: str,
    text: str,
    answer: Callable[[Call], object],
    *answers: Callable[..., web.Response],
) -> Row:
    """Return the row of a GET."""
    return Row(
        name=name,
        method="GET",
        path=path,
        text=text,
        answer=answer,
        answers=answers or (json_answer,),
    )


def order(name: str, route: str, text: str, operation: Callable[[Call], Awaitable[object]]) -> Row:
    """Return the row of an operation. `route` is its method and path."""
    method, _, path = route.partition(" ")
    return Row(name=name, method=method, path=path, text=text, answer=operation, answers=(done,))


def order_with(
    body: tuple[TypeAdapter[Value | None] | type[Value], str],
    name: str,
    route: str,
    text: str,
    operation: Callable[[Call, Value], Awaitable[object]],
) -> Row:
    """Return the row of an operation that needs a body, of this type and description."""
    kind: Any = body[0]
    method, _, path = route.partition(" ")
    return Row(
        name=name,
        method=method,
        path=path,
        text=text,
        answer=operation,
        answers=(done,),
        body=kind if isinstance(kind, TypeAdapter) else TypeAdapter[Any](kind | None),
        expected=body[1],
    )


class Admin:
    """The base of the classes that serve paths of the administration. `rows` are those of a class
    that need no handler of their own.
    """

    rows: ClassVar[Sequence[Row]] = ()

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._operations = Operations(worker)

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return [web.route(row.method, row.path, partial(self._answered, row)) for row in self.rows]

    async def _answered(self, row: Row, request: web.Request) -> web.StreamResponse:
        call = self._call(request)
        if row.body is None:
            result = row.answer(call)
        else:
            view_for(self._worker, request)
            result = row.answer(call, await required_body_of(request, row.body, row.expected))
        if isawaitable(result):
            return await self._done(result)
        return result if isinstance(result, web.StreamResponse) else json_answer(result)

    def _call(self, request: web.Request) -> Call:
        return Call(request=request, worker=self._worker, operations=self._operations)

    def _port(self, request: web.Request) -> WorkerPort:
        return self._call(request).port

    async def _done(self, operation: Awaitable[object]) -> web.Response:
        """Return 204 at the end of an operation."""
        await operation
        return done()
