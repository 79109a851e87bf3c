"""Check whether the client of a connection is alive: deadlines of the handshake and of silence."""

from __future__ import annotations

from equipoise.brokers.pulsar.wire.errors import NoAnswer, NoHandshake
from equipoise.brokers.pulsar.wire.limits import Limits


class KeepAlive:
    """When the client last sent something, and which PINGs are unanswered."""

    __slots__ = ("_asked_ms", "_handshake_ms", "_heard_ms", "_keep_alive_ms", "_opened_ms", "_pings", "pongs")

    def __init__(self, *, limits: Limits, now_ms: int) -> None:
        """Start with a connection that was just accepted."""
        self._handshake_ms = limits.handshake_ms
        self._keep_alive_ms = limits.keep_alive_ms
        self._opened_ms = now_ms
        self._asked_ms: int | None = None
        self._heard_ms = now_ms
        self._pings = 0
        self.pongs = 0

    def asked(self) -> int:
        """Count a PING and return its number."""
        self._pings += 1
        return self._pings

    def answered(self) -> None:
        """Count a PONG. PONGs come in the order of the PINGs; one without a PING is ignored."""
        self.pongs = min(self.pongs + 1, self._pings)

    def heard(self, now_ms: int) -> None:
        """Note that bytes came."""
        self._heard_ms = now_ms
        self._asked_ms = None

    def check_handshake(self, now_ms: int) -> None:
        """Raise `NoHandshake` if CONNECT is overdue. Other bytes do not extend the deadline."""
        if now_ms - self._opened_ms >= self._handshake_ms:
            raise NoHandshake(problem=f"no CONNECT came within {self._handshake_ms} ms")

    def check_silence(self, now_ms: int) -> bool:
        """Return whether a PING is due. Raise `NoAnswer` if the client did not answer the last one in time."""
        if self._asked_ms is None:
            is_silent = now_ms - self._heard_ms >= self._keep_alive_ms
            self._asked_ms = now_ms if is_silent else None
            return is_silent
        if now_ms - self._asked_ms >= self._keep_alive_ms:
            raise NoAnswer(problem=f"nothing came within {self._keep_alive_ms} ms of a PING")
        return False
