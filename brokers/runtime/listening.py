"""Bind the ports of a broker, and accept connections there: plain ones by asyncio, or those of TLS
after a bounded number of handshakes at a time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.brokers.errors import cannot_listen
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import PEER, http_address
from equipoise.brokers.security.audit import Audit
from equipoise.brokers.security.limits import identity_of_address
from equipoise.brokers.security.tls import Certificates, certificate_problem
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system import forked
from equipoise.channel.system.open_files import (
    ACCEPTED_AT_ONCE,
    RESERVED,
    Shares,
    room_for_files,
    shared_out,
)

_logger: Final = logging.getLogger(__name__)

PORTS: Final = ("http", "pulsar")

BACKLOG: Final = 1_024
"""Accepted connections of one port that wait for the event loop. Many clients connect at once after
the death of their broker."""

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


def bind(host: str, port: int, *, setting: str = "http_port") -> socket.socket:
    """Return a listening TCP socket. Raises `OperatorError` with the `setting` of the port if this
    fails.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = forked.new_socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise cannot_listen(
            address=f"{host}:{port}", problem=error.strerror or str(error), setting=setting
        ) from error
    listening.setblocking(False)  # noqa: FBT003 - the standard library takes it by position only
    return listening


def bind_locally(path: Path) -> socket.socket:
    """Return a listening Unix socket at a new path. Raises `OperatorError`, also for a path that is
    too long for the system.
    """
    listening = forked.new_socket(socket.AF_UNIX)
    try:
        listening.bind(str(path))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        what = f"cannot listen on the Unix socket {path}: {error.strerror or error}"
        raise OperatorError(
            f"{what}; set TMPDIR to a short path of a directory on a local disk"
        ) from error
    listening.setblocking(False)  # noqa: FBT003 - as above
    return listening


def bound(
    config: WorkerConfig, parts: AsyncExitStack
) -> tuple[WorkerConfig, dict[str, socket.socket]]:
    """Bind the ports, and return the settings with the numbers of those that were free. Raise
    `OperatorError`.
    """
    listening: dict[str, socket.socket] = {}
    for name in ("http_port", "pulsar_port"):
        port = getattr(config, name)
        if port is not None:
            listening[name] = parts.enter_context(closing(bind(config.host, port, setting=name)))
            config = config.model_copy(update={name: listening[name].getsockname()[1]})
    return config, listening


def own_addresses(
    config: WorkerConfig, advertised: Mapping[str, str], *, speaks_pulsar: bool
) -> dict[str, str]:
    """Return the addresses of the broker's own ports. If the program advertises one for HTTP, only
    other brokers connect to the port.
    """
    http = (
        _by_scheme(config.http_url) if http_address(advertised) is None else {PEER: config.http_url}
    )
    return http | (_by_scheme(config.pulsar_url) if speaks_pulsar else {})


def _by_scheme(url: str) -> dict[str, str]:
    """Return an address by its protocol, as brokers advertise it."""
    return {url.partition("://")[0]: url}


def with_room(config: WorkerConfig) -> WorkerConfig:
    """Return the settings with connection limits that fit the process's limit of open files. Warn
    if they are reduced.
    """
    pulsar = 0 if config.pulsar_port is None else config.pulsar_connections_max
    wanted = Shares(http=config.http_connections_max, pulsar=pulsar)
    files = wanted.http + wanted.pulsar + RESERVED
    room = room_for_files(files)
    shares = wanted if room >= files else shared_out(room, wanted)
    if shares == wanted:
        return config
    _logger.warning(
        "connection limits reduced: this process may open only %d files. HTTP connections: %d"
        " instead of %d (http_connections_max); Pulsar connections: %d instead of %d"
        " (pulsar_connections_max). Raise the limit (ulimit -n) to %d, or set smaller limits",
        *(room, shares.http, wanted.http, shares.pulsar, wanted.pulsar, files),
        extra={"broker": config.id},
    )
    limits = {"http_connections_max": shares.http} | (
        {"pulsar_connections_max": shares.pulsar} if pulsar else {}
    )
    return config.model_copy(update=limits)


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
    certificates: Certificates,
    handshakes: Handshakes,
) -> Listener:
    """Accept connections at a bound socket, by TLS if there is a certificate and it is no Unix
    socket. `made` returns the next protocol.

    `port` is one of `PORTS`.
    """
    is_local = listening.family == socket.AF_UNIX
    if certificates.server is not None and not is_local:
        listening.listen(BACKLOG)
        return _TlsListener(
            listening, made, port=port, certificates=certificates, handshakes=handshakes
        )
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if is_local else loop.create_server
    server = await create(made, sock=listening, backlog=ACCEPTED_AT_ONCE)
    # asyncio uses one number for two limits: waiting connections, and connections accepted at once.
    listening.listen(BACKLOG)
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
