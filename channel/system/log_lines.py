"""Format logs as JSON lines, or as short plain lines on a terminal, and set up logging in our
processes.

A program that embeds a worker keeps its own logging. An event is a message with fields:
`logger.warning("append failed", extra={"bundle": name, "offset": offset})`. Use the same names for
recurring fields: `broker`, `bundle`, `namespace`, `key`, `offset`, `token`, `source`,
`destination`, `reason`, `alarm`, `took_ms`. `docs/reference/log-lines.md` lists the events.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, TextIO

import orjson

# Attributes of every record; all others came as `extra`. `message`, `asctime` and `taskName` are
# not always present.
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
}

_JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS


class JsonLines(logging.Formatter):
    """Format one JSON object: `time` (UTC), `level`, `event`, `logger`, the event's fields, then
    `error` with its traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. Never raises: values that JSON cannot represent become text."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": _message(record),
            "logger": record.name,
        }
        line.update((name, value) for name, value in _fields(record) if name not in line)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        try:
            text = orjson.dumps(line, default=_text, option=_JSON_OPTIONS)
        except TypeError:
            # For example a lone surrogate, a number beyond 64 bits, or a recursive structure.
            text = orjson.dumps({_text(name): _text(value) for name, value in line.items()})
        return text.decode()


class PlainLines(logging.Formatter):
    """Format `17:15:01.123 WARNING event  field=value ...` in local time, with any traceback
    below.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. Control characters and line ends are escaped."""
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(
            f" {printable(name)}={printable(_text(value))}" for name, value in _fields(record)
        )
        line = (
            f"{time} {record.levelname:<7}"
            f" {printable(_message(record))}{' ' if fields else ''}{fields}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def handler_for(stream: TextIO) -> logging.Handler:
    """Return a handler that writes plain lines to a terminal, and JSON lines to any other
    stream.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines() if stream.isatty() else JsonLines())
    return handler


def configure(stream: TextIO) -> None:
    """Send all logs of this process to `stream`, replacing earlier handlers. For our own programs
    only.
    """
    logging.basicConfig(handlers=[handler_for(stream)], level=logging.INFO, force=True)


def printable(text: str) -> str:
    """Return `text` on one line, with unprintable characters escaped.

    Names, reasons and paths come from records, files and command lines. They may hold line ends,
    escape sequences and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    # A log line that cannot be formatted must not end its process.
    except Exception as error:  # noqa: BLE001
        return f"{record.msg} ({type(error).__name__} in its arguments)"


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in record.__dict__.items() if name not in _STANDARD)


def _text(value: object) -> str:
    """Return any value as text that UTF-8 can encode. Never raises."""
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception as error:  # noqa: BLE001 - as in `_message`
        return f"<{type(value).__name__} that raises {type(error).__name__}>"
