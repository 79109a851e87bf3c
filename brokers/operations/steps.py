"""Define the steps of an operation. An operation yields steps, and a driver carries them out and
sends back the results.

There are two drivers: `brokers.operations.on_channel.run` in the calling thread, and
`brokers.operations.in_worker.Operations` in a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from equipoise.brokers.agent.intents import Intent
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.runtime.router import Opened
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View

T = TypeVar("T")

Condition = Callable[[View], T | None]
"""Has a result once something has happened. A driver calls it at once, and again after each change
of the view."""

Listener = Callable[[Folded | Resync], None]
"""Gets each record that is folded, and each resync that replaced records."""


class _Awaited(Generic[T]):
    """A step with a result. In an operation, `result = yield from step` has the driver carry it
    out.
    """

    __slots__ = ()

    def __iter__(self) -> Generator[Any, object, T]:
        """Yield this step to the driver, and return what the driver sends back."""
        return cast("T", (yield self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a driver sees: the view, the name of its log, and who asks for its records
    (`admin:NAME`, or a broker id).

    `placement` chooses destinations that nobody names.
    """

    view: View
    log: str
    requester: str
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(_Awaited[Seen]):
    """Get what the driver sees now. It is out of date after the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen(_Awaited[None]):
    """Call `listener` for each change of the view from now until the operation ends."""

    listener: Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose(_Awaited[Folded]):
    """Propose the record for `intent`, and get it back accepted. Raises `Rejected`, and what
    `checks.check_request` raises.
    """

    intent: Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeEach(_Awaited[Mapping[str, int]]):
    """Propose the records for `intents`. Get the offsets of those accepted, by subject. Skip those
    that another writer has overtaken.
    """

    intents: Sequence[Intent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Until(_Awaited[T]):
    """Get the first result of `condition` that is not None. Raises `DeadlineExceeded` naming
    `what`.
    """

    condition: Condition[T]
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilOrGiveUp(_Awaited[T | None]):
    """Get the first result of `condition` that is not None, or None after `within_ms` or at the
    deadline. `what` describes it.
    """

    condition: Condition[T]
    what: str
    within_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderDrain(_Awaited[None]):
    """Order a broker to drain, and wait until its record shows it; with `ends`, order it to end
    that. Raises `BrokerUnreachable`.
    """

    broker: BrokerEntry
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOpened(_Awaited[Opened]):
    """Ask the owners of bundles, within `within_ms`, which they have opened under these `tokens`,
    by name. An owner may not answer.
    """

    tokens: Mapping[str, int]
    within_ms: int


Step = (
    Look | Listen | Propose | ProposeEach | Until[Any] | UntilOrGiveUp[Any] | OrderDrain | AskOpened
)

Operation = Generator[Step, object, T]
"""An operation whose result is a `T`. It runs once, by one driver."""


def propose(intent: Intent) -> Operation[Folded]:
    """Return the operation whose only step is `Propose`."""
    return (yield from Propose(intent=intent))
