"""Limit the connections of one HTTP port, in total and of each address, and answer those beyond the
limit.

aiohttp has no such limit. Its own setting limits idle time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from contextvars import copy_context
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from equipoise.brokers.http.answers import (
    RETRY_AFTER_S,
    SERVER,
    Refusal,
    problem_answer,
    raw_answer,
)
from equipoise.brokers.runtime.callers import CALLER, Caller
from equipoise.brokers.runtime.service import pulsar_address
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.identity import Surface
from equipoise.brokers.security.limits import IdentityLimits, Limit
from equipoise.channel.system.failures import RepeatedFailures

_logger: Final = logging.getLogger(__name__)

LIMITED: Final = "TooManyRequests"
"""The code for programs of an excess of an identity."""

PROBLEM: Final = "http"
"""The key of this problem in the worker's `client_problems`."""

# A rejected caller has this long to read the reason. More than `_REJECTIONS_MAX` of them at once
# are disconnected without one: each uses a file of the reserve.
_REJECTION_S: Final = 1.0
_REJECTIONS_MAX: Final = 16

# An answer that does not wait for the body has this long to be read. If the socket were closed at
# once, with more of the body to come, the system would drop the answer.
_LINGER_S: Final = 1.0

_LOG_INTERVAL_MS: Final = 10_000

# How aiohttp reports the first bytes of a client that took this port for another one.
# The size of a frame, which no HTTP request begins with.
_match_pulsar: Final = re.compile(r"""\bb["']\\x00""").search
_match_tls: Final = re.compile(r"""\bb["']\\x16|HTTPS traffic""").search


class Connections:
    """Counts the connections of one port, and rejects those beyond `http_connections_max` and
    `identity_connections_max`.
    """

    def __init__(self, server: web.Server, worker: Worker) -> None:
        """`server` answers the requests of the connections."""
        self._server = server
        self._worker = worker
        self._max = worker.config.http_connections_max
        bound = "setting http_connections_max, or fewer where ulimit -n is low"
        self._problem = f"it accepts no more HTTP connections: {self._max} are open ({bound})"
        self._failures = RepeatedFailures(interval_ms=_LOG_INTERVAL_MS)
        self._open = 0
        self._leaving = 0

    def made(self) -> asyncio.Protocol:
        """Return the protocol of the next connection."""
        # aiohttp's type for the access log lacks None, which it accepts.
        options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": self._worker.config.http_idle_ms / 1_000,
        }
        # aiohttp would decompress a body in the parser, before anyone knows whose it is, and go on
        # for as long as there is input. The guard refuses bodies that are encoded.
        options |= {"auto_decompress": False, "lingering_time": _LINGER_S}
        return Connection(self, self._server, loop=asyncio.get_running_loop(), **options)

    def admit(self, peer: str | None) -> Refusal | str | None:
        """Count one more connection if there is room. Return the identity of its address, or the
        reason to reject it.

        `peer` is the IP address of its client. Those of a Unix socket have none.
        """
        if self._open >= self._max:
            failures = self._failures.failed(self._worker.clock.now().boot_ms)
            if failures is not None:
                about = {
                    "broker": self._worker.broker_id,
                    "connections": self._open,
                    "turned_away": failures,
                }
                _logger.warning("refused HTTP connections: %s", self._problem, extra=about)
            return Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._problem}; try again, or use another broker",
                "Overloaded",
            )
        limits = self._worker.access.limits
        address = None if peer is None else limits.of_address(peer)
        if address is not None and not limits.connect(Surface.HTTP, address):
            problem = (
                f"{limits.problem(Limit.CONNECTIONS, address)}; close some, or try again later"
            )
            return Refusal(HTTPStatus.TOO_MANY_REQUESTS, problem, LIMITED)
        self._open += 1
        if self._open >= self._max:
            self._worker.client_problems[PROBLEM] = self._problem
        return address

    def ended(self, identities: Sequence[str]) -> None:
        """Note that an admitted connection is gone. It counted for these identities."""
        self._open -= 1
        self._worker.client_problems.pop(PROBLEM, None)
        for identity in identities:
            self._worker.access.limits.disconnect(Surface.HTTP, identity)

    def reject(self, transport: asyncio.Transport, refusal: Refusal) -> None:
        """Send a caller the reason for its rejection, and disconnect it soon, whether or not it
        reads that.
        """
        # Its end must not count as that of an admitted connection.
        transport.set_protocol(_Rejected(self))
        self._leaving += 1
        if self._leaving > _REJECTIONS_MAX:
            transport.abort()
            return
        problem = {
            "reason": f"broker {self._worker.broker_id}: {refusal.reason}",
            "error": refusal.code,
        }
        transport.write(raw_answer(refusal.status, problem, f"Retry-After: {RETRY_AFTER_S}"))
        # If the socket were closed with an unread request, the system would drop the answer.
        if transport.can_write_eof():  # TLS cannot.
            transport.write_eof()
        asyncio.get_running_loop().call_later(_REJECTION_S, transport.abort)

    def explain(self, request: web.BaseRequest, message: str) -> tuple[str, str]:
        """Return the reason and the code for what is no HTTP; `message` is aiohttp's. Log clients
        that took this port for another one.
        """
        if _match_pulsar(message):
            pulsar = (
                pulsar_address(self._worker.profile.addresses) or "its address for Pulsar clients"
            )
            return (
                self._log_wrong_port(
                    request, "pulsar", f"a Pulsar client connected to the HTTP port; use {pulsar}"
                ),
                "WrongPort",
            )
        if _match_tls(message):
            problem = (
                "a client started TLS, which the HTTP port does not accept; use http:// instead of"
                " https://"
            )
            return self._log_wrong_port(request, "tls", problem), "WrongPort"
        return (
            (
                "this is no HTTP request that this broker can read:"
                f" {message.partition(chr(10))[0] or 'internal error'}"
            ),
            "InvalidHttp",
        )

    def _log_wrong_port(self, request: web.BaseRequest, reason: str, problem: str) -> str:
        due = self._worker.access.audit.due(request.remote or "unknown", f"http {reason}")
        if due is not None:
            about = {"broker": self._worker.broker_id, "reason": reason, "problem": problem}
            _logger.info("refused a connection that is not HTTP", extra={**about, **due})
        return problem

    def left(self) -> None:
        """Note that a rejected caller is gone."""
        self._leaving -= 1


class Connection(web.RequestHandler):
    """A connection of aiohttp that is counted: in total, for its address, and for each role that
    used it.
    """

    __slots__ = ("_caller", "_connections", "_is_lost", "_roles", "address", "peer")

    # Aiohttp's own.
    def __init__(self, connections: Connections, server: web.Server, **options: Any) -> None:  # noqa: ANN401
        super().__init__(server, **options)
        self._connections = connections
        self._caller = Caller()
        self._is_lost = False
        self._roles = set[str]()
        self.peer: str | None = None
        """The IP address of the client; None for a Unix socket. It stays when the connection is
        lost."""
        self.address: str | None = None
        """The identity of the client's address; None for a Unix socket. uvloop asks the system for
        an address each time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or reject a caller that connected."""
        peer = transport.get_extra_info("peername")
        if isinstance(transport.get_extra_info("sockname"), tuple):
            # A client that has gone already has no address any more.
            self.peer = str(peer[0]) if isinstance(peer, tuple) else "unknown"
        admitted = self._connections.admit(self.peer)
        if isinstance(admitted, Refusal):
            self._connections.reject(cast("asyncio.Transport", transport), admitted)
            return
        self.address = admitted
        context = copy_context()
        context.run(CALLER.set, self._caller)
        # Starts the task of all requests of this connection.
        context.run(super().connection_made, transport)

    def is_used_by(self, identity: str, limits: IdentityLimits) -> bool:
        """Count this connection for a role, too, if the role may have one more. Return whether it
        may. A lost one counts no more.
        """
        if identity not in self._roles and not self._is_lost:
            if not limits.connect(Surface.HTTP, identity):
                return False
            self._roles.add(identity)
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note that an admitted caller is gone. A rejected one has another protocol by now."""
        self._is_lost = True
        self._caller.gone()
        self._connections.ended(
            [*([] if self.address is None else [self.address]), *sorted(self._roles)]
        )
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what aiohttp could not parse or handle, in the form of all errors."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, so the error cannot be answered")
        reason, code = self._connections.explain(request, message or "")
        answer = problem_answer(
            request, status, reason, code, exc if isinstance(exc, Exception) else None
        )
        answer.headers[hdrs.SERVER] = SERVER
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:  # noqa: ANN401 - aiohttp's own
        """Log an exception, except for answered mistakes of callers: callers must not be able to
        fill a disk.
        """
        if not isinstance(kw.get("exc_info"), HttpProcessingError | web.RequestPayloadError):
            super().log_exception(*args, **kw)


class _Rejected(asyncio.Protocol):
    """The protocol of a rejected caller. It ignores all input."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    # How it went away changes nothing.
    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Note that the caller is gone."""
        self._connections.left()
