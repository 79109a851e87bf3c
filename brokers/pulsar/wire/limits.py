"""Every bound on what one connection of a Pulsar client may cost, with its arithmetic.

May live here: `Limits`. The bounds of topics stand with the topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What a frame may hold beside an entry: Pulsar's own allowance for the command and the sizes.
FRAME_PADDING_BYTES: Final = 10 * 1024

# What a property, or a range of hashes, is reckoned to take beside its texts: even an empty one is an object or three.
PAIR_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one connection; alike on all brokers of a cluster, because clients keep the last `message_bytes_max` they heard.

    Memory of a connection that does its worst, beside what the service keeps for it: one unfinished frame (`frame_bytes_max`,
    5 MiB; before CONNECT `command_bytes_max`), the requests that wait (`pending_bytes_max` of commands, 4 MiB, some four times that as
    objects), those of them that are under way (`creations_max`, 5.4 KB each), and its ids: two kinds, 10,000 in use and 10,000 closed of
    each, are 10 MB without their names and properties, and those are `kept_bytes_max`, 8 MiB, which may be four times that as Python
    keeps texts. An idle one has 1.4 KB. What all connections have together is bounded in `brokers.pulsar.settings`.
    """

    # Of one entry, whole: metadata and payload. Announced to the client, which then refuses larger ones by itself.
    message_bytes_max: int = 5 * 1024 * 1024
    # Of a command without the entry. The largest ones carry a schema, or the message ids of a thousand acknowledgements.
    command_bytes_max: int = 256 * 1024
    # A topic, subscription, namespace or name, in characters. Such names are kept for as long as the thing they name.
    name_characters_max: int = 1024
    # The properties of one producer or consumer: UTF-8 of all keys and values, and `PAIR_BYTES` for each pair. They are kept as long
    # as it lives.
    properties_bytes_max: int = 16 * 1024
    # The same, and the names, of all producers and consumers of a connection: 400 bytes for each of the most that it may have.
    kept_bytes_max: int = 8 * 1024 * 1024
    # A batch that says it holds more is counted as this many, so that nobody's permits or rates can be driven to absurdity.
    messages_per_entry_max: int = 100_000
    producers_max: int = 10_000
    consumers_max: int = 10_000
    # Creations that are under way, each in a task of its own; the next ones wait for them, in order.
    creations_max: int = 64
    # Requests that the service has not answered. A client that connects anew asks at most a few for each of its objects at once.
    requests_pending_max: int = 25_000
    pending_bytes_max: int = 4 * 1024 * 1024
    # What is still under way for a producer that this side closed is ignored for this long, and for this many producers.
    closed_for_ms: int = 30_000
    closed_ids_max: int = 10_000
    # What is done for one connection before others get their turn: 512 entries, or 64 of whatever else it asks; some 20 ms.
    turn_cost_max: int = 512
    # A client has this long to say CONNECT.
    handshake_ms: int = 30_000
    # After this long without a byte a PING goes out; after as long again the connection is over.
    keep_alive_ms: int = 30_000

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame, without its first size: an entry with its command."""
        return self.message_bytes_max + FRAME_PADDING_BYTES
