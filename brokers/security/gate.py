"""Check the credentials of clients at one broker: read the keys, take the time, and count refusals."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.security.identity import TOKEN, Credentials, Fault, Identity, Refusal, Surface
from equipoise.brokers.security.own_token import OwnToken
from equipoise.channel.core.errors import missing_extra

if TYPE_CHECKING:
    from equipoise.brokers.security.tokens import TokenVerifier

_KEY_BYTES_MAX: Final = 64 * 1024


class Gate:
    """The check that all clients of one broker pass."""

    def __init__(
        self, verifier: TokenVerifier, *, counted: Callable[[Surface, Fault], None], now_s: Callable[[], float] = time.time
    ) -> None:
        """`counted` takes each refusal; `now_s` is Unix time."""
        self._verifier = verifier
        self._counted = counted
        self.now_s = now_s

    def check(self, surface: Surface, credentials: Credentials | None) -> Identity | Refusal:
        """Return who sent the credentials at `surface`, or why they are refused. Refusals are counted."""
        checked = self._verifier.check(credentials, self.now_s())
        if isinstance(checked, Refusal):
            self._counted(surface, checked.fault)
        return checked

    def check_own(self, token: OwnToken) -> None:
        """Check the token that the broker sends to others, which have the same key. Raise `InvalidConfig`, or `PeerError` for its file."""
        sent = (token.current() or "").encode(errors="replace")
        checked = self._verifier.check(Credentials(method=TOKEN, data=sent), self.now_s())
        if isinstance(checked, Refusal):
            raise InvalidConfig(problems=(f"broker_token: other brokers would refuse this broker: {checked.problem}",))


def open_gate(
    *, secret: str | None, public: str | None, claim: str, audience: str | None, counted: Callable[[Surface, Fault], None]
) -> Gate:
    """Return the gate for tokens of the secret or the public key, whichever is not None. Both are as `read_key` takes them.

    Raise `InvalidConfig` for an unusable key, and `CallerError` without the extra `auth`.
    """
    try:
        from equipoise.brokers.security.tokens import TokenVerifier, public_key, secret_key  # noqa: PLC0415
    except ModuleNotFoundError:
        raise missing_extra(what="authentication", extra="auth") from None
    setting, given = ("token_secret_key", secret) if secret is not None else ("token_public_key", public)
    try:
        assert given is not None, "one of the keys is given"
        key = (secret_key if secret is not None else public_key)(read_key(given))
    except ValueError as error:
        raise InvalidConfig(problems=(f"{setting}: {error}",)) from None
    return Gate(TokenVerifier(key, claim=claim, audience=audience), counted=counted)


def read_key(given: str) -> bytes:
    """Return the bytes of a key, given as in Pulsar: `file:///PATH`, `data:;base64,TEXT`, the path of a file, or base64 itself.

    Raise ValueError with the problem. It never contains what was given, which may be the key.
    """
    if given.startswith("data:"):
        head, comma, text = given.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ValueError("a data URL must be data:;base64,TEXT")
        return _decoded(unquote(text))
    is_url = given.startswith("file:")
    path = Path(unquote(given.removeprefix("file:").removeprefix("//")) if is_url else given)
    try:
        if not is_url and not _exists(path):
            return _decoded(given)
        with path.open("rb") as file:
            data = file.read(_KEY_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"its file cannot be read: {error.strerror}; name a file with the key, or data:;base64,TEXT") from None
    if len(data) > _KEY_BYTES_MAX:
        raise ValueError(f"its file has more than {_KEY_BYTES_MAX} bytes, which is no key")
    return data


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # Base64 may be too long for a path.
        return False


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is neither the path of a file nor base64; name a file with the key, or data:;base64,TEXT") from None
