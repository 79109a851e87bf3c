"""Write log lines for bundles opened and closed at this broker, and for the moves it takes part in.

`docs/reference/log-lines.md` lists them. Both ends write a move's line: a thousand moves make two
thousand lines in the cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.agent.effects import Abandon, Close, Effect, Open
from equipoise.brokers.agent.events import Closed, Event, Opened
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.balancing.moves import Moves, ObservedMove
from equipoise.channel.core.view import View

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """An operation in progress: the fields of its line, except the duration."""

    fields: dict[str, object]
    at_ns: int


class BundleLines:
    """The lines of one broker."""

    def __init__(
        self, moves: Moves, *, broker: str, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`moves` are those in progress, kept up to date elsewhere; `now_ns` is a clock that only
        rises.
        """
        self._moves = moves
        self._broker = broker
        self._now_ns = now_ns
        # At most one entry per bundle that is moving to or from this broker.
        self._in_progress: dict[str, _Operation] = {}
        self._reasons_of_arrivals: dict[str, str | None] = {}

    def carried_out(self, effect: Effect, view: View) -> None:
        """Note an effect of the agent that opens or closes a bundle."""
        if isinstance(effect, Open):
            source = None if effect.source is None else effect.source.broker
            reason = self._reasons_of_arrivals.pop(effect.handle.bundle, None)
            self._begin(effect.handle, view, source=source, reason=reason)
        elif isinstance(effect, Close):
            destination = None if effect.moved_to is None else effect.moved_to.broker
            reason = self._moves.reason(effect.handle.bundle)
            self._begin(effect.handle, view, destination=destination, reason=reason)
        elif isinstance(effect, Abandon):
            self._in_progress.pop(effect.bundle, None)

    def _begin(self, handle: Handle, view: View, **why: str | None) -> None:
        entry = view.bundles.get(handle.bundle)
        fields: dict[str, object] = {
            "bundle": handle.bundle,
            "token": handle.token,
            "offset": None if entry is None else entry.last,
            **why,
        }
        self._in_progress[handle.bundle] = _Operation(fields=fields, at_ns=self._now_ns())

    def ended(self, event: Event) -> None:
        """Write the line of a finished operation. The runner of services logs failures."""
        if isinstance(event, Opened | Closed):
            operation = self._in_progress.pop(event.bundle, None)
            if operation is not None and not (
                isinstance(event, Opened) and event.problem is not None
            ):
                self._write(
                    "opened" if isinstance(event, Opened) else "closed",
                    operation.fields,
                    self._now_ns() - operation.at_ns,
                )

    def moved(self, move: ObservedMove, view: View) -> None:
        """Write the line of an ended move, if this broker took part."""
        source, destination = broker_of(view, move.source), broker_of(view, move.destination)
        if self._broker not in (source, destination):
            return
        if destination == self._broker != source:
            self._reasons_of_arrivals[move.bundle] = move.reason  # It is opened next.
        fields: dict[str, object] = {
            "bundle": move.bundle,
            "token": move.token,
            "offset": move.offset,
            "source": source,
            "destination": destination,
            "reason": move.reason,
            "kind": move.kind.value,
            "result": move.result.value,
        }
        self._write("moved", fields, move.duration_ns)

    def _write(self, event: str, fields: dict[str, object], took_ns: int) -> None:
        _logger.info(
            event, extra={"broker": self._broker, **fields, "took_ms": round(took_ns / 1e6, 1)}
        )


def broker_of(view: View, incarnation: int | None) -> str | None:
    """Return the id of the broker that an incarnation is, or was."""
    if incarnation is None:
        return None
    live = view.live.get(incarnation)
    if live is not None:
        return live.broker
    return next(
        (entry.broker for entry in view.brokers.values() if entry.incarnation == incarnation),
        f"incarnation {incarnation}",
    )
