"""Open the channel for the commands about one."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

from equipoise.brokers.cli.options import (
    TIMEOUT_S,
    AsOption,
    LogOption,
    TimeoutOption,
    handle,
    shared,
)
from equipoise.brokers.cli.output import Output, progress
from equipoise.brokers.operations.access import Access, attached, opened
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.brokers.operations.outcomes import Answer
from equipoise.channel.core.errors import InvalidName, LogNotBegun
from equipoise.channel.core.log import Log, Progress
from equipoise.channel.core.ranges import ADMIN_PREFIX, NAME_BYTES_MAX
from equipoise.channel.log.blocking_view import read_on
from equipoise.channel.system.clocks import Deadline

P = ParamSpec("P")


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

    def read_on(self, access: Access) -> None:
        """Fold new records up to the log's end. Raises as `channel.log.blocking_view.read_on`."""
        read_on(access.log, access.reader, deadline=self.deadline())

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
