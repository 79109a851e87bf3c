"""Read the token or the password that a broker, a client or a command sends to brokers."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote

from equipoise.brokers.security.identity import BASIC, TOKEN, Credentials
from equipoise.channel.core.errors import PeerError

TOKEN_VARIABLE: Final = "EQUIPOISE_TOKEN"  # noqa: S105 - the name of a variable

_TEXT: Final = "token:"
_FILE: Final = "file:"
_PASSWORD: Final = "basic:"  # noqa: S105 - how a password begins


class OwnToken:
    """A token to send, as Pulsar's clients take it: the text itself (also `token:TEXT`), or the `file:///PATH` that holds it.

    `basic:USER:PASSWORD` in its place is sent by basic authentication.
    """

    __slots__ = ("_file", "_text")

    def __init__(self, given: str | None) -> None:
        """Without a token nothing is sent. A file is read for each request, so it may be replaced at any time."""
        is_file = given is not None and given.startswith(_FILE)
        self._file = Path(unquote(given.removeprefix(_FILE).removeprefix("//"))) if given is not None and is_file else None
        self._text = None if given is None or is_file else given.removeprefix(_TEXT).strip()

    @classmethod
    def of_environment(cls) -> Self:
        """Return the token in the variable `EQUIPOISE_TOKEN`."""
        return cls(os.environ.get(TOKEN_VARIABLE))

    def __repr__(self) -> str:
        return "OwnToken(***)"

    def headers(self) -> Mapping[str, str]:
        """Return the headers that send the token over HTTP; none without a token. Raise `PeerError` as `current` does."""
        sent = self.credentials()
        if sent is None:
            return {}
        if sent.method == BASIC:
            return {"Authorization": f"Basic {base64.b64encode(sent.data).decode()}"}
        return {"Authorization": f"Bearer {sent.data.decode()}"}

    def credentials(self) -> Credentials | None:
        """Return what is sent, or None without a token. Raise `PeerError` as `current` does."""
        text = self.current()
        if not text:
            return None
        if text.startswith(_PASSWORD):
            return Credentials(method=BASIC, data=text.removeprefix(_PASSWORD).encode(errors="replace"))
        return Credentials(method=TOKEN, data=text.encode(errors="replace"))

    def current(self) -> str | None:
        """Return the token as of now. Raise `PeerError` if its file cannot be read, or it is no single word."""
        if self._file is None:
            if self._text and not _is_one(self._text):  # An error of the HTTP client would show it.
                raise PeerError("the given token is more than one word; give exactly one token, or file:///PATH")
            return self._text
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise PeerError(f"the token file {self._file} cannot be read: {problem}; mend that, and try again") from error
        if not _is_one(token):
            raise PeerError(f"the token file {self._file} does not hold exactly one token; write one into it, and try again")
        return token


def _is_one(text: str) -> bool:
    """Return whether a text is one word, or a password, which may contain spaces."""
    return len(text.splitlines()) == 1 if text.startswith(_PASSWORD) else len(text.split()) == 1 and text.isascii()


NO_TOKEN: Final = OwnToken(None)
