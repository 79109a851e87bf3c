"""Plant secrets in tests, and fail each test whose log lines contain one."""

from __future__ import annotations

import logging

_SECRETS: set[str] = set()
_FORMATTER = logging.Formatter()


def planted(secret: str) -> str:
    """Return a secret, which no log line of any test may contain from now on."""
    _SECRETS.add(secret)
    return secret


def leaks_in(text: str) -> list[str]:
    """Return the planted secrets in a text."""
    return [secret for secret in _SECRETS if secret in text]


class Watch(logging.Handler):
    """Looks for planted secrets in all log lines: their text, fields and tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self._leaks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not _SECRETS:
            return
        error = _FORMATTER.formatException(record.exc_info) if record.exc_info else ""
        if leaks_in(f"{record.getMessage()} {record.__dict__} {error}"):
            self._leaks.append(f"{record.name}, line {record.lineno}: {record.msg}")

    def take(self) -> list[str]:
        """Return the lines that have leaked since the last call, without their arguments."""
        leaks, self._leaks = self._leaks, []
        return leaks
