"""Run whole programs in one process and in virtual time: each is a copy of a user's module, called
through its ASGI app, without a socket.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import orjson

from equipoise.brokers.client.attempts import IDEMPOTENT, OUTCOME, RequestOutcome
from equipoise.brokers.runtime.embedding.by_key import AsgiApp
from equipoise.brokers.runtime.embedding.forwarding import Message
from equipoise.brokers.runtime.embedding.installed import Installed
from equipoise.brokers.runtime.service import Service
from equipoise.brokers.sharded.program import Equipoise
from equipoise.brokers.testing.moving_cluster import PATIENCE_MS, MovingCluster
from equipoise.brokers.testing.virtual_member import Member
from equipoise.channel.core.errors import CallerError, PeerError

SHARDS_MAX: Final = 4
"""How many bundles a namespace has in a test, at most."""

WITHIN_MS: Final = 60_000
"""How much virtual time a request may take: longer than a lease and a failover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - what the program sends
        """Return the body, decoded. Raises `ValueError`."""
        return orjson.loads(self.body)


@dataclass(slots=True)
class _Program:
    """A copy of the user's module, with the calls that it answers now."""

    app: AsgiApp
    member: Equipoise
    calls: set[asyncio.Task[None]] = field(default_factory=set)


class Programs(MovingCluster[Service]):
    """Programs of one cluster in virtual time, each of them a copy of the module of an app.

    What `Cluster` does, it does too: kill and start programs, give bundles, let time pass.
    `service(program)` is the first service of a program. Each cluster has a working folder of its
    own, which is empty at first, so that a store in a file begins anew. Modules that yours imports
    are shared by the programs.
    """

    def __init__(
        self,
        app: str,
        namespace: str = "",
        key: str = "",
        *,
        at: int | None = None,
        kills: bool = False,
        brokers: int | Sequence[str] = 3,
        patience_ms: int = PATIENCE_MS,
        serves_peers: bool = True,
    ) -> None:
        """`app` is `MODULE:APP`, as servers take it. Raises `CallerError` for one without
        `Equipoise`.
        """
        super().__init__(
            Service,
            namespace,
            key,
            at=at,
            kills=kills,
            brokers=brokers,
            patience_ms=patience_ms,
            serves_peers=serves_peers,
        )
        self._name = app
        self._programs: dict[str, _Program] = {}
        self._namespaces: Mapping[str, int] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._copies = 0
        self._at_end = ExitStack()

    def __enter__(self) -> Self:
        """Start the programs, and create the namespaces of their services."""
        folder = TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True)
        self._at_end.enter_context(chdir(self._at_end.enter_context(folder)))
        try:
            super().__enter__()
            for namespace, shards in self._namespaces.items():
                self.create(namespace, bundles=min(shards, SHARDS_MAX))
        except BaseException:
            self._at_end.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._at_end.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        headers: Mapping[str, str] | None = None,
        within_ms: int = WITHIN_MS,
    ) -> Answer:
        """Send a request as a client does, and return the answer: see `send`."""
        sent = self.send(method, path, json=json, headers=headers)
        return self.call(sent, within_ms=within_ms)

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request to any program, follow redirects, and send it again if it was not
        executed, or may be repeated (PUT, GET, DELETE). Use it in `call`.

        Raises `PeerError` if nobody knows whether it was executed, since its program was killed or
        lost the key, and what the program raises.
        """
        body = b"" if json is None else orjson.dumps(json)
        about = {"host": "program", "content-type": "application/json"} | dict(headers or {})
        target = self.brokers[0]
        while True:
            outcome = RequestOutcome.NOT_STARTED.value
            answer: Answer | None = None
            if target in self._programs:
                outcome = RequestOutcome.UNKNOWN.value
                answer = await self._exchanged(target, _scope(method, path, about), body)
            if answer is not None and answer.status == HTTPStatus.TEMPORARY_REDIRECT:
                target = urlsplit(answer.headers["location"]).hostname or target
                continue
            if answer is not None:
                if OUTCOME.lower() not in answer.headers:
                    return answer
                outcome = answer.headers[OUTCOME.lower()]
            if outcome != RequestOutcome.NOT_STARTED.value and method not in IDEMPOTENT:
                raise PeerError(
                    f"nobody knows whether {method} {path} was executed: its program was killed, or"
                    " lost the key meanwhile; only GET, PUT, DELETE and the like are sent again"
                )
            await self._world.change()
            running = self.brokers
            target = running[(running.index(target) + 1) % len(running) if target in running else 0]

    async def _exchanged(self, target: str, scope: Message, body: bytes) -> Answer | None:
        """Return the answer of a program; None if it is killed meanwhile."""
        program = self._programs[target]
        sent: list[Message] = []

        async def receive() -> Message:
            await asyncio.sleep(0)  # As a network does.
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            await asyncio.sleep(0)
            sent.append(message)

        call = asyncio.ensure_future(program.app(scope, receive, send))
        program.calls.add(call)
        try:
            await asyncio.wait({call})
        finally:
            program.calls.discard(call)
            call.cancel()
        if call.cancelled() or self._programs.get(target) is not program:
            return None
        call.result()
        return Answer(
            status=sent[0]["status"],
            headers={
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in sent[0]["headers"]
            },
            body=b"".join(message.get("body", b"") for message in sent[1:]),
        )

    def _new_member(self, broker: str) -> Member:
        program = self._copied(broker)
        hosts: list[Member] = []

        def host(services: Mapping[str, Service]) -> Member:
            self._services[broker] = next(iter(services.values()))
            hosts.append(Member(broker, services, self._world))
            return hosts[0]

        self._namespaces = program.member.host_at(host)
        self._programs[broker] = program
        life = asyncio.get_running_loop().create_task(self._live(program))
        self._lives.add(life)
        program.calls.add(life)
        return hosts[0]

    def _crash(self, broker: str) -> None:
        """End a program at once. A dead process answers nobody."""
        super()._crash(broker)
        for call in self._programs.pop(broker).calls:
            call.cancel()

    def _suspended(self, coroutine: object) -> Coroutine[Any, Any, None] | None:
        """Leave out programs that wait for their end."""
        is_life = asyncio.current_task() in self._lives
        return None if is_life else super()._suspended(coroutine)

    async def _live(self, program: _Program) -> None:
        messages: Iterator[Message] = iter([{"type": "lifespan.startup"}])

        async def receive() -> Message:
            for message in messages:
                return message
            while True:
                await self._world.change()  # The program ends by being killed.

        async def send(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                raise CallerError(f"{self._name} does not start: {message.get('message')}")

        await program.app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)

    def _copied(self, broker: str) -> _Program:
        """Import the module once more, under a name of its own."""
        module, _, name = self._name.partition(":")
        found = find_spec(module)
        if found is None or found.origin is None:
            raise CallerError(f"there is no module {module}; name the app as MODULE:APP")
        self._copies += 1
        copy = f"{module}#{self._copies}-{broker}"
        spec = spec_from_file_location(copy, found.origin)
        assert spec is not None, "it has an origin"
        assert spec.loader is not None, "it has an origin"
        made = module_from_spec(spec)
        sys.modules[copy] = made  # Where pydantic and others look up what annotations name.
        self._at_end.callback(sys.modules.pop, copy)
        spec.loader.exec_module(made)
        app = getattr(made, name or "app", None)
        # `install` makes a method of an `Equipoise` middleware; `wrap` keeps one with its argument.
        around = [getattr(each, "cls", None) for each in getattr(app, "user_middleware", ())]
        if isinstance(app, Installed):
            around.append(getattr(app.running, "func", None))
        owners = [getattr(each, "__self__", None) for each in around]
        for member in owners:
            if isinstance(member, Equipoise) and callable(app):
                return _Program(app, member)
        raise CallerError(
            f"{self._name} is no app with an Equipoise; give Equipoise(...).install(app) or .wrap"
        )


def _scope(method: str, path: str, headers: Mapping[str, str]) -> Message:
    url = urlsplit(path)
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": url.path,
        "raw_path": url.path.encode(),
        "query_string": url.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
