"""Decide by whom one connection is used, and when its client must prove that again. Times are
milliseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from equipoise.brokers.pulsar.wire.requests import PulsarProtocolError, Violation
from equipoise.brokers.security.identity import Credentials, Fault, Identity, Refusal

Authenticate = Callable[[Credentials | None], Identity | Refusal | None]
"""Return who sent credentials, or why they are refused; None if that takes longer than a turn of
the loop. It never raises."""

Admit = Callable[[Identity], None]
"""Take a client that proved who it is, once. Raise `PulsarProtocolError` if it may not connect."""

REFRESH_MS: Final = 30_000
"""A client is asked for fresh credentials this long before they expire, or after half of a shorter
time. It may call another server for them, and Pulsar's clients give any request 30 s."""


class Authentication:
    """The identity of one client. Without an identity after the handshake, everyone is let in."""

    __slots__ = (
        "_admit",
        "_authenticate",
        "_challenge_ms",
        "_expires_ms",
        "_is_challenged",
        "_refreshes",
        "identity",
    )

    def __init__(self, authenticate: Authenticate | None, admit: Admit | None = None) -> None:
        """`authenticate` checks credentials; None lets everyone in. `admit` may still refuse a
        client that proved who it is.
        """
        self._admit = admit
        self._authenticate = authenticate
        self._challenge_ms: int | None = None
        self._expires_ms: int | None = None
        self._is_challenged = False
        self._refreshes = False
        self.identity: Identity | None = None

    def connect(
        self,
        credentials: Credentials | None,
        now_ms: int,
        *,
        refreshes: bool,
        forwards: bool = False,
    ) -> bool:
        """Take the credentials of CONNECT. `refreshes`: the client answers AUTH_CHALLENGE. Raise
        `PulsarProtocolError`.

        `forwards`: a proxy sent the credentials of its client, too, which nobody here would verify.

        Return False if their check takes longer. Then call `take` with its result.
        """
        self._refreshes = refreshes
        if self._authenticate is None:
            return True
        if forwards:
            raise _not_authenticated(
                "credentials of a proxy's client are not taken; set"
                " forwardAuthorizationCredentials=false at the proxy"
            )
        checked = self._authenticate(credentials)
        if checked is not None:
            self.take(checked, now_ms)
        return checked is not None

    def answer(self, credentials: Credentials | None, now_ms: int) -> None:
        """Take the credentials of AUTH_RESPONSE. Ignore them if nothing was asked. Raise
        `PulsarProtocolError`.
        """
        if self._authenticate is None or not self._is_challenged or self.identity is None:
            return
        if credentials is not None and credentials.method != self.identity.method:
            raise _not_authenticated(
                "the fresh credentials are of another method; connect again with that method"
            )
        checked = self._authenticate(credentials)
        assert checked is not None, "only passwords take longer, and they never expire"
        self.take(checked, now_ms)

    def take(self, checked: Identity | Refusal, now_ms: int) -> None:
        """Take the result of a check. Raise `PulsarProtocolError` for a refusal, and for another
        role.
        """
        if isinstance(checked, Refusal) and checked.fault is Fault.BUSY:
            raise PulsarProtocolError(Violation.BUSY, checked.problem)
        if isinstance(checked, Refusal):
            raise _not_authenticated(checked.problem)
        if self.identity is not None and self.identity.role != checked.role:
            raise _not_authenticated(
                "the fresh credentials are of another role; connect again as that role"
            )
        if self.identity is None and self._admit is not None:
            self._admit(checked)
        self.identity = checked
        # A challenge would reach the client, whose answer proves nothing about the proxy.
        self._refreshes = self._refreshes and checked.proxy is None
        self._is_challenged = False
        if checked.valid_ms is None:
            self._challenge_ms = self._expires_ms = None
        else:
            self._expires_ms = now_ms + checked.valid_ms
            self._challenge_ms = self._expires_ms - min(REFRESH_MS, checked.valid_ms // 2)

    def challenge_due(self, now_ms: int) -> str | None:
        """Return the method of the challenge that must be sent now, or None. Raise
        `PulsarProtocolError` once the credentials expired.
        """
        if self.identity is None or self._expires_ms is None or self._challenge_ms is None:
            return None
        if now_ms >= self._expires_ms:
            why = (
                "it did not answer with fresh ones"
                if self._refreshes
                else "it cannot send fresh ones on the same connection"
            )
            raise _not_authenticated(
                f"its credentials have expired, and {why}; connect again with fresh ones"
            )
        if self._is_challenged or not self._refreshes or now_ms < self._challenge_ms:
            return None
        self._is_challenged = True
        return self.identity.method


def _not_authenticated(problem: str) -> PulsarProtocolError:
    return PulsarProtocolError(
        Violation.NOT_AUTHENTICATED, f"the client is not authenticated: {problem}"
    )
