"""Make a program a member of a cluster: its services, its settings, and one line that installs them
into a web program.

`Settings` names the settings and their types, for type checkers. `WorkerConfig` checks values.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypedDict, Unpack, cast

from yarl import URL

from equipoise.brokers.runtime.embedding.by_key import AsgiApp
from equipoise.brokers.runtime.embedding.embedded import (
    ADDRESS_VARIABLE,
    LINGER_MS,
    READY_MS_MAX,
    ROUTE_MS,
    Worker,
)
from equipoise.brokers.runtime.embedding.installed import Installed, show_log_lines
from equipoise.brokers.runtime.service import Service, ServiceHost
from equipoise.brokers.sharded.keyed import ROUTED, UNROUTED, Keyed
from equipoise.brokers.sharded.tasks import Tasks
from equipoise.channel.core.errors import CallerError, EquipoiseError


class Settings(TypedDict, total=False):
    """Any setting of a broker: see the reference of settings. Durations are in milliseconds."""

    data_dir: Path | str
    broker_id: str | None
    host: str
    http_port: int
    insecure: bool
    advertised_host: str | None
    check_address: bool
    http_hosts: Sequence[str]
    http_connections_max: int
    http_idle_ms: int
    http_body_ms: int
    identity_connections_max: int
    identity_requests_per_second_max: int
    identity_bytes_per_second_max: int | None
    authentication: bool
    token_secret_key: str | None
    token_public_key: str | None
    token_claim: str
    token_audience: str | None
    basic_passwords: str | None
    certificate_roles: bool
    broker_token: str | None
    authorization: bool
    super_roles: Sequence[str]
    proxy_roles: Sequence[str]
    tls_certificate: Path | str | None
    tls_key: Path | str | None
    tls_ca: Path | str | None
    tls_crl: Path | str | None
    tls_require_client_certificate: bool
    capacity: int | None
    cpu_cores: float | None
    capacities: Mapping[str, float]
    failure_domain: str | None
    labels: Mapping[str, str]
    pulsar_port: int | None
    pulsar_connections_max: int
    pulsar_message_bytes_max: int
    pulsar_keep_alive_ms: int
    pulsar_settle_ms: int
    pulsar_stats_ms: int
    lease_ms: int
    renew_ms: int
    grace_ms: int
    prove_deaths: bool
    extend_ms: int
    round_trip_ms: int
    reconnect_ms: int
    failover_ms: int
    stall_ms: int
    clock_rate_error_ppm: int
    prepare_ms: int
    open_ms: int
    close_ms: int
    log_wait_ms: int
    drain_ms: int
    lookup_ms: int
    admin_ms: int
    evidence: Path | str | None
    observations: bool
    measure_cpu: bool
    balance: bool
    balance_interval_ms: int
    balancing: Mapping[str, object]
    compact_records: int
    compact_age_ms: int
    retain: str


_logger: Final = logging.getLogger(__name__)

PREFIX: Final = "/equipoise"

_CREATE_AGAIN_S: Final = 1.0


class _Program(Protocol):
    """A program of Starlette or FastAPI."""

    def add_middleware(self, middleware_class: Any, **options: Any) -> None:  # noqa: ANN401
        """Put an ASGI app around the program, when it starts."""
        ...


class Equipoise(Worker):
    """One program as a member of a cluster: its broker, and what it serves.

    `install` runs it in a web program, `async with Equipoise(...)` in any program with an event
    loop. Entering the context waits until the broker is a member. Leaving it moves the bundles of
    the broker to other brokers first. Everything runs on the event loop that enters. Outside the
    context calls raise `CallerError`.

    At SIGTERM and SIGINT, in the context and in the main thread, the broker drains, and the program
    answers until no call for a key has come for 0.2 s, and for `linger_ms` at most. Then the
    handler that was there before handles the signal; a second signal goes to it at once. If the
    event loop handles the signals, nothing is done before it.

    If the broker ends before its program does, every call raises `WorkerEnded` with the reason,
    also `check()`: call it in the health check of the program. `finished()` and the end of the
    context raise the error that ended the broker. Nothing in the context is cancelled.
    """

    def __init__(
        self,
        log_url: str,
        *services: Keyed[Any] | Tasks | Mapping[str, Service],
        cluster: str,
        address: str | None = None,
        linger_ms: int = LINGER_MS,
        **settings: Unpack[Settings],
    ) -> None:
        """A mapping is from patterns of namespaces, such as `shop/*`, to services of your own.

        * `cluster`: the name of the cluster. A program refuses the log of another one.
        * `address`: where other programs and callers reach this one, such as `http://host:8000`.
          Default: EQUIPOISE_ADDRESS in the environment when the program starts. One that is neither
          installed nor mounted needs none.
        * `linger_ms`: how long the program answers at most after it has drained.
        * `settings`: any setting of a broker, by name. With `broker_id` a broker comes back as
          itself, and has its `data_dir` beside the log, if that is a file. Without one it is new at
          each start.

        Raises `InvalidConfig` for settings that are unknown, wrong or unsafe together, and
        `CallerError` for a malformed address, for two services of one namespace, and for what is no
        service.
        """
        for each in services:
            if not isinstance(each, Keyed | Tasks | Mapping):
                raise CallerError(
                    f"{each!r} is no service: give Equipoise a Keyed, a Tasks, or a mapping from"
                    " namespaces to services"
                )
        named = [
            {each.namespace: each} if isinstance(each, Keyed | Tasks) else each for each in services
        ]
        registered = dict[str, Service]()
        # A pattern must not take the namespace of another service.
        for each in sorted(named, key=lambda each: "*" in "".join(each)):
            for pattern in each.keys() & registered.keys():
                raise CallerError(
                    f"two services for {pattern}: {type(registered[pattern]).__name__} and"
                    f" {type(each[pattern]).__name__}; give each its own namespace"
                )
            registered |= each
        self._sharded = [each for each in services if isinstance(each, Keyed | Tasks)]
        self._address = address
        self._linger_ms = linger_ms
        self._creating: asyncio.Task[None] | None = None
        if address is not None:
            _check_address(address)
        given: dict[str, Any] = {**settings, "cluster": cluster}
        if address is not None:
            given["advertised_addresses"] = {"http": address}
        super().__init__(log_url, registered, **given)

    async def __aenter__(self) -> Self:
        """Start, wait until the broker is a member, for 60 s at most, and create the namespaces of
        `Keyed` and `Tasks` unless they exist.

        An installed program waits only until the broker has read the log: it joins once it answers
        at its `address`, which its server opens afterwards.

        Raises `CallerError` if the log URL, the address or a service cannot be used,
        `OperatorError` if the log, the data directory or the port cannot, and `PeerError` if the
        log is away, or the time is over. Also raises the errors of `create_namespace`.
        """
        if self._address is None:
            self._find_address()
        await super().__aenter__()
        try:
            self._parts.enter_context(self._draining(self._linger_ms))
        except CallerError as error:
            if self._mounted is not None:
                _logger.warning("callers may be refused at the end: %s", error)
        self._started.promised = frozenset(each.namespace for each in self._sharded)
        if not self._started.is_reachable:
            self._creating = asyncio.create_task(self._create_later())
            return self
        try:
            await self._create()
        except BaseException as error:
            await super().__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._creating is not None:
            self._creating.cancel()
        await super().__aexit__(kind, error, trace)

    def _find_address(self) -> None:
        if not self._needs_address:
            self._listen_anywhere()
        elif address := os.environ.get(ADDRESS_VARIABLE):
            _check_address(address, named=f"{ADDRESS_VARIABLE}=")
            self._advertised_addresses["http"] = address

    async def _create(self) -> None:
        for each in self._sharded:
            await self.create_namespace(each.namespace, bundles=each.shards)

    async def _create_later(self) -> None:
        """Create the namespaces once the server listens, and the broker is a member."""
        while self._started.ended is None:
            try:
                await self._started.ready(timeout_ms=READY_MS_MAX)
                await self._create()
            except EquipoiseError as error:
                _logger.warning("namespaces not created yet: %s", error)
                await asyncio.sleep(_CREATE_AGAIN_S)
            else:
                return

    def install(self, app: _Program) -> None:
        """Make a FastAPI or Starlette program a member, in one line.

        The broker starts after the program and ends before it, with its paths below `/equipoise`.
        Calls of endpoints with `Keyed.route` are redirected to the program that owns the key (307),
        and wait while no program does. 503: they were not served.

        The program does not start without an `address`, nor if an endpoint with `Keyed.route`
        cannot get its object. Raises `CallerError` as `asgi` does. For other frameworks, see
        `wrap`.
        """
        app.add_middleware(self._around, http=self._http(), program=app)

    def wrap(self, app: AsgiApp, *, keys: Mapping[str, str], forward: bool = False) -> AsgiApp:
        """Return the program around an app of any ASGI framework, as `install` does. `keys` maps
        paths with a key, such as `/visits/{key}`, to the namespaces of the keys: see `by_key`, also
        for `forward`.

        Raises `CallerError` as `install` does, and as `by_key` does.
        """
        http = self._http()
        for path, namespace in keys.items():
            # `Installed` takes the paths of the broker, and ends answers while that drains.
            app = self._by_key(
                app, namespace=namespace, key=path, forward=forward, timeout_ms=ROUTE_MS
            )
        return self._around(app, http=http)

    def _http(self) -> AsgiApp:
        self._joins_later = True
        return self.asgi(PREFIX)

    def _around(self, app: AsgiApp, *, http: AsgiApp, program: object = None) -> Installed:
        running = partial(self._living, program)
        return Installed(
            app,
            http=http,
            prefix=PREFIX,
            running=running,
            drains=self._drains,
            measures=self._config.measure_cpu,
        )

    def host_at(self, host: Callable[[Mapping[str, Service]], ServiceHost]) -> Mapping[str, int]:
        """For `equipoise.pytest` only: have the virtual broker of a test host the services, which
        `host` takes by pattern. Return the bundles of each namespace to create.
        """
        self._host = cast("Any", host(self._services))
        return {each.namespace: each.shards for each in self._sharded}

    @asynccontextmanager
    async def _living(self, program: object) -> AsyncGenerator[None]:
        for path, endpoint in _endpoints_of(program):
            self._check_endpoint(path, endpoint)
        if self._host is not None:  # A test hosts it.
            yield
            return
        show_log_lines()
        async with self:
            yield

    def _check_endpoint(self, path: str, endpoint: object) -> None:
        """Raise `CallerError` for an endpoint with `Keyed.route` that cannot get its object."""
        name = getattr(endpoint, "__name__", repr(endpoint))
        routed, unrouted = getattr(endpoint, ROUTED, None), getattr(endpoint, UNROUTED, None)
        if routed is None and unrouted is not None:
            raise CallerError(
                f"the endpoint {name} gets no object of {unrouted.namespace}: `route` stands above"
                " the decorator of the framework; write it below"
            )
        if routed is None:
            return
        if routed not in self._sharded:
            raise CallerError(f"the endpoint {name} cannot be called: {routed.unserved()}")
        key = next(iter(inspect.signature(cast("Any", endpoint)).parameters.values()))
        # An annotation may give the key another name, or say that it is elsewhere.
        if key.annotation is str and not re.search(rf"{{{key.name}[}}:]", path):
            raise CallerError(
                f"the endpoint {name} gets no key of {routed.namespace}: its path {path!r} has no"
                f" {{{key.name}}}; write that into the path, or name a parameter of the path in"
                " `route`"
            )


def _endpoints_of(program: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the paths and endpoints of a program of Starlette or FastAPI, with those of its
    routers. `path` stands before the paths.
    """
    for route in getattr(program, "routes", None) or ():
        part = getattr(route, "path", None) or ""
        if (included := getattr(route, "include_context", None)) is not None:
            part = included.prefix
        yield path + part, getattr(route, "endpoint", None)
        yield from _endpoints_of(getattr(route, "original_router", route), path + part)


def _check_address(address: str, *, named: str = "") -> None:
    try:
        url = URL(address)
        is_valid = (
            url.scheme in ("http", "https")
            and str(url.relative()) in ("", "/")
            and "@" not in url.raw_authority
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise CallerError(
            f"{named}{address!r} is not the address of a program: expected http://HOST:PORT or"
            " https://HOST:PORT, without a user or a path"
        )
