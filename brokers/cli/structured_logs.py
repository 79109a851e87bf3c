"""Logs as one JSON object a line, for machines; as short plain lines where a person sits at a terminal.

May live here: formatters for the standard library's `logging`, and the one call that sets them up in a process of ours. A
program that hosts a worker has its own logging, which this never touches.

An event is a message with fields: `logger.warning("append failed", extra={"bundle": name, "offset": offset})`. Fields that
recur are spelled alike everywhere: `broker`, `bundle`, `namespace`, `key`, `offset`, `token`, `source`, `destination`, `reason`,
`alarm`, `took_ms`. `docs/reference/log-lines.md` lists the events.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, TextIO

import orjson

# What every record has by itself; all else was passed as `extra`. `message`, `asctime` and `taskName` come and go.
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

_JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS


class JsonLines(logging.Formatter):
    """One JSON object: `time` (UTC), `level`, `event`, `logger`, then the event's own fields, then `error` with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class. Total: a field that JSON cannot express is spelled as text."""
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
            spelled = orjson.dumps(line, default=_spelled, option=_JSON_OPTIONS)
        except TypeError:  # A lone surrogate, a number beyond 64 bits, a structure that holds itself.
            spelled = orjson.dumps({_spelled(name): _spelled(value) for name, value in line.items()})
        return spelled.decode()


class PlainLines(logging.Formatter):
    """`17:15:01.123 WARNING event  field=value ...` in local time, with a traceback below where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class. What would move the cursor or break the line is shown escaped."""
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(f" {_visible(name)}={_visible(_spelled(value))}" for name, value in _fields(record))
        line = f"{time} {record.levelname:<7} {_visible(_message(record))}{' ' if fields else ''}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def handler_for(stream: TextIO) -> logging.Handler:
    """A handler that writes to `stream`: plain lines to a terminal, JSON lines to anything else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines() if stream.isatty() else JsonLines())
    return handler


def configure(stream: TextIO, *, level: int = logging.INFO) -> None:
    """Send all logs of this process to `stream`; for programs of ours only, in place of what was set up before."""
    logging.basicConfig(handlers=[handler_for(stream)], level=level, force=True)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - a log line that cannot be spelled must not take its process along
        return f"{record.msg} ({type(error).__name__} in its arguments)"


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in record.__dict__.items() if name not in _STANDARD)


def _spelled(value: object) -> str:
    """Any value as text that UTF-8 can express; never raises."""
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception as error:  # noqa: BLE001 - as in `_message`
        return f"<{type(value).__name__} that raises {type(error).__name__}>"


def _visible(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
