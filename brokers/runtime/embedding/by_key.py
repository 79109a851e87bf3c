"""Serve each request of an ASGI program at the owner of its key: here, by a redirect, or by
forwarding it.

Source: the ASGI specification, version 3, protocol HTTP.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Final

import aiohttp
from yarl import URL

from equipoise.brokers.client.attempts import (
    FORWARDED_BY,
    IDEMPOTENT,
    OUTCOME,
    RequestOutcome,
    may_repeat,
    outcome_of,
    pause_ms,
)
from equipoise.brokers.errors import BrokerUnreachable, UnknownNamespace
from equipoise.brokers.load.metering import driven
from equipoise.brokers.runtime.embedding.forwarding import (
    Body,
    Message,
    Receive,
    Send,
    body_of,
    forwarded_headers,
    forwarding_session,
    path_of,
    refuse,
    send_answer,
    while_client_waits,
)
from equipoise.brokers.runtime.service import Ownership, OwnershipLost, Peer, ServiceHost, Work
from equipoise.brokers.security.tls import ClientTls, client_context_of_environment
from equipoise.channel.core.errors import (
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    InvalidName,
    Overloaded,
    PeerError,
)
from equipoise.channel.core.ranges import check_namespace
from equipoise.channel.system.clocks import Deadline

AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]
KeyOf = Callable[[Message], str | None]

HELD_BYTES_MAX: Final = 1 << 20
"""How much of a forwarded body is kept, to send it again if the owner has moved. A larger body
streams, and is sent once."""

HELD_MS: Final = 5_000
"""How long a request waits for an owner: twice a failover on SQLite. On Kafka one takes longer, and
callers repeat requests meanwhile. If a proxy hides that they have gone, their requests are at most
this old."""

UNANSWERED_MAX: Final = 512
"""Requests forwarded to one program that it has not begun to answer. At 1 ms each it needs half a
second for them. They take half of the connections, so other programs are still reached."""

CONNECT_S_MAX: Final = 2.0

CONNECTIONS_MAX: Final = 1_000
IDLE_S: Final = 4.0
"""Connections to other programs, and how long unused ones are kept: less than the 5 s after which
uvicorn closes one."""

# How soon a caller looks again whose ownership was lost between two checks.
_LOOK_AGAIN_S: Final = 0.01

# Characters of a broker's id in a message; the header may be of anyone.
_NAME_MAX: Final = 200

# The code of the error for a request that was forwarded to a broker that does not serve its key.
_MISDIRECTED: Final = "Misdirected"

_ANY: Final = re.compile(r"\{\w+\}")

WORK: Final[ContextVar[Work | None]] = ContextVar("equipoise work", default=None)


def current_work() -> Work:
    """Return the work of the request that is being served, with its `key` and fencing `token`, in a
    program behind `Equipoise.by_key`.

    Do not finish it: it is finished before the answer is sent. Raises `CallerError` outside of a
    request with a key.
    """
    work = WORK.get()
    if work is None:
        raise CallerError(
            "there is no current work: this code does not run in a request that Equipoise.by_key"
            " has given a key"
        )
    return work


class ByKey:
    """An ASGI app in front of a program's: see `Equipoise.by_key`."""

    def __init__(
        self,
        app: AsgiApp,
        host: ServiceHost,
        *,
        namespace: str,
        key: str | KeyOf,
        forward: bool = False,
        timeout_ms: int,
        tls: Callable[[], ClientTls] = client_context_of_environment,
        mounted_at: Callable[[], str | None] = lambda: None,
        drains: Callable[[], bool] = lambda: False,
        measures: bool = True,
    ) -> None:
        """`tls` returns the context for forwarded requests, and `mounted_at` the prefix of the
        broker's own paths, if the program has them.

        While the worker `drains`, each answer ends its connection. A client that kept it could send
        a request as the program closes it. `measures`: see the setting `measure_cpu`.

        Raise `InvalidName`, and `CallerError` for a path without `{key}`.
        """
        self._app = app
        self._host = host
        self._namespace = check_namespace(namespace)
        self._key_of = _key_in_path(key) if isinstance(key, str) else key
        self._forwards = forward
        self._timeout_ms = timeout_ms
        self._tls = tls
        self._mounted_at = mounted_at
        self._drains = drains
        self._measures = measures
        self._session: aiohttp.ClientSession | None = None
        self._unanswered = Counter[str]()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. Pass on what has no key."""
        if scope["type"] == "http":
            if self._drains() and scope.get("http_version", "1.1").startswith("1"):
                send = ending(send)
            key = None if self._is_of_broker(scope) else self._key_of(scope)
            if key is not None:
                await driven(self._answer(key, scope, receive, send), measures=self._measures)
                return
        try:
            await self._app(scope, receive, send)
        finally:
            if scope["type"] == "lifespan" and self._session is not None:
                await self._session.close()

    def _is_of_broker(self, scope: Message) -> bool:
        """Return whether a request is for the broker of this worker, which only answers for itself.

        A mount without a prefix has no paths of its own.
        """
        prefix = self._mounted_at()
        return prefix is not None and prefix != "" and is_below(_path_in(scope), prefix)

    async def _answer(self, key: str, scope: Message, receive: Receive, send: Send) -> None:
        served = self._host.owned(self._namespace, key)
        work = None if served is None else _begun(served, key)
        if work is None:
            await self._answer_otherwise(key, scope, receive, send)
        else:
            await self._serve(work, scope, receive, send)

    async def _answer_otherwise(
        self, key: str, scope: Message, receive: Receive, send: Send
    ) -> None:
        """Answer a request whose key is elsewhere, or has no owner yet."""
        deadline = Deadline.after(timeout_ms=self._timeout_ms)
        forwarder = _forwarder(scope)
        body: Body | None = None
        failures, has_begun = 0, False
        try:
            while True:
                served = await self._known(key)
                if served is None:
                    body = await _body(body, receive, deadline)
                    served = await self._awaited(key, body, deadline)
                if served is None:
                    return
                if isinstance(served, Ownership):
                    work = _begun(served, key)
                    if work is not None:
                        has_begun = True
                        await self._serve(
                            work, scope, receive if body is None else body.receive, send
                        )
                        return
                    deadline.check(f"the start of work on {self._namespace}/{key}")
                    await asyncio.sleep(_LOOK_AGAIN_S)
                    continue
                if forwarder is not None:
                    raise PeerError(
                        f"{forwarder} forwarded a request for {key} to {self._host.broker_id}, but"
                        f" {served.broker} serves it; send the request again",
                        code=_MISDIRECTED,
                    )
                if not self._forwards:
                    await redirect(served, scope, send)
                    return
                body = await _body(body, receive, deadline)
                await deadline.wait(
                    body.hold(bytes_max=HELD_BYTES_MAX), what="the body of the request"
                )
                problem = await while_client_waits(
                    body, self._forward(served, scope, body, send, deadline)
                )
                if problem is None:
                    return
                failures += 1
                pause = pause_ms(failures, random.random())  # noqa: S311 - jitter
                if pause >= deadline.remaining_ms():
                    raise deadline.exceeded(
                        f"an answer of {served.broker}, which serves {self._namespace}/{key}"
                        f" ({problem}),"
                    )
                await asyncio.sleep(pause / 1_000)
        except EquipoiseError as error:
            if has_begun:
                raise
            await refuse_call(send, error)

    async def _known(self, key: str) -> Ownership | Peer | None:
        """Return the ownership or the owner elsewhere if that is known now."""
        try:
            return await self._host.route(self._namespace, key, timeout_ms=0)
        except DeadlineExceeded:
            return None

    async def _awaited(self, key: str, body: Body, deadline: Deadline) -> Ownership | Peer | None:
        """Return the same once it is known; None if the client is gone before."""
        timeout_ms = min(HELD_MS, deadline.remaining_ms())
        return await while_client_waits(
            body, self._host.route(self._namespace, key, timeout_ms=timeout_ms)
        )

    async def _serve(self, work: Work, scope: Message, receive: Receive, send: Send) -> None:
        """Let the program answer. Its answer is sent if the ownership is still good, and else
        replaced.
        """
        is_lost = has_answered = False

        async def checked(message: Message) -> None:
            nonlocal is_lost, has_answered
            if not has_answered and message["type"] == "http.response.start":
                has_answered = True
                try:
                    # The second check. From here on the bundle may be closed.
                    work.__exit__(None, None, None)
                except OwnershipLost as error:
                    is_lost = True
                    await refuse_call(send, error, RequestOutcome.UNKNOWN)
            if not is_lost:
                await send(message)

        token = WORK.set(work.__enter__())
        try:
            try:
                await self._app(scope, receive, checked)
            except PeerError as error:
                if has_answered:
                    raise
                is_lost = True  # Nothing more is sent. The program may have executed a part.
                await refuse_call(send, error, RequestOutcome.UNKNOWN)
        except BaseException as error:
            if not has_answered:
                work.__exit__(type(error), error, error.__traceback__)
            raise
        else:
            if not has_answered:
                work.__exit__(None, None, None)
        finally:
            WORK.reset(token)

    async def _forward(
        self, peer: Peer, scope: Message, body: Body, send: Send, deadline: Deadline
    ) -> str | None:
        """Forward the request to its owner. Return None if the client has an answer, or why it is
        to be sent again.
        """
        query = scope["query_string"].decode("latin-1")
        url = URL(
            f"{peer.http_url.rstrip('/')}{path_of(scope)}{f'?{query}' if query else ''}",
            encoded=True,
        )
        headers = [
            (name, value) for name, value in forwarded_headers(scope["headers"]) if name != "host"
        ]
        has_answered = False
        try:
            async with AsyncExitStack() as until_end:
                with self._unanswered_by(peer):
                    async with asyncio.timeout(deadline.remaining_ms() / 1_000):
                        sent = self._forwarding().request(
                            scope["method"],
                            url,
                            headers=[*headers, (FORWARDED_BY, self._host.broker_id)],
                            data=body.data(),
                            allow_redirects=False,
                            ssl=self._tls(),
                        )
                        response = await until_end.enter_async_context(sent)
                outcome = outcome_of(
                    response.status, response.headers.get(OUTCOME), is_to_peer=False
                )
                if outcome is RequestOutcome.NOT_STARTED and body.may_repeat:
                    return f"it answered {response.status}"
                has_answered = True
                await send_answer(response, send)
                return None
        except (aiohttp.ClientError, TimeoutError) as error:
            if has_answered:
                raise
            problem = str(error) or "it did not answer in time"
            is_sent = not isinstance(
                error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
            )
            if body.may_repeat and may_repeat(
                RequestOutcome.UNKNOWN if is_sent else RequestOutcome.NOT_STARTED,
                is_idempotent=scope["method"] in IDEMPOTENT,
            ):
                return problem
            raise BrokerUnreachable(
                broker=peer.broker, address=peer.http_url, problem=problem, in_doubt=is_sent
            ) from error

    @contextmanager
    def _unanswered_by(self, peer: Peer) -> Iterator[None]:
        """Count a request that another program has not begun to answer. Raise `Overloaded` if there
        are too many.
        """
        if self._unanswered[peer.broker] >= UNANSWERED_MAX:
            raise Overloaded(
                what=f"the queue of requests forwarded to {peer.broker}", limit=UNANSWERED_MAX
            )
        self._unanswered[peer.broker] += 1
        try:
            yield
        finally:
            self._unanswered[peer.broker] -= 1
            if not self._unanswered[peer.broker]:
                del self._unanswered[peer.broker]

    def _forwarding(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_S)
            timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_S_MAX)
            self._session = forwarding_session(connector, timeout)
        return self._session


async def _body(known: Body | None, receive: Receive, deadline: Deadline) -> Body:
    """Return the body of a request, received up to its first part."""
    return (
        await deadline.wait(body_of(receive), what="the body of the request")
        if known is None
        else known
    )


def _begun(ownership: Ownership, key: str) -> Work | None:
    """Return the work that begins here. Do not await anything before it is a context. None if the
    ownership has just been lost.
    """
    ownership.account.pay()  # Also what follows the work, which ends with an answer.
    try:
        return ownership.admit(key)
    except OwnershipLost:
        return None


def _key_in_path(template: str) -> KeyOf:
    """Return the function that finds the key of a request by a path such as `/users/{key}/orders`,
    also in all paths below it.

    Other names in braces stand for any part. Raise `CallerError` unless it has one `{key}`.
    """
    parts = template.strip("/").split("/")
    if not template.startswith("/") or parts.count("{key}") != 1:
        raise CallerError(
            f"the path {template!r} has no key; write it as '/users/{{key}}', with {{key}} as one"
            " whole part, once"
        )
    pattern = "".join(
        (
            "/(?P<key>[^/]+)"
            if part == "{key}"
            else "/[^/]+"
            if _ANY.fullmatch(part)
            else f"/{re.escape(part)}"
        )
        for part in parts
    )
    match = re.compile(f"{pattern}(?:/.*)?", re.DOTALL).fullmatch

    def key_of(scope: Message) -> str | None:
        found = match(_path_in(scope))
        return None if found is None else found["key"]

    return key_of


def ending(send: Send) -> Send:
    """Return `send` for an answer after which the server closes the connection. HTTP/2 has no such
    header.
    """

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers, end = [*message.get("headers", ())], (b"connection", b"close")
            # A program that is wrapped in another may end its answers itself.
            message = {**message, "headers": headers if end in headers else [*headers, end]}
        await send(message)

    return last


def _path_in(scope: Message) -> str:
    """Return the path of a request in the program, decoded."""
    path, root = scope["path"], scope.get("root_path", "")
    return str(path.removeprefix(root) if root and path.startswith(f"{root}/") else path)


def is_below(path: str, prefix: str) -> bool:
    """Return whether a path is `prefix` or below it."""
    end = len(prefix)
    return path.startswith(prefix) and path[end : end + 1] in ("", "/")


def _forwarder(scope: Message) -> str | None:
    """Return the broker that has forwarded a request, or None."""
    wanted = FORWARDED_BY.lower().encode()
    return next(
        (
            value.decode("latin-1")[:_NAME_MAX]
            for name, value in scope["headers"]
            if name.lower() == wanted
        ),
        None,
    )


async def redirect(peer: Peer, scope: Message, send: Send) -> None:
    """Answer with the address of the program that has the key."""
    query = scope["query_string"].decode("latin-1")
    location = f"{peer.http_url.rstrip('/')}{path_of(scope)}{f'?{query}' if query else ''}"
    headers = {"location": location, OUTCOME.lower(): RequestOutcome.NOT_STARTED.value}
    await refuse(
        send,
        HTTPStatus.TEMPORARY_REDIRECT,
        f"{peer.broker} serves this key; send the request to {location}",
        "Moved",
        headers,
    )


async def refuse_call(
    send: Send, error: EquipoiseError, outcome: RequestOutcome = RequestOutcome.NOT_STARTED
) -> None:
    """Answer an error in place of the program."""
    status = HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, UnknownNamespace):
        status = HTTPStatus.NOT_FOUND
    elif isinstance(error, InvalidName):
        status = HTTPStatus.BAD_REQUEST
    elif error.code == _MISDIRECTED:
        status = HTTPStatus.MISDIRECTED_REQUEST
    elif isinstance(error, BrokerUnreachable) and error.in_doubt:
        status, outcome = HTTPStatus.BAD_GATEWAY, RequestOutcome.UNKNOWN
    text = str(error)
    if isinstance(error, UnknownNamespace):
        text += ". If a Keyed or Tasks of this program has it, give that to Equipoise"
    await refuse(send, status, text, error.code, {OUTCOME.lower(): outcome.value})
