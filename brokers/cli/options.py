"""Define the options that many commands share, and open the channel for them."""

from __future__ import annotations

import getpass
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Concatenate, Final, ParamSpec

import typer
from typer.models import OptionInfo

from equipoise.brokers.cli.moments import duration
from equipoise.brokers.cli.output import Output, progress
from equipoise.brokers.operations.access import Access, attached, opened
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.brokers.operations.outcomes import Answer
from equipoise.channel.core.errors import InvalidName, LogNotBegun, invalid_log_url
from equipoise.channel.core.log import Log, Progress
from equipoise.channel.core.ranges import ADMIN_PREFIX, NAME_BYTES_MAX
from equipoise.channel.log.open_log import is_in_memory, open_log
from equipoise.channel.system.clocks import Deadline

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
            "Use the entries about balancing and security of this Pulsar broker.conf. --set and the"
            " channel override them."
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


def publisher(name: str | None) -> str:
    """Return the publisher of an admin's records: `admin:` and the given name or the user's. Raise
    `InvalidName`.
    """
    name = _user_name() if name is None else name
    if not name.strip() or not name.isprintable() or len(name) > NAME_BYTES_MAX:
        raise InvalidName(
            what="name for --as",
            name=name[:NAME_BYTES_MAX],
            expected=f"1 to {NAME_BYTES_MAX} printable characters",
        )
    return ADMIN_PREFIX + name


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # The process's user id may have no name.
        return f"uid-{os.getuid()}"


@contextmanager
def handle(log_url: str, *, create: bool = False) -> Iterator[Log]:
    """Open only the log, to read it in the command's own way. Raises as `open_log` does."""
    with closing(open_log(shared(log_url), create=create)) as log:
        yield log


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Output):
    """The options of a command that ends in time."""

    timeout: TimeoutOption = TIMEOUT_S

    def deadline(self) -> Deadline:
        """Return the end of the command's time, from now."""
        return Deadline.after(timeout_ms=self.timeout * 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel(Timed):
    """The options of a command about a channel, and the ways to open it."""

    log: LogOption

    def handle(self) -> AbstractContextManager[Log]:
        """Open only the log, as the function `handle` does."""
        return handle(self.log)

    def unread(self) -> AbstractContextManager[Access]:
        """Open the channel to read its records one by one. Raises as `attached` does."""
        return attached(shared(self.log), timeout_ms=self.timeout * 1_000, watched=_restoring())

    def reading(self, *, cluster: str | None = None) -> AbstractContextManager[Access]:
        """Open the channel to read its view. Raises as `opened` does."""
        return opened(
            shared(self.log), timeout_ms=self.timeout * 1_000, cluster=cluster, watched=_restoring()
        )

    def acting(self) -> AbstractContextManager[Access]:
        """Open the channel for operations."""
        return self.reading()

    def carry_out(
        self,
        operation: Callable[Concatenate[ChannelPort, P], Coroutine[None, None, Answer]],
        *args: P.args,
        **named: P.kwargs,
    ) -> Answer:
        """Run an operation on the channel, print its answer, and return it. Raises as `acting` and
        the operation do.
        """
        with self.acting() as access:
            answer = run(operation(ChannelPort(access), *args, **named))
        self.print_fact(answer.sentence, answer.document)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin(Channel):
    """The options of a command that proposes changes to the channel."""

    admin_name: AsOption = None

    @contextmanager
    def acting(self) -> Iterator[Access]:
        """Open the channel to propose changes.

        Raises `LogNotBegun` if no broker has begun the log, and what `publisher` and `opened`
        raise.
        """
        with opened(
            shared(self.log),
            timeout_ms=self.timeout * 1_000,
            publisher=publisher(self.admin_name),
            watched=_restoring(),
        ) as access:
            if access.view.genesis is None:
                raise LogNotBegun(log=self.log, problem="no broker has started on it yet")
            yield access


def _restoring() -> AbstractContextManager[Progress]:
    return progress("reading the channel's snapshot", unit="rows")


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
