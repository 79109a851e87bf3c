"""Define the options that many commands share, and open the channel for them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final, ParamSpec

import typer
from typer.models import OptionInfo

from equipoise.brokers.cli.moments import duration
from equipoise.channel.core.errors import invalid_log_url
from equipoise.channel.core.log import Log
from equipoise.channel.log.open_log import is_in_memory, open_log

LOG_VARIABLE: Final = "EQUIPOISE_LOG"

TIMEOUT_S: Final = 60
"""The default time limit of a command, the same as that of a broker's admin calls."""

TIMEOUT_S_MAX: Final = 86_400

P = ParamSpec("P")


def existing_file(
    *names: str, text: str, metavar: str = "FILE", envvar: str | None = None
) -> OptionInfo:
    """Return the option of a file that must exist. `text` is its help."""
    return OptionInfo(
        default=...,
        param_decls=names,
        metavar=metavar,
        envvar=envvar,
        exists=True,
        dir_okay=False,
        help=text,
        show_default=False,
    )


LogOption = Annotated[
    str,
    typer.Option(
        "--log",
        metavar="URL",
        envvar=LOG_VARIABLE,
        help="The cluster's log: sqlite:PATH or kafka://HOST:PORT/TOPIC.",
    ),
]
TimeoutOption = Annotated[
    int,
    typer.Option(
        "--timeout", metavar="SECONDS", min=1, max=TIMEOUT_S_MAX, help="Time limit of the command."
    ),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Your name in the channel's history (admin:NAME).  [default: the user's name]",
    ),
]
BrokerConfOption = Annotated[
    Path | None,
    existing_file(
        "--broker-conf",
        text=(
            "Use the entries about balancing of this Pulsar broker.conf. --set and the channel"
            " override them."
        ),
    ),
]
ReasonOption = Annotated[
    str,
    typer.Option(
        "--reason", metavar="TEXT", help="Why, for the channel's history.", show_default=False
    ),
]
ForOption = Annotated[
    int | None,
    typer.Option(
        "--for",
        metavar="DURATION",
        parser=duration,
        help="End it after this time (30m; s, m, h, d, w).",
        show_default=False,
    ),
]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait",
        help="Wait for the effect, or only until the channel has accepted the request.",
    ),
]


StopOnEofOption = Annotated[
    bool, typer.Option("--stop-on-eof", help="Stop when the standard input ends.", hidden=True)
]

_STANDARD_INPUT: Final = 0
_READ_BYTES: Final = 4_096


def directory(text: str) -> Path:
    """Parse the directory of an option. An empty name is a usage error; pathlib would read it as
    the working directory.
    """
    if "://" in str(text):  # A default is a path already.
        raise typer.BadParameter(f"{text!r} is a URL; name a directory")
    return _named(text, unless=Path.is_file, other="a file; name a directory")


def directory_or_url(text: str) -> str:
    """Parse a directory, or the URL of a place in object storage."""
    return text if "://" in text else str(directory(text))


def file(text: str) -> Path:
    """Parse the file of an option. An empty name is a usage error; pathlib would read it as the
    working directory.
    """
    return _named(text, unless=Path.is_dir, other="a directory; name a file")


def _named(text: str, *, unless: Callable[[Path], bool], other: str) -> Path:
    if not text:
        raise typer.BadParameter("the name is empty; write '.' for the current directory")
    path = Path(text)
    with suppress(OSError):  # The user of the path meets and reports the same error.
        if unless(path):
            raise typer.BadParameter(f"{text!r} is {other}")
    return path


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts. Raise a usage error that names `option`."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{option} takes NAME=VALUE, not {text!r}")
        pairs[name] = value
    return pairs


@contextmanager
def handle(log_url: str, *, create: bool = False) -> Iterator[Log]:
    """Open only the log, to read it in the command's own way. Raises as `open_log` does."""
    with closing(open_log(shared(log_url), create=create)) as log:
        yield log


def shared(log_url: str) -> str:
    """Return `log_url` if other processes can share the log. Raise `CallerError`."""
    if is_in_memory(log_url):
        raise invalid_log_url(
            url=log_url, problem="a log in memory is known only to the process that made it"
        )
    return log_url


def end_with_standard_input() -> None:
    """Send this process SIGTERM when its standard input ends. The kernel closes it when the parent
    dies.
    """
    threading.Thread(target=_wait_for_eof, name="stop-on-eof", daemon=True).start()


def _wait_for_eof() -> None:
    while os.read(_STANDARD_INPUT, _READ_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
