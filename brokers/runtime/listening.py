"""Accept connections at a bound socket: plain ones by asyncio, or those of TLS after a bounded
number of handshakes at a time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.brokers.security.audit import Audit
from equipoise.brokers.security.limits import identity_of_address
from equipoise.brokers.security.tls import Certificates, certificate_problem
from equipoise.channel.system.open_files import ACCEPTED_AT_ONCE, RESERVED

_logger: Final = logging.getLogger(__name__)

PORTS: Final = ("http", "pulsar")

HANDSHAKES_MAX: Final = RESERVED // len(PORTS) // 2
"""Handshakes of one port at a time. They are not counted as connections yet, and together use half
of the reserve of files."""

HANDSHAKE_S: Final = 10.0
"""How long a handshake may take."""

# The same if others wait: a client with a slow network needs three round trips. So half-open
# handshakes cannot keep others out.
_CROWDED_S: Final = 1.0

SHARE: Final = HANDSHAKES_MAX // 4
"""Handshakes of one address that are its fair share. One with more gives way first, and the sooner
the more it has. It is not refused: all clients may come through one proxy."""

# How long a client may take to confirm the end of its connection.
_SHUTDOWN_S: Final = 2.0

# The pause after a connection could not be accepted, for lack of files or memory. asyncio takes the
# same.
_ACCEPT_AGAIN_S: Final = 1.0

# What is wrong, by the reason under which it is counted.
PROBLEMS: Final[Mapping[str, str]] = {
    "plain": "the client does not use TLS; use https:// or pulsar+ssl:// addresses",
    "no_certificate": (
        "the client presents no certificate, but tls_require_client_certificate is set; give it one"
    ),
    "untrusted": "the certificate of the client is refused",
    "refused": (
        "the client refuses the certificate of this broker; have it trust the CA, and connect to a"
        " host in the certificate"
    ),
    "version": "the client supports no common version or cipher; it needs TLS 1.2 or newer",
    "timeout": (
        f"the handshake took longer than {HANDSHAKE_S:.0f} s, or {_CROWDED_S:.0f} s or less while"
        " others waited"
    ),
    "disconnected": (
        "the client disconnected during the handshake; it may refuse the certificate of this broker"
    ),
    "other": "the handshake failed",
}

_PLAIN: Final = frozenset(
    {"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
)
_VERSION: Final = frozenset(
    {"UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE"}
)


class Listener(Protocol):
    """What accepts connections until it is closed. Accepted ones stay."""

    def close(self) -> None:
        """Stop listening, and close the socket."""


class Handshakes(Collector):
    """Counts and logs the failed handshakes of one broker, and exports them with the state of its
    certificates.
    """

    def __init__(self, certificates: Certificates, audit: Audit, *, broker: str) -> None:
        """Count from zero. `audit` limits the log lines."""
        self._certificates = certificates
        self._broker = broker
        self._failed = Tally({(port, reason): 0 for port in PORTS for reason in PROBLEMS})
        self._audit = audit

    def failed(self, port: str, client: str, error: BaseException) -> None:
        """Count and log a failed handshake."""
        reason = reason_of(error)
        self._failed[port, reason] += 1
        due = self._audit.due(client.rpartition(":")[0], f"tls {reason}", shown=client)
        if due is not None:
            problem = PROBLEMS[reason]
            if isinstance(error, ssl.SSLCertVerificationError):
                problem = f"{problem}: {certificate_problem(error)}"
            elif reason == "other":
                problem = f"{problem}: {error}"
            about = {"broker": self._broker, "port": port, "reason": reason, "problem": problem}
            _logger.info("refused a TLS connection", extra={**about, **due})

    def collect(self) -> Iterator[Metric]:
        """Yield nothing without TLS."""
        if self._certificates.expires_s is None:
            return
        failed = CounterMetricFamily(
            "equipoise_tls_handshakes_failed",
            "TLS handshakes of clients that failed.",
            labels=("broker", "port", "reason"),
        )
        for (port, reason), times in self._failed.items():
            failed.add_metric((self._broker, port, reason), times)
        reloads = CounterMetricFamily(
            "equipoise_tls_reload_failures",
            "Changed certificates that could not be used.",
            labels=("broker",),
        )
        reloads.add_metric((self._broker,), self._certificates.reload_failures)
        expiry = GaugeMetricFamily(
            "equipoise_tls_certificate_expiry_timestamp_seconds",
            "When this broker's certificate expires.",
            labels=("broker",),
        )
        expiry.add_metric((self._broker,), self._certificates.expires_s)
        yield from (failed, reloads, expiry)


def reason_of(error: BaseException) -> str:
    """Return the key in `PROBLEMS` of a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "untrusted"
    # asyncio aborts what is too slow.
    if isinstance(error, TimeoutError | ConnectionAbortedError | asyncio.CancelledError):
        return "timeout"
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return "disconnected"
    reason = getattr(error, "reason", None) or ""
    if reason in _PLAIN:
        return "plain"
    if reason in _VERSION:
        return "version"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "no_certificate"
    return "refused" if "_ALERT_" in reason else "other"


async def listen(
    listening: socket.socket,
    made: Callable[[], asyncio.Protocol],
    *,
    port: str,
    backlog: int,
    certificates: Certificates,
    handshakes: Handshakes,
) -> Listener:
    """Accept connections at a bound socket, by TLS if there is a certificate and it is no Unix
    socket. `made` returns the next protocol.

    `port` is one of `PORTS`. `backlog` connections may wait to be accepted.
    """
    is_local = listening.family == socket.AF_UNIX
    if certificates.server is not None and not is_local:
        listening.listen(backlog)
        return _TlsListener(
            listening, made, port=port, certificates=certificates, handshakes=handshakes
        )
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if is_local else loop.create_server
    server = await create(made, sock=listening, backlog=ACCEPTED_AT_ONCE)
    # asyncio uses one number for two limits: waiting connections, and connections accepted at once.
    listening.listen(backlog)
    return server


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A handshake in progress: the address of its client, and when it began, in seconds."""

    address: str
    at_s: float


def gives_way(began: Sequence[Began], crowded_s: float) -> tuple[int, float]:
    """Return which of these handshakes, the oldest first, gives way to others that wait, and from
    when on, in seconds.

    It is the oldest of the address with the most handshakes if that has more than `SHARE`;
    otherwise the oldest of all. It has `crowded_s`, or less in proportion if its address has more
    than its share.
    """
    counts = Tally(each.address for each in began)
    most = max(counts, key=counts.__getitem__)
    place = next(
        place for place, each in enumerate(began) if counts[most] <= SHARE or each.address == most
    )
    return place, began[place].at_s + crowded_s * min(1.0, SHARE / counts[most])


class _TlsListener:
    """Accepts connections, and hands each to its protocol after its handshake."""

    def __init__(
        self,
        listening: socket.socket,
        made: Callable[[], asyncio.Protocol],
        *,
        port: str,
        certificates: Certificates,
        handshakes: Handshakes,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._made = made
        self._port = port
        self._certificates = certificates
        self._handshakes = handshakes
        self._is_closed = False
        # Handshakes in progress, the oldest first.
        self._began: dict[asyncio.Task[None], Began] = {}
        self._accepting = self._loop.create_task(self._accept(), name=f"TLS connections of {port}")
        self._accepting.add_done_callback(lambda _: listening.close())

    def close(self) -> None:
        """See `Listener.close`."""
        self._is_closed = True
        for task in (self._accepting, *self._began):
            task.cancel()

    async def _accept(self) -> None:
        while True:
            await self._have_room()
            try:
                accepted, peer = await self._loop.sock_accept(self._listening)
            except ConnectionError:  # The client is gone again.
                continue
            except OSError as error:
                _logger.warning(
                    "cannot accept a connection: %s",
                    error,
                    extra={"port": self._port, "problem": str(error)},
                )
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            task = self._loop.create_task(self._shake(accepted, f"{peer[0]}:{peer[1]}"))
            self._began[task] = Began(address=identity_of_address(peer[0]), at_s=self._loop.time())
            task.add_done_callback(self._began.pop)

    async def _have_room(self) -> None:
        """Wait for the end of a handshake if there are too many, and cancel the one that is to give
        way if others wait too long for it.
        """
        while len(self._began) >= HANDSHAKES_MAX:
            place, until_s = gives_way(list(self._began.values()), _CROWDED_S)
            left_s = until_s - self._loop.time()
            if left_s <= 0:
                list(self._began)[place].cancel()
            await asyncio.wait(
                self._began, timeout=max(left_s, 0) or None, return_when=asyncio.FIRST_COMPLETED
            )

    async def _shake(self, accepted: socket.socket, client: str) -> None:
        """Carry out one handshake."""
        try:
            await self._loop.connect_accepted_socket(
                self._made,
                accepted,
                ssl=self._certificates.server,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except (OSError, asyncio.CancelledError) as error:  # `ssl.SSLError` is an OSError.
            accepted.close()
            if not self._is_closed:
                self._handshakes.failed(self._port, client, error)
