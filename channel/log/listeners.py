"""Call listeners with every record that is folded, and with what a resync changes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync

_logger: Final = logging.getLogger(__name__)

LISTENERS_MAX: Final = 2_048
"""Listeners at a time: each costs the fold about 1 us. Operators' moves use at most half."""

EventT = TypeVar("EventT", Folded, Resync)


def _ignore(_resync: Resync) -> None:
    """Ignore a resync."""


class Listen(Protocol):
    """The signature of `Listeners.listen`."""

    def __call__(
        self, listener: Callable[[Folded], None], *, resynced: Callable[[Resync], None]
    ) -> Callable[[], None]:
        """See `Listeners.listen`."""
        ...


class Listeners:
    """The listeners of one reader. An exception is logged and does not reach the others."""

    def __init__(self, at: str, about: Mapping[str, object]) -> None:
        """`at` names the reader in messages, `about` in fields of log lines."""
        self._at = at
        self._about = about
        self._listeners: dict[int, tuple[Callable[[Folded], None], Callable[[Resync], None]]] = {}
        self._numbers = itertools.count(1)

    def listen(
        self, listener: Callable[[Folded], None], *, resynced: Callable[[Resync], None] = _ignore
    ) -> Callable[[], None]:
        """Call `listener` with every record from now on. Return a function that ends this.

        Call `resynced` where records were truncated unread. Raise `Overloaded` if too many listen.
        """
        if len(self._listeners) >= LISTENERS_MAX:
            raise Overloaded(what=f"the list of listeners at {self._at}", limit=LISTENERS_MAX)
        number = next(self._numbers)
        self._listeners[number] = (listener, resynced)

        def end() -> None:
            self._listeners.pop(number, None)

        return end

    def folded(self, folded: Folded) -> None:
        """Call all listeners with a record."""
        for listener, _ in tuple(self._listeners.values()):
            self._call(listener, folded)

    def resynced(self, resync: Resync) -> None:
        """Call all listeners with a resync."""
        for _, listener in tuple(self._listeners.values()):
            self._call(listener, resync)

    def _call(self, listener: Callable[[EventT], None], event: EventT) -> None:
        try:
            listener(event)
        except Exception:
            _logger.exception("listener failed", extra={**self._about, "offset": event.offset})
