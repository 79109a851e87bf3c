"""Several hosts at one log thread, and a log that tells who was read for.

May live here: what the tests of seats share. Each host beside the first is one more seat of the same thread.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from equipoise.channel.core.log import FIRST_OFFSET, Entry
from tests.log_host import LOG_NAMES, Host, run
from tests.troubled_log import DEADLINE_SECONDS, TroubledLog

FOR_EVER_MS = 20_000 * int(DEADLINE_SECONDS)
"""Longer than any test may last."""


class Watched(TroubledLog):
    """A log that notes from where and how much it was read, when there was something to read."""

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self.reads: list[tuple[int, int]] = []

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        entries = super().read(position, limit=limit)
        if entries:
            self.reads.append((position, len(entries)))
        return entries


def written(*records: bytes) -> Watched:
    """A log on which something stands."""
    log = Watched(name=next(LOG_NAMES))
    log.append(records, timeout_ms=0)
    log.batches.clear()
    return log


def beside(host: Host, *, position: int = FIRST_OFFSET) -> Host:
    """One more host, at the thread of another one."""
    one_more = Host(log=host.log, beside=host, position=position)
    one_more.start()
    return one_more


def run_beside(scenario: Callable[[Host, Host], Coroutine[None, None, None]], *, log: TroubledLog | None = None) -> tuple[Host, Host]:
    """Run a scenario with two hosts at one thread, both of which have caught up."""
    hosts: list[Host] = []

    async def with_two(one: Host) -> None:
        two = beside(one)
        hosts.extend((one, two))
        await until_all(hosts, has_caught_up)
        await scenario(one, two)
        await two.stop()

    run(with_two, log=log)
    one, two = hosts
    return one, two


def has_caught_up(host: Host) -> bool:
    """Whether this host was told that it has."""
    return any(isinstance(told, tuple) and told[0] == "caught up" for told in host.told)


def has_heard(what: object, host: Host) -> bool:
    """Whether a host was told this, or delivered this record."""
    return what in host.told


async def until_all(hosts: Sequence[Host], condition: Callable[[Host], bool]) -> None:
    """Wait until the condition is true of every host."""
    for host in hosts:
        await host.until(partial(condition, host))


def records(host: Host) -> list[bytes]:
    """The records that a host was delivered."""
    return [entry.data for entry in host.entries]
