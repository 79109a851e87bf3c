"""Read the token that a broker, a client or a command sends to brokers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote

from equipoise.channel.core.errors import PeerError

TOKEN_VARIABLE: Final = "EQUIPOISE_TOKEN"  # noqa: S105 - the name of a variable

_TEXT: Final = "token:"
_FILE: Final = "file:"


class OwnToken:
    """A token to send, as Pulsar's clients take it: the text itself (also `token:TEXT`), or the `file:///PATH` that holds it."""

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
        """Return the headers that send the token over HTTP; none without a token. Raise `PeerError` if its file cannot be read."""
        token = self.current()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def current(self) -> str | None:
        """Return the token as of now. Raise `PeerError` if its file cannot be read, or it is no single word."""
        if self._file is None:
            if self._text and len(self._text.split()) != 1:  # An error of the HTTP client would show it.
                raise PeerError("the given token is more than one word; give exactly one token, or file:///PATH")
            return self._text
        try:
            token = self._file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise PeerError(f"the token file {self._file} cannot be read: {problem}; mend that, and try again") from error
        if not token or len(token.split()) != 1:
            raise PeerError(f"the token file {self._file} does not hold exactly one token; write one into it, and try again")
        return token


NO_TOKEN: Final = OwnToken(None)
