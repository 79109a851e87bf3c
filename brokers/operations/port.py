"""Define what an operation needs of the channel.

`brokers.operations.in_worker.WorkerPort` serves operations in a broker, on its event loop.
`brokers.operations.on_channel.ChannelPort` serves them directly on the log, for the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from equipoise.brokers.agent.requests import Intent, subject_of
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.operations.checks import unless_overtaken
from equipoise.brokers.runtime.router import OpenedBundles
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View

T = TypeVar("T")

Condition = Callable[[View], T | None]
"""Has a result once something has happened. `Port.until` calls it at once, and again after each
change of the view."""

Listener = Callable[[Folded | Resync], None]
"""Gets each record that is folded, and each resync that replaced records."""


class Port(Protocol):
    """The channel for one operation: for one requester, until one deadline."""

    @property
    def view(self) -> View:
        """The view now. It may change with each `await`."""

    @property
    def log_name(self) -> str:
        """The name of the log, for errors."""

    @property
    def requester(self) -> str:
        """Who asks for the operation's records: `admin:NAME`, or a broker id."""

    @property
    def placement(self) -> Placement:
        """The policy that chooses destinations that nobody names."""

    def listen(self, listener: Listener) -> AbstractContextManager[None]:
        """Call `listener` for each change of the view within the context."""

    async def propose(self, intent: Intent) -> Folded:
        """Propose the record for `intent`, and return it accepted. Raises `Rejected`, and what
        `checks.check_request` raises.
        """

    async def until(self, condition: Condition[T], what: str, *, within_ms: int | None = None) -> T:
        """Return the first result of `condition` that is not None.

        Raises `DeadlineExceeded` naming `what` after `within_ms`, or at the deadline.
        """

    async def drain(self, broker: BrokerEntry) -> None:
        """Order a broker to drain, and wait until its record shows it. Raises
        `BrokerUnreachable`.
        """

    async def undrain(self, broker: BrokerEntry) -> None:
        """Order a broker to end its drain. Raises `BrokerUnreachable`."""

    async def opened(self, tokens: Mapping[str, int], *, within_ms: int) -> OpenedBundles:
        """Ask the owners of bundles, within `within_ms`, which they have opened under these
        `tokens`, by name. An owner may not answer.
        """


async def propose_each(port: Port, intents: Sequence[Intent]) -> dict[str, int]:
    """Propose the records for `intents`, all at once. Return the offsets of those accepted, by
    subject.

    Leave out those that another writer has overtaken. Raises the first other error, once all have
    ended.
    """
    offsets = {}
    results = await asyncio.gather(*map(port.propose, intents), return_exceptions=True)
    for intent, result in zip(intents, results, strict=True):
        if isinstance(result, BaseException):
            with unless_overtaken():
                raise result
        else:
            offsets[subject_of(intent)] = result.offset
    return offsets
