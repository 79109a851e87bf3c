"""Count the messages of the demo's Pulsar clients while they are on their way.

`tests/pulsar/README.md` defines the format of the clients' lines. The checker counts the same lines again at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# A topic that has moved keeps messages for its consumers for 10 s. A message that is later than this, with some slack, is lost.
OVERDUE_NS: Final = 12_000_000_000

# A message with a receipt this shortly before a kill may still have been in the consumer's process.
BEFORE_A_KILL_NS: Final = 500_000_000

_NS_PER_MS: Final = 1_000_000
_NEVER_NS: Final = 1 << 63

Window = tuple[int, int]


@dataclass(slots=True)
class _Life:
    """What is known of one message, in nanoseconds. Events of its clients arrive in any order."""

    sent_ns: int | None = None
    receipted_ns: int | None = None
    delivered_ns: int | None = None


class MessageTally:
    """Counts messages of topics that have one producer and one subscription each. Times are nanoseconds of CLOCK_MONOTONIC.

    A pause is the time that a message waited for its receipt. Effects of a kill are counted separately: non-persistent topics promise
    nothing there. Memory holds only messages on their way, and overdue ones until the next `sweep`.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._lives: dict[tuple[str, int], _Life] = {}
        self._windows: list[Window] = []
        self._highest: dict[tuple[str, str], int] = {}
        self._flowed_ns = dict.fromkeys(topics, 0)
        self.receipted = 0
        self.lost = 0
        self.lost_in_kills = 0
        self.out_of_order = 0
        self.recent_pause_ms = 0.0
        self.longest_pause_ms = 0.0
        self.longest_pause_in_kills_ms = 0.0

    def note(self, said: Mapping[str, object]) -> None:
        """Process one line of a client. Raises KeyError or TypeError if it is not valid."""
        if said["event"] == "ready":
            return
        topic, n, at_ns = said["topic"], said["n"], said["at_ns"]
        if not (isinstance(topic, str) and isinstance(n, int) and isinstance(at_ns, int)):
            raise TypeError(f"a client said {said!r:.200}")
        life = self._lives.setdefault((topic, n), _Life())
        if said["event"] == "sent":
            life.sent_ns = at_ns
        elif said["event"] == "receipted":
            self._receipt(life, at_ns)
        elif said["event"] == "received":
            self._deliver(life, (str(said["consumer"]), topic), n, at_ns)
        else:  # Its client has given it up.
            del self._lives[topic, n]
        if life.sent_ns is not None and life.receipted_ns is not None and life.delivered_ns is not None:
            self._flowed_ns[topic] = max(self._flowed_ns[topic], life.sent_ns)
            del self._lives[topic, n]

    def _receipt(self, life: _Life, at_ns: int) -> None:
        self.receipted += 1
        life.receipted_ns = at_ns
        sent_ns = life.sent_ns or at_ns
        pause_ms = (at_ns - sent_ns) / _NS_PER_MS
        self.recent_pause_ms = max(self.recent_pause_ms, pause_ms)
        if self._is_touched(sent_ns, at_ns):
            self.longest_pause_in_kills_ms = max(self.longest_pause_in_kills_ms, pause_ms)
        else:
            self.longest_pause_ms = max(self.longest_pause_ms, pause_ms)

    def _deliver(self, life: _Life, reader: tuple[str, str], n: int, at_ns: int) -> None:
        """Note a delivery. A lower number than the highest is out of order, unless it came before: a kill may repeat a message."""
        highest = self._highest.get(reader, -1)
        is_first = life.delivered_ns is None and (n > highest or life.sent_ns is not None)
        self.out_of_order += is_first and n < highest
        self._highest[reader] = max(highest, n)
        life.delivered_ns = at_ns

    def sweep(self, now_ns: int) -> None:
        """Count overdue messages with a receipt as lost, and forget repeated deliveries."""
        for which, life in list(self._lives.items()):
            if life.receipted_ns is not None and now_ns - life.receipted_ns > OVERDUE_NS:
                del self._lives[which]
                if self._is_touched(life.sent_ns or life.receipted_ns, life.receipted_ns):
                    self.lost_in_kills += 1
                else:
                    self.lost += 1
            elif life.sent_ns is None and life.delivered_ns is not None and now_ns - life.delivered_ns > OVERDUE_NS:
                del self._lives[which]

    def kill_begins(self, now_ns: int) -> None:
        """Note that a broker is about to be killed."""
        self._windows.append((now_ns - BEFORE_A_KILL_NS, _NEVER_NS))

    def kill_ends(self, now_ns: int) -> None:
        """Note that all clients are back."""
        self._windows[-1] = self._windows[-1][0], now_ns

    def windows(self, now_ns: int) -> Sequence[Window]:
        """Return the periods that kills affected, from and to. One that has not ended lasts until now."""
        return [(start, min(end, now_ns)) for start, end in self._windows]

    def flow_since(self, since_ns: int) -> bool:
        """Return whether on every topic a message sent after `since_ns` has been receipted and delivered."""
        return all(sent_ns > since_ns for sent_ns in self._flowed_ns.values())

    def _is_touched(self, start_ns: int, end_ns: int) -> bool:
        return any(start <= end_ns and start_ns <= end for start, end in reversed(self._windows))
