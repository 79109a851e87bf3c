"""Call listeners for every record that a broker folds."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from equipoise.channel.core.difference import Resync
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.reader import Folded

_logger: Final = logging.getLogger(__name__)

LISTENERS_MAX: Final = 2_048
"""Listeners at a time: each costs the fold about 1 us. Operators' moves use at most half."""

Told = TypeVar("Told", Folded, Resync)


def _passed_over(_resync: Resync) -> None:
    """Ignore a resync."""


class Listen(Protocol):
    """The signature of `Listeners.listen`."""

    def __call__(self, listener: Callable[[Folded], None], *, resynced: Callable[[Resync], None]) -> Callable[[], None]:
        """See `Listeners.listen`."""
        ...


class Listeners:
    """The listeners of one broker. An exception is logged and does not reach the others."""

    def __init__(self, *, broker: str) -> None:
        self._broker = broker
        self._listeners: dict[int, tuple[Callable[[Folded], None], Callable[[Resync], None]]] = {}
        self._numbers = itertools.count(1)

    def listen(self, listener: Callable[[Folded], None], *, resynced: Callable[[Resync], None] = _passed_over) -> Callable[[], None]:
        """Call `listener` with every record from now on. Return a function that ends this.

        Call `resynced` where records were truncated unread. Raise `Overloaded` if too many listen.
        """
        if len(self._listeners) >= LISTENERS_MAX:
            raise Overloaded(what=f"the row of listeners at broker {self._broker}", limit=LISTENERS_MAX)
        number = next(self._numbers)
        self._listeners[number] = (listener, resynced)
        return lambda: self._listeners.pop(number, None) and None

    def folded(self, folded: Folded) -> None:
        """Call all listeners with a record."""
        for listener, _ in tuple(self._listeners.values()):
            self._tell(listener, folded)

    def resynced(self, resync: Resync) -> None:
        """Call all listeners with a resync."""
        for _, listener in tuple(self._listeners.values()):
            self._tell(listener, resync)

    def _tell(self, listener: Callable[[Told], None], told: Told) -> None:
        try:
            listener(told)
        except Exception:
            _logger.exception("a listener failed", extra={"broker": self._broker, "offset": told.offset})
