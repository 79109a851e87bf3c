"""Read a topic ahead for one reader: a consumer, and the thread that pumps it.

The thread waits in the library, where nothing can wake it, and hands entries over under a condition
on which the handle waits. So the handle does not poll, and `Log.wake` takes effect at once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from equipoise.channel.core.log import READ_BYTES_MAX, READ_ENTRIES_MAX, RECORD_BYTES_MAX, Entry
from equipoise.channel.kafka.answers import KafkaFailed, Trouble
from equipoise.channel.kafka.client import PartitionConsumer, Taken
from equipoise.channel.kafka.settings import HEADER_KEY

AHEAD_ENTRIES_MAX: Final = 2 * READ_ENTRIES_MAX
AHEAD_BYTES_MAX: Final = READ_BYTES_MAX + RECORD_BYTES_MAX
"""What a tail reads ahead: one full answer, and half of the next while the reader folds that
one."""

PUMPED_MAX: Final = 1_024
"""Messages taken from the library at once: 1 ms during which this thread holds the GIL."""

PUMP_MS_MAX: Final = 100
"""How long the thread waits in the library at once, and so how long closing takes.

Ten wake-ups a second of about ten microseconds each are no load. A message ends the wait.
"""

CLOSE_MS_MAX: Final = 2_000
"""How long `join` waits. A thread that hangs in the library, such as in a name lookup, ends
later."""

_logger: Final = logging.getLogger(__name__)


class Tail:
    """Reads on from one position. Entries are taken from the front, so it serves one reader at a
    time.

    Call `stop` and `join` without holding `changed`, and all other methods while holding it.
    """

    def __init__(
        self, consumer: PartitionConsumer, position: int, *, name: str, changed: threading.Condition
    ) -> None:
        """Start reading. Takes ownership of `consumer`. `name` is the log's, for the thread;
        `changed` is notified of all changes.
        """
        self.head = position
        """The first position not yet given away."""
        self.reached = position
        """Everything below this position was read: held here, given away, or a gap."""
        self.has_begun = False
        """Whether Kafka has answered once."""
        self.missed = 0
        """How often in a row a wait was in vain. The handle counts; an arriving entry resets it."""
        self.failure: KafkaFailed | None = None
        """Why no more entries will come. Held entries can still be taken."""
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._changed = changed
        self._is_stopping = False
        self._consumer = consumer
        # A daemon thread, so that a name server which never answers does not keep the process from
        # ending.
        self._thread = threading.Thread(target=self._run, name=f"kafka {name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return how many entries are held."""
        return len(self._entries)

    def __bool__(self) -> bool:
        return True

    def holds_enough(self, limit: int) -> bool:
        """Return whether waiting for more is pointless: `limit` entries are held, or no more
        fit.
        """
        return len(self._entries) >= limit or self._bytes > READ_BYTES_MAX or self._is_full()

    def skip_to(self, position: int) -> None:
        """Give away everything below `position`, which lies between `head` and `reached`."""
        while self._entries and self._entries[0].offset < position:
            self._drop_first()
        self.head = position

    def take(self, limit: int) -> Sequence[Entry]:
        """Give away the first entries: at most `limit`, and none after `READ_BYTES_MAX`."""
        taken: list[Entry] = []
        taken_bytes = 0
        while self._entries and len(taken) < limit and taken_bytes <= READ_BYTES_MAX:
            entry = self._drop_first()
            taken_bytes += len(entry.data)
            taken.append(entry)
        if taken:
            self.head = taken[-1].offset + 1
            self._changed.notify_all()  # There is room.
        return taken

    def _drop_first(self) -> Entry:
        entry = self._entries.popleft()
        self._bytes -= len(entry.data)
        return entry

    def _is_full(self) -> bool:
        return len(self._entries) >= AHEAD_ENTRIES_MAX or self._bytes >= AHEAD_BYTES_MAX

    def stop(self) -> None:
        """Stop reading and release the consumer soon."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the consumer is closed, at most `CLOSE_MS_MAX`."""
        self._thread.join(CLOSE_MS_MAX / 1_000)

    @property
    def is_gone(self) -> bool:
        """Whether the consumer is closed."""
        return not self._thread.is_alive()

    # --- in the thread ---

    def _run(self) -> None:
        try:
            self._consumer.start_at(self.reached)
            while self._wants_more():
                taken = self._consumer.take(PUMPED_MAX, timeout_ms=PUMP_MS_MAX)
                if taken is not None:
                    self._hand_over(taken)
        except Exception as error:  # a thread that dies silently is a reader that hangs
            _logger.exception("reading ahead failed")
            self._fail(
                KafkaFailed(trouble=Trouble.BROKEN, problem=f"{type(error).__name__}: {error}")
            )
        finally:
            self._consumer.close()

    def _wants_more(self) -> bool:
        """Wait for room, and return whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or not self._is_full())
            return not self._is_stopping and self.failure is None

    def _hand_over(self, taken: Taken) -> None:
        # A tombstone becomes an empty entry, which is no valid record.
        entries = [
            Entry(offset, message.value() or b"")
            for offset, message in taken.messages
            if message.key() != HEADER_KEY
        ]
        with self._changed:
            self._entries.extend(entries)
            self._bytes += sum(len(entry.data) for entry in entries)
            self.reached = max(self.reached, taken.reached)
            self.has_begun = True
            self.missed = 0
            self.failure = self.failure or taken.failure
            self._changed.notify_all()

    def _fail(self, failure: KafkaFailed) -> None:
        with self._changed:
            self.failure = failure
            self._changed.notify_all()
