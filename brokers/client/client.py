"""Find the broker that serves a key, wait while there is none, and recover from wrong answers.

Answers are hints from a `Source`: the owner's lease and the token decide whether work is done.

`LogSource` follows the log directly, for programs that can open it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from equipoise.brokers.balancing.named import server_of
from equipoise.brokers.client.attempts import IDEMPOTENT, Call
from equipoise.brokers.client.calls import Calls, Response
from equipoise.brokers.client.http_source import HttpSource
from equipoise.brokers.client.table import Assigned, Source, advised
from equipoise.brokers.errors import UnknownNamespace
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.runtime.service_runner import peer_of
from equipoise.brokers.security.own_token import OwnToken
from equipoise.channel.core.errors import CallerError, Overloaded, without_password
from equipoise.channel.core.ranges import check_namespace, key_hash
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync
from equipoise.channel.inspect.story import why_unserved
from equipoise.channel.log.open_log import open_log
from equipoise.channel.log.table_view import STOP_MS_MAX, TableView
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.loop_thread import CROSSING_MS, InThread, not_running


class LogSource:
    """Follows the channel of one log. See `Source`."""

    def __init__(self, log_url: str, *, changed: Callable[[], None]) -> None:
        """`changed` is called whenever a lookup may return another answer than before."""
        self._changed = changed
        self._table = TableView(lambda: open_log(log_url, create=False), name=log_url)

    async def start(self, *, timeout_ms: int) -> None:
        """See `Source.start`. Reads the log to its end."""
        self._table.listen(self._folded, resynced=self._resynced)
        self._table.start()
        try:
            await self._table.ready(Deadline.after(timeout_ms=timeout_ms))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """See `Source.stop`."""
        await self._table.stop(Deadline.after(timeout_ms=STOP_MS_MAX))

    def find(self, namespace: str, point: int) -> Assigned | None:
        """See `Source.find`. Also raises what ended the subscription to the log."""
        if self._table.failure is not None:
            raise self._table.failure
        view = self._table.view
        bundle = view.bundle_at(namespace, point)
        if bundle is None:
            raise UnknownNamespace(namespace=namespace)
        server = server_of(view, bundle)
        peer = None if server is None else peer_of(server)
        return Assigned(
            bundle=bundle.name, low=bundle.low, high=bundle.high, token=bundle.token, peer=peer
        )

    def unserved(self, namespace: str) -> str | None:
        """See `Source.unserved`."""
        view = self._table.view
        if view.takers(namespace):
            return None
        return advised(why_unserved(view, namespace) or "no broker is up")

    def refresh(self, namespace: str) -> None:
        """See `Source.refresh`. Does nothing: the log is always current."""

    def _folded(self, folded: Folded) -> None:
        if folded.verdict.changes:
            self._changed()

    def _resynced(self, _resync: Resync) -> None:
        self._changed()


START_MS: Final = 30_000
OWNER_MS: Final = 10_000

WAITERS_MAX: Final = 10_000
"""Callers that wait for an owner at a time. Each change makes all of them look again, which takes
about ten milliseconds for 10,000."""

DISTRUST_MS: Final = 1_000
"""How long a wrong owner is not returned again, unless the bundle's entry changes.

A transfer changes the entry within milliseconds. A dead broker's address is tried once a second
until its lease ends.
"""

DISTRUSTED_MAX: Final = 10_000
"""Bundles whose wrong owner is remembered. The oldest is forgotten first."""

# Waiting callers look again this often even without a change, since a source does not notify when
# it ends.
_LOOK_AGAIN_MS: Final = 250

_HTTP: Final = ("http://", "https://")

_NOT_STARTED: Final = "it has not been started"
_ENDED: Final = "it has ended"


class Client:
    """Find the broker that serves a key. Use it as an async context, and make every call on the
    event loop that entered it.
    """

    def __init__(self, *sources: str, token: str | None = None) -> None:
        """`sources` is the URL of the log, or base URLs of brokers, such as
        `http://127.0.0.1:8080`. One broker that answers is enough.

        `token` is for brokers with authentication: the token itself, `basic:USER:PASSWORD`, or the
        `file:///PATH` of either, which is read for each request. Default: the environment variable
        `EQUIPOISE_TOKEN`. The variables `EQUIPOISE_TLS_CA`, `EQUIPOISE_TLS_CERTIFICATE` and
        `EQUIPOISE_TLS_KEY` name files for https:// addresses.

        Raises `CallerError` for anything else.
        """
        self._shown = ", ".join(map(without_password, sources))
        are_http = [source.startswith(_HTTP) for source in sources]
        if not sources or (not all(are_http) and len(sources) > 1):
            raise CallerError(
                "a client takes one log URL, or the http:// or https:// addresses of brokers, not"
                f" {self._shown}"
            )
        self._source: Source
        if all(are_http):
            own_token = OwnToken.of_environment() if token is None else OwnToken(token)
            self._source = HttpSource(sources, changed=self._wake, token=own_token)
        else:
            self._source = LogSource(sources[0], changed=self._wake)
        self._problem: str | None = _NOT_STARTED
        self._waiting: dict[asyncio.Future[None], None] = {}
        # Owners reported as wrong, by bundle: the broker, its token, and until when to avoid it.
        self._distrusted: dict[str, tuple[str, int, int]] = {}
        self._calls: Calls | None = None

    def __repr__(self) -> str:
        return f"<Client of {self._shown}, {'running' if self._problem is None else 'not running'}>"

    def in_thread(self) -> ClientInThread:
        """Return the same client with a thread of its own, as a plain context, for callers without
        an event loop.
        """
        return ClientInThread(self)

    async def __aenter__(self) -> Self:
        """Start. Raises the cause if that fails, such as a log that does not exist or cannot be
        read, or `DeadlineExceeded`.

        Raises `CallerError` the second time.
        """
        if self._problem != _NOT_STARTED:
            raise not_running(what="the client", problem="it was started before")
        self._problem = _ENDED
        await self._source.start(timeout_ms=START_MS)
        self._problem = None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._problem = _ENDED
        self._wake()  # Waiting callers get their error now, not at their deadlines.
        if self._calls is not None:
            await self._calls.close()
        await self._source.stop()

    async def request(
        self,
        method: str,
        namespace: str,
        key: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        json: object = None,
        idempotent: bool | None = None,
        timeout_ms: int = OWNER_MS,
    ) -> Response:
        """Send a request to the program that serves `key`, and return its answer, with any status.

        `path` with its query is below the `http` address of the program. The body is `content`, or
        `json` as JSON. Everything ends within `timeout_ms`: finding the owner, waiting while the
        bundle moves, and all attempts, with random pauses between them.

        The request is sent again:

        * always, if it was certainly not executed: no connection, a redirect to the owner (307,
          308), 421, or 503 of `Equipoise.by_key`;
        * if it may have been executed (the connection broke, no answer in time), only with the
          methods GET, HEAD, OPTIONS, PUT and DELETE. `idempotent` overrides this.

        Any other answer is returned, also 503 of the program itself. At most 128 requests to one
        address are unanswered; others wait for their turn. The token of this client is not sent;
        `headers` go to every broker that is asked.

        Raises `BrokerUnreachable` if the request may have been executed and is not sent again;
        `DeadlineExceeded` if there was no answer in time, with the last problem (without
        `idempotent`, the request was not executed); `UnknownNamespace`; `InvalidName`;
        `Overloaded`; `PeerError` if the owner has no HTTP address; `CallerError` for a request that
        cannot be sent, and as `owner` does.
        """
        is_idempotent = method.upper() in IDEMPOTENT if idempotent is None else idempotent
        self._find(namespace, key_hash(key))  # Raises outside the context.
        if self._calls is None:
            self._calls = Calls(self)
        call = Call(
            method=method.upper(),
            namespace=namespace,
            key=key,
            path=path,
            headers=headers or {},
            content=content,
            json=json,
            is_idempotent=is_idempotent,
        )
        return await self._calls.request(call, timeout_ms=timeout_ms)

    async def owner(self, namespace: str, key: str, *, timeout_ms: int = OWNER_MS) -> Peer:
        """Return the broker that serves `key`. Waits while no broker does, and while the only
        candidate was reported as wrong.

        Raises `DeadlineExceeded`, `UnknownNamespace`, `InvalidName`, `Overloaded`, and
        `CallerError` if a broker refuses the token or outside the context.
        """
        point = key_hash(key)
        deadline = Deadline.after(timeout_ms=timeout_ms)
        while True:
            assigned = self._find(namespace, point)
            distrusted_ms = 0 if assigned is None else self._distrusted_ms(assigned)
            if assigned is not None and assigned.peer is not None and not distrusted_ms:
                return assigned.peer
            if not deadline.remaining_ms():
                unserved = self._source.unserved(namespace)
                why = "" if unserved is None else f" ({unserved})"
                raise deadline.exceeded(f"an owner for {namespace}/{key}{why}")
            await self._change(min(deadline.remaining_ms(), distrusted_ms or _LOOK_AGAIN_MS))
            if distrusted_ms and assigned is not None and not self._distrusted_ms(assigned):
                self._source.refresh(namespace)

    def misrouted(self, namespace: str, key: str, seen: Peer) -> None:
        """Report that `seen`, which `owner` returned, does not serve `key` (it refused, redirected,
        or cannot be reached).

        `owner` does not return this broker again until the bundle's entry changes or one second has
        passed. Raises `UnknownNamespace`, `InvalidName`, and `CallerError` outside the context.
        """
        assigned = self._find(namespace, key_hash(key))
        if assigned is None or assigned.peer is None or assigned.peer.broker != seen.broker:
            return  # The table has already changed.
        is_believed_again = not self._distrusted_ms(assigned)
        before = self._distrusted.pop(assigned.bundle, None)  # Makes it the newest entry.
        if is_believed_again and before is not None and before[:2] == (seen.broker, assigned.token):
            self._source.refresh(namespace)  # Wrong again, so the trouble was not temporary.
        if len(self._distrusted) >= DISTRUSTED_MAX:
            del self._distrusted[next(iter(self._distrusted))]
        self._distrusted[assigned.bundle] = (
            seen.broker,
            assigned.token,
            time.monotonic_ns() + DISTRUST_MS * 1_000_000,
        )

    def _find(self, namespace: str, point: int) -> Assigned | None:
        if self._problem is not None:
            raise not_running(what="the client", problem=self._problem)
        return self._source.find(check_namespace(namespace), point)

    def _distrusted_ms(self, assigned: Assigned) -> int:
        """Return how many milliseconds a bundle's owner is still distrusted, rounded up, or 0."""
        broker, token, until_ns = self._distrusted.get(assigned.bundle, ("", 0, 0))
        if assigned.peer is None or (assigned.peer.broker, assigned.token) != (broker, token):
            return 0
        return max(0, -((time.monotonic_ns() - until_ns) // 1_000_000))

    async def _change(self, timeout_ms: int) -> None:
        """Wait for a change, at most `timeout_ms`."""
        if len(self._waiting) >= WAITERS_MAX:
            raise Overloaded(what="the queue of callers that wait for an owner", limit=WAITERS_MAX)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1_000):
                    await waiter
        finally:
            del self._waiting[waiter]

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


class ClientInThread(InThread):
    """A client with its own thread: `with Client(...).in_thread() as client`. Its calls are
    plain functions, for any thread.

    Entering and the calls raise the errors of `Client`, and `CallerError` outside the context.
    """

    def __init__(self, client: Client) -> None:
        """Use `Client.in_thread` instead."""
        super().__init__(
            client, what="the client", start_ms=START_MS + CROSSING_MS, stop_ms=START_MS
        )
        self._client = client

    def owner(self, namespace: str, key: str, *, timeout_ms: int = OWNER_MS) -> Peer:
        """See `Client.owner`."""
        owner = self._client.owner(namespace, key, timeout_ms=timeout_ms)
        return self.run(
            owner, timeout_ms=timeout_ms + CROSSING_MS, what=f"an owner for {namespace}/{key}"
        )

    def request(
        self,
        method: str,
        namespace: str,
        key: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        json: object = None,
        idempotent: bool | None = None,
        timeout_ms: int = OWNER_MS,
    ) -> Response:
        """See `Client.request`."""
        request = self._client.request(
            method,
            namespace,
            key,
            path,
            headers=headers,
            content=content,
            json=json,
            idempotent=idempotent,
            timeout_ms=timeout_ms,
        )
        return self.run(
            request,
            timeout_ms=timeout_ms + CROSSING_MS,
            what=f"an answer to {method} {path} for {namespace}/{key}",
        )

    def misrouted(self, namespace: str, key: str, seen: Peer) -> None:
        """See `Client.misrouted`."""

        async def misrouted() -> None:
            self._client.misrouted(namespace, key, seen)

        self.run(misrouted(), timeout_ms=CROSSING_MS, what=f"the report about {seen.broker}")
