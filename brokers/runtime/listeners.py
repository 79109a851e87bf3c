"""Those who are told of every record that a broker folds.

May live here: the row of listeners, with its bound. What they make of a record is theirs.
"""

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
"""Who may be told of every record at a time: each costs the fold a microsecond or so. Operators' moves are at most half of them."""

Told = TypeVar("Told", Folded, Resync)


def _passed_over(_resync: Resync) -> None:
    """What those do about a resync who ask for records alone."""


class Listen(Protocol):
    """How somebody begins to listen, without knowing to whom."""

    def __call__(self, listener: Callable[[Folded], None], *, resynced: Callable[[Resync], None]) -> Callable[[], None]:
        """See `Listeners.listen`."""
        ...


class Listeners:
    """The listeners of one broker. What one raises is told to the log, and kept from the others."""

    def __init__(self, *, broker: str) -> None:
        self._broker = broker
        self._listeners: dict[int, tuple[Callable[[Folded], None], Callable[[Resync], None]]] = {}
        self._numbers = itertools.count(1)

    def listen(self, listener: Callable[[Folded], None], *, resynced: Callable[[Resync], None] = _passed_over) -> Callable[[], None]:
        """Call `listener` with every record that is folded from now on; the result, called, ends that.

        Where records are left out, since truncation took them before they were read, `resynced` is called instead.

        Raises `Overloaded` if too many listen.
        """
        if len(self._listeners) >= LISTENERS_MAX:
            raise Overloaded(what=f"the row of listeners at broker {self._broker}", limit=LISTENERS_MAX)
        number = next(self._numbers)
        self._listeners[number] = (listener, resynced)
        return lambda: self._listeners.pop(number, None) and None

    def folded(self, folded: Folded) -> None:
        """Tell all of a record."""
        for listener, _ in tuple(self._listeners.values()):
            self._tell(listener, folded)

    def resynced(self, resync: Resync) -> None:
        """Tell all of records that were left out."""
        for _, listener in tuple(self._listeners.values()):
            self._tell(listener, resync)

    def _tell(self, listener: Callable[[Told], None], told: Told) -> None:
        try:
            listener(told)
        except Exception:
            _logger.exception("a listener failed", extra={"broker": self._broker, "offset": told.offset})
