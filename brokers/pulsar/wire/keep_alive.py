"""Whether there is still somebody at the other end of a connection.

May live here: the deadlines of the handshake and of silence.
"""

from __future__ import annotations

from equipoise.brokers.pulsar.wire.errors import NoAnswer, NoHandshake
from equipoise.brokers.pulsar.wire.limits import Limits


class KeepAlive:
    """When a client was last heard of, and when it was asked for a sign of life that it has not given yet."""

    __slots__ = ("_asked_ms", "_handshake_ms", "_heard_ms", "_keep_alive_ms", "_opened_ms", "_pings", "pongs")

    def __init__(self, *, limits: Limits, now_ms: int) -> None:
        """The connection was just accepted."""
        self._handshake_ms = limits.handshake_ms
        self._keep_alive_ms = limits.keep_alive_ms
        self._opened_ms = now_ms
        self._asked_ms: int | None = None
        self._heard_ms = now_ms
        self._pings = 0
        self.pongs = 0

    def asked(self) -> int:
        """Count a PING that goes out; return its number."""
        self._pings += 1
        return self._pings

    def answered(self) -> None:
        """Count a PONG. They come in the order of the PINGs; one without a PING counts for nothing."""
        self.pongs = min(self.pongs + 1, self._pings)

    def heard(self, now_ms: int) -> None:
        """Something came."""
        self._heard_ms = now_ms
        self._asked_ms = None

    def check_handshake(self, now_ms: int) -> None:
        """Raises `NoHandshake` if the client has had its time to say CONNECT. Other bytes do not buy it more."""
        if now_ms - self._opened_ms >= self._handshake_ms:
            raise NoHandshake(problem=f"no CONNECT came within {self._handshake_ms} ms")

    def check_silence(self, now_ms: int) -> bool:
        """Whether the client has been silent so long that it is to be asked now; raises `NoAnswer` if it was, in vain."""
        if self._asked_ms is None:
            is_silent = now_ms - self._heard_ms >= self._keep_alive_ms
            self._asked_ms = now_ms if is_silent else None
            return is_silent
        if now_ms - self._asked_ms >= self._keep_alive_ms:
            raise NoAnswer(problem=f"nothing came within {self._keep_alive_ms} ms of a PING")
        return False
