"""Read the token or the password that a broker, a client or a command sends to brokers."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from equipoise.brokers.security.identity import BASIC, TOKEN, Credentials
from equipoise.channel.core.errors import PeerError

TOKEN_VARIABLE: Final = "EQUIPOISE_TOKEN"  # noqa: S105 - the name of a variable

CA_VARIABLE: Final = "EQUIPOISE_TLS_CA"
"""The variable that names the CAs of the brokers, for commands and clients."""

Stranger = Callable[[str], str | None]
"""Return why the broker at a URL must not get the token; None if it may."""

_TEXT: Final = "token:"
_SHOWN_MAX: Final = 256
_FILE: Final = "file:"
_PASSWORD: Final = "basic:"  # noqa: S105 - how a password begins


class OwnToken:
    """A token to send, as Pulsar's clients take it: the text itself (also `token:TEXT`), or the
    `file:///PATH` that holds it.

    `basic:USER:PASSWORD` in its place is sent by basic authentication.
    """

    __slots__ = ("_file", "_stranger", "_text")

    def __init__(self, given: str | None, stranger: Stranger | None = None) -> None:
        """Without a token nothing is sent. A file is read for each request, so it may be replaced
        at any time.

        `stranger` judges each URL. By default it is the rule of commands and clients: with the
        variable `EQUIPOISE_TLS_CA`, only https://.
        """
        self._stranger = stranger or stranger_to_client
        is_file = given is not None and given.startswith(_FILE)
        self._file = (
            Path(unquote(given.removeprefix(_FILE).removeprefix("//")))
            if given is not None and is_file
            else None
        )
        self._text = None if given is None or is_file else given.removeprefix(_TEXT).strip()

    @classmethod
    def of_environment(cls) -> Self:
        """Return the token in the variable `EQUIPOISE_TOKEN`."""
        return cls(os.environ.get(TOKEN_VARIABLE))

    def __repr__(self) -> str:
        return "OwnToken(***)"

    def headers(self, url: str) -> Mapping[str, str]:
        """Return the headers that send the token to a URL; none without a token. Raise `PeerError`
        for a stranger, or as `current`.
        """
        sent = self.credentials()
        if sent is None:
            return {}
        problem = self._stranger(url)
        if problem is not None:  # Anyone who can write to the log can advertise an address there.
            raise PeerError(f"the token is not sent to {_shown(url)}: {problem}")
        if sent.method == BASIC:
            return {"Authorization": f"Basic {base64.b64encode(sent.data).decode()}"}
        return {"Authorization": f"Bearer {sent.data.decode()}"}

    def credentials(self) -> Credentials | None:
        """Return what is sent, or None without a token. Raise `PeerError` as `current` does."""
        text = self.current()
        if not text:
            return None
        if text.startswith(_PASSWORD):
            return Credentials(
                method=BASIC, data=text.removeprefix(_PASSWORD).encode(errors="replace")
            )
        return Credentials(method=TOKEN, data=text.encode(errors="replace"))

    def current(self) -> str | None:
        """Return the token as of now. Raise `PeerError` if its file cannot be read, or it is no
        single word.
        """
        if self._file is None:
            if self._text and not _is_one(self._text):  # An error of the HTTP client would show it.
                raise PeerError(
                    "the given token is more than one word; give exactly one token, or file:///PATH"
                )
            return self._text
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise PeerError(
                f"the token file {self._file} cannot be read: {problem}; mend that, and try again"
            ) from error
        if not _is_one(token):
            raise PeerError(
                f"the token file {self._file} does not hold exactly one token; write one into it,"
                " and try again"
            )
        return token


def stranger_to_client(url: str) -> str | None:
    """Return why a command or a client must not send its token to a URL: TLS is on, and the URL is
    without it.
    """
    if os.environ.get(CA_VARIABLE) and not _is_encrypted(url):
        return (
            f"it is not an https:// address, and {CA_VARIABLE} is set; use https://, or unset the"
            " variable"
        )
    return None


def stranger_to_broker(url: str, *, own: str | None, has_ca: bool) -> str | None:
    """Return why a broker must not send its token to a URL that another broker advertises. `own` is
    what it advertises itself.

    With `has_ca`, the cluster's own CA vouches for a host. Otherwise the host must be near: on the
    same machine if `own` is; or a private address, a name without a domain, or a name in the domain
    of `own`.
    """
    if own is not None and _is_encrypted(own) and not _is_encrypted(url):
        return (
            "it is not an https:// address, as this broker's own is; restart that broker with TLS,"
            " or look for who writes to the log"
        )
    if _is_encrypted(url) and has_ca:
        return None
    host, own_host = _host_in(url), "" if own is None else _host_in(own)
    if _is_near(host, own_host):
        return None
    return (
        f"neither tls_ca vouches for that host nor is it near {own_host or 'this broker'}; set"
        " tls_ca, or advertise hosts of one domain"
    )


def _is_near(host: str, own: str) -> bool:
    if host == own or _is_of_machine(host):
        return bool(host)
    if not host or not own or _is_of_machine(own):
        return False
    try:
        address = ip_address(host)
    except ValueError:
        domain = host.partition(".")[2]
        return not domain or ("." in domain and domain == own.partition(".")[2])
    # Clouds hand out credentials at a link-local address.
    return address.is_private and not address.is_link_local


def _is_of_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_encrypted(url: str) -> bool:
    return url.lower().startswith("https://")


def _host_in(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:  # A program may advertise anything.
        return ""


def _shown(url: str) -> str:
    return repr(url[:_SHOWN_MAX])


def _is_one(text: str) -> bool:
    """Return whether a text is one word, or a password, which may contain spaces."""
    return (
        len(text.splitlines()) == 1
        if text.startswith(_PASSWORD)
        else len(text.split()) == 1 and text.isascii()
    )


NO_TOKEN: Final = OwnToken(None)
