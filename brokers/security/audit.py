"""Log refusals of one broker for security audits, bounded so that an attacker cannot fill the disk.

Each line about a client that is refused, at any port and for any reason, passes the one limiter of
its broker: `Audit.due`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from equipoise.brokers.security.identity import Surface

_logger: Final = logging.getLogger(__name__)

INTERVAL_MS: Final = 60_000
"""The shortest time between two lines about one address and fault."""

PAIRS_MAX: Final = 64
"""Pairs of address and fault with lines of their own. One more stands for all others, so no minute
has more than 65 lines. With lines of some 400 bytes that is at most some 40 MB a day.
"""

OTHERS: Final = "others"
"""The client in lines about all further pairs."""

NOBODY: Final = "-"
"""The role in lines about a client that has not proved who it is."""


class Audit:
    """The refusals of one broker: the first of each address and fault is logged, then one a
    minute.
    """

    def __init__(self, *, broker: str, now_ms: Callable[[], int]) -> None:
        """`now_ms` never goes back."""
        self._broker = broker
        self._now_ms = now_ms
        self._quiet_until_ms: dict[tuple[str, str], int] = {}
        self._left_out = 0

    def refused(
        self, surface: Surface, *, what: str, why: str, fault: str, client: str, role: str = NOBODY
    ) -> None:
        """Note that a client was refused. Nothing here may contain a part of its credentials.

        * `what` it asked for, such as `GET /admin/v2/tenants`, in printable characters.
        * `why`, for people, and `fault`, one of a few words for programs.
        * `client`: its address without the port.
        """
        about = self.due(client, fault)
        if about is not None:
            fields = {
                "broker": self._broker,
                "surface": surface.value,
                "role": role,
                "what": what,
                "fault": fault,
            }
            _logger.warning("refused a client: %s", why, extra={**fields, **about})

    def due(
        self, client: str, fault: str, *, shown: str | None = None
    ) -> Mapping[str, object] | None:
        """Return the fields `client` and `left_out` of a line about a refused client; None if no
        line is due. Count the refusal.

        `client` is its address without the port, `shown` how the line shows it. `left_out` counts
        the refusals since the last line.
        """
        now_ms, pair = self._now_ms(), (client, fault)
        if pair not in self._quiet_until_ms and len(self._quiet_until_ms) >= PAIRS_MAX:
            self._quiet_until_ms = {
                each: until_ms
                for each, until_ms in self._quiet_until_ms.items()
                if now_ms < until_ms
            }
            if len(self._quiet_until_ms) >= PAIRS_MAX:
                pair, shown = (OTHERS, OTHERS), OTHERS
        if now_ms < self._quiet_until_ms.get(pair, now_ms):
            self._left_out += 1
            return None
        self._quiet_until_ms[pair] = now_ms + INTERVAL_MS
        left_out, self._left_out = self._left_out, 0
        return {"client": shown or client, "left_out": left_out}
