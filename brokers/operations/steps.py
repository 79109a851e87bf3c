"""Define the steps of an operation. An operation yields steps, and a driver carries them out and sends back the results.

There are two drivers: `brokers.operations.on_channel.run` in the calling thread, and `brokers.operations.in_worker.Operations` in a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from equipoise.brokers.agent.intents import Intent
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View

T = TypeVar("T")

Condition = Callable[[View], T | None]
"""Has a result once something has happened. A driver calls it at once, and again after each change of the view."""

Listener = Callable[[Folded | Resync], None]
"""Gets each record that is folded, and each resync that replaced records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a driver sees: the view, the name of its log, and the publisher of its records."""

    view: View
    log: str
    publisher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Get what the driver sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Call `listener` for each change of the view from now until the operation ends."""

    listener: Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Propose a record and get it back accepted."""

    intent: Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeEach:
    """Propose records and get back those accepted, by subject. Skip those that another writer has overtaken."""

    intents: Sequence[Intent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """Wait for `condition`, which `what` describes. After `within_ms`, if given, get None instead of an error."""

    condition: Condition[object]
    what: str
    within_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderDrain:
    """Order a broker to drain, and wait until its record shows it."""

    broker: BrokerEntry


Step = Look | Listen | Propose | ProposeEach | Until | OrderDrain

Operation = Generator[Step, object, T]
"""An operation whose result is a `T`. It runs once, by one driver."""


def look() -> Operation[Seen]:
    """Return what the driver sees now. It is out of date after the next step."""
    return cast("Seen", (yield Look()))


def listen(listener: Listener) -> Operation[None]:
    """Call `listener` for each change of the view from now until the operation ends."""
    yield Listen(listener=listener)


def propose(intent: Intent) -> Operation[Folded]:
    """Propose the record for `intent`. Return it once it is accepted. Raises `Rejected`, and what `checks.check_request` raises."""
    return cast("Folded", (yield Propose(intent=intent)))


def propose_each(intents: Iterable[Intent]) -> Operation[Mapping[str, int]]:
    """Propose the records for `intents`. Return the offsets of those accepted, by subject. Skip those that others have overtaken."""
    accepted = cast("Mapping[str, Folded]", (yield ProposeEach(intents=tuple(intents))))
    return {name: folded.offset for name, folded in accepted.items()}


def until(condition: Condition[T], what: str) -> Operation[T]:
    """Return the first result of `condition` that is not None. Raises `DeadlineExceeded` naming `what`."""
    return cast("T", (yield Until(condition=condition, what=what)))


def until_or_give_up(condition: Condition[T], what: str, *, within_ms: int) -> Operation[T | None]:
    """Return the first result of `condition` that is not None, or None after `within_ms` or at the deadline."""
    return cast("T | None", (yield Until(condition=condition, what=what, within_ms=within_ms)))


def order_drain(broker: BrokerEntry) -> Operation[None]:
    """Order a broker to drain, and wait until its record shows it. Raises `BrokerUnreachable`."""
    yield OrderDrain(broker=broker)
