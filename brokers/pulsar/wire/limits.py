"""Define the bounds of one client connection, with their arithmetic.

`brokers.pulsar.topics.topic` has the bounds of a topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Room in a frame beside an entry: Pulsar's own allowance for the command and the sizes.
FRAME_PADDING_BYTES: Final = 10 * 1024

# Assumed overhead of a property or hash range: even an empty one takes up to three objects.
PAIR_BYTES: Final = 64

# A STICKY consumer may name as many hash ranges as another Key_Shared consumer has points on the
# ring.
RANGES_PER_CONSUMER_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one connection. They are the same on all brokers, because clients keep the last
    `message_bytes_max` they got.

    An idle connection takes 1.4 KB. At worst a connection takes, beside what the service keeps for
    it:

    * one unfinished frame: `frame_bytes_max`, 5 MiB (before CONNECT `command_bytes_max`)
    * waiting requests: `pending_bytes_max` of commands, 4 MiB, about four times that as objects
    * running creations: `creations_max`, 5.4 KB each
    * ids: 10,000 live and 10,000 closed ones of two kinds, 10 MB
    * their names and properties: `kept_bytes_max`, 8 MiB, up to four times that as Python strings

    `brokers.pulsar.settings` bounds all connections together.
    """

    # Size of an entry: metadata and payload. CONNECTED announces it, and clients then refuse larger
    # ones.
    message_bytes_max: int = 5 * 1024 * 1024
    # Size of a command without the entry. The largest ones carry a schema or the message ids of
    # 1,000 acknowledgements.
    command_bytes_max: int = 256 * 1024
    # Length of the name of a topic, subscription, namespace or client. A name is kept as long as
    # the thing it names.
    name_characters_max: int = 1024
    # Properties of one producer or consumer, kept as long as it lives: UTF-8 of keys and values,
    # plus `PAIR_BYTES` per pair.
    properties_bytes_max: int = 16 * 1024
    # Names and properties of all producers and consumers of a connection: 400 bytes each at the
    # most that it may have.
    kept_bytes_max: int = 8 * 1024 * 1024
    # A batch that claims more messages counts as this many, which keeps permits and rates
    # plausible.
    messages_per_entry_max: int = 100_000
    producers_max: int = 10_000
    consumers_max: int = 10_000
    # Running creations, each in a task of its own. Later ones wait in order.
    creations_max: int = 64
    # Unanswered requests. A reconnecting client sends at most a few at once for each producer and
    # consumer.
    requests_pending_max: int = 25_000
    pending_bytes_max: int = 4 * 1024 * 1024
    # After the broker closes a producer, late messages for it are ignored this long, for this many
    # producers.
    closed_for_ms: int = 30_000
    closed_ids_max: int = 10_000
    # Work for one connection per turn of the loop, about 20 ms: 512 entries, or 64 other requests.
    turn_cost_max: int = 512
    # Time until a client must send CONNECT.
    handshake_ms: int = 30_000
    # Send a PING after this long without a byte, and close after as long again.
    keep_alive_ms: int = 30_000

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame, without its first size: an entry with its command."""
        return self.message_bytes_max + FRAME_PADDING_BYTES
