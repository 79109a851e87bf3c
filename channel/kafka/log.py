"""Implement `Log` on a Kafka topic of one partition, shared by all who reach that Kafka.

Theory of operation:

* The log's offsets are Kafka's. Offset 0 is the topic's header. Messages with the header's key are
  no entries.
* Appends use acks=all and idempotence, so a record that the library retries is on the log once. A
  record not sent in time never will be; a record sent but not acknowledged is in doubt, and only
  reading shows its outcome.
* A read that finds entries makes no request. One that finds none asks the partition's leader for
  the end, so that "no entry" covers all earlier appends of any process. Kafka reports an end only
  when the next leader would, too.
* A node that was cut off from the others does not know that another leads the partition, and
  reports an old end for as long as it is cut off. So an end below an offset that was issued is no
  proof of a lost end. Only the leader acknowledges an append, because that takes the other nodes.
  So the handle appends a second header, which is no entry: its offset proves which of both is the
  case.
* Each position that is read has its own consumer (`Tail`), which never seeks: a consumer that seeks
  first waits for its old request. A tail that does not deliver known entries is replaced: after a
  broker's restart the library's consumer sometimes stops fetching for good (librdkafka issue 5153).
* A topic that is deleted and recreated has another id. The id is checked after anything unusual,
  and periodically.
* After a truncation by another process, a reader may still get entries that it had read ahead. They
  are valid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Final, NoReturn

from equipoise.channel.core.errors import (
    EquipoiseError,
    LogNotBegun,
    LogReplaced,
    LogUnavailable,
    LogWentBack,
)
from equipoise.channel.core.log import (
    FIRST_OFFSET,
    READ_ENTRIES_MAX,
    Entry,
    SnapshotStore,
    check_batch,
    check_position,
)
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.channel.kafka.answers import KafkaFailed, Sent, Trouble
from equipoise.channel.kafka.client import Administrator, Clients, PartitionProducer, Taken
from equipoise.channel.kafka.settings import (
    HEADER_KEY,
    HISTORY_SUFFIX,
    SNAPSHOT_SUFFIX,
    KafkaAddress,
)
from equipoise.channel.kafka.snapshot_store import KafkaSnapshotStore
from equipoise.channel.kafka.tail import Tail
from equipoise.channel.kafka.topic import HEADER, fitting_topic, mark, needed_of_log
from equipoise.channel.system.clocks import Deadline, ahead_by, latest_ms, position_by

OPEN_MS_MAX: Final = 10_000
"""How long opening waits for Kafka: an election of the partition's leader and a slow name
server."""

READ_MS_MAX: Final = 1_000
"""How long a read waits for Kafka's answer: a hundred times the usual, and short against a
lease."""

FIRST_ANSWER_MS_MAX: Final = 3_000
"""The same for a new client's first answer: it connects to several brokers, with a TLS handshake if
needed."""

MISSED_MAX: Final = 3
"""How often in a row a tail may fail to deliver known entries before it is replaced.

With its successor's first answer that takes about 6 s, less than half a lease.
"""

LOOK_MS: Final = 60_000
"""How often the topic's id is checked.

A deleted topic is noticed at once. This check finds one that was recreated and has grown past all
readers: so rare that a failed check does not stop reading.
"""

MISSING_MS: Final = 5_000
"""How long a topic may be unknown before it counts as deleted: a node that has just started may
learn of it last."""

TAILS_MAX: Final = 4
"""The positions that one handle reads at a time, such as a reader at the end and one that replays.
Beyond, the longest unused is closed."""

TAIL_IDLE_S: Final = 10.0
"""How long an unused tail is kept: its reader has reached the end or is gone."""

_ENDS_A_PRODUCER: Final = frozenset({Trouble.BROKEN, Trouble.DENIED, Trouble.FENCED})


class KafkaLog:
    """A handle on the log in a Kafka topic. See `Log` for the contract."""

    def __init__(
        self, address: KafkaAddress, *, name: str, settings: Mapping[str, str], create: bool = True
    ) -> None:
        """Open the log; `create` makes a missing topic. `name` is its URL, for messages.

        Raises `CallerError`, `LogNotBegun`, `OperatorError`,
        `LogUnavailable`.
        """
        self.name = name
        self._address = address
        self._clients = Clients(servers=address.servers, settings=settings)
        self._compacted_snapshot = KafkaSnapshotStore(
            self._clients, address, topic=address.topic + SNAPSHOT_SUFFIX, log=name
        )
        self._history_snapshot = KafkaSnapshotStore(
            self._clients, address, topic=address.topic + HISTORY_SUFFIX, log=name
        )
        self._changed = threading.Condition()
        self._woken = False
        self._tails: dict[Tail, float] = {}  # When each was last read from.
        self._leaving: list[Tail] = []
        self._start = FIRST_OFFSET
        # The highest offset that the log is known to have reached. It never falls, as `_start`.
        self._end = FIRST_OFFSET - 1
        self._lost: LogWentBack | None = None  # What an append has shown: offsets are issued twice.
        self._look_s = time.monotonic() + LOOK_MS / 1_000
        # After anything unusual: check the topic's id before the next read.
        self._may_be_another = False
        self._missing_since_s: float | None = None  # Since when the topic is unknown, if it is.
        self._asker = self._clients.consumer(address.topic)
        # Created early: it is usable only half a second later.
        self._producer: PartitionProducer | None = (
            self._clients.producer(address.topic) if create else None
        )
        try:
            self.identity = self._open(create=create)
            self._clients.complaints.let_in()
        except BaseException as error:
            self.close()
            if not isinstance(error, KafkaFailed):
                raise
            if error.trouble is Trouble.AWAY:
                problem = (
                    f"no Kafka answered at {address.servers}: {error.problem}; check the address"
                )
                raise LogUnavailable(log=name, problem=problem, in_doubt=False) from error
            raise error.as_error(log=name, in_doubt=False) from error

    def _open(self, *, create: bool) -> str:
        """Create or check the topic and its header. Return the topic's id."""
        deadline = Deadline.after(timeout_ms=OPEN_MS_MAX)
        topic = self._address.topic
        with self._clients.administrator() as administrator:
            replication = self._address.replication
            facts = fitting_topic(
                administrator,
                topic,
                needed_of_log,
                log=self.name,
                replication=replication,
                create=create,
                deadline=deadline,
            )
        if facts is None:
            raise LogNotBegun(log=self.name, problem=f"there is no topic {topic}")
        with closing(self._clients.consumer(topic)) as reader:
            mark(self._asker, reader, self._producer, log=self.name, topic=topic, deadline=deadline)
        return facts.id

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        """See `Log.append`."""
        check_batch(self.name, batch)
        if not batch:
            return ()
        sent = self._send(batch, timeout_ms=timeout_ms)
        if sent.failure is not None:
            self._may_be_another = True
            raise self._error(sent.failure, in_doubt=sent.is_in_doubt) from sent.failure
        if sent.offsets[0] <= self._end:
            self._lost = LogWentBack(log=self.name, position=self._end + 1, end=sent.offsets[0] - 1)
            raise self._lost
        self._end = sent.offsets[-1]
        return sent.offsets

    def _send(self, values: Sequence[bytes], *, key: bytes | None = None, timeout_ms: int) -> Sent:
        if self._producer is None:
            self._producer = self._clients.producer(self._address.topic)
        sent = self._producer.send(values, key=key, timeout_ms=timeout_ms)
        if sent.failure is not None and sent.failure.trouble in _ENDS_A_PRODUCER:
            self._producer.close()
            self._producer = self._clients.producer(self._address.topic)
        return sent

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        """See `Log.read`."""
        assert limit > 0, "a read of no entries cannot tell the end from a limit"
        limit = min(limit, READ_ENTRIES_MAX)
        tail = self._tail_at(position)
        if not self._comes(tail, limit=limit):
            return ()
        with self._changed:
            return tail.take(limit)

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """See `Log.wait`."""
        tail = self._tail_at(position)
        with self._changed:
            self._changed.wait_for(
                lambda: self._woken or len(tail) or tail.failure is not None, timeout_ms / 1_000
            )
            woken, self._woken = self._woken, False
            if len(tail):
                return True
        # No entry came. Only Kafka knows whether there is one.
        return not woken and self._comes(tail, limit=1)

    def wake(self) -> None:
        """See `Log.wake`."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def start(self) -> int:
        """See `Log.start`."""
        self._ask_bounds()
        return self._start

    def end(self) -> int:
        """See `Log.end`."""
        self._ask_bounds()
        return self._end

    def position_at(self, time_ms: int) -> int:
        """See `Log.position_at`.

        Kafka returns the first message at or after a time, even if it is far ahead. It returns none
        if it searches a segment whose matching messages were all truncated; the newest message then
        shows whether any exist.
        """
        found, ahead = self._offset_at(time_ms), self._offset_at(latest_ms() + 1)
        self._ask_bounds()
        end = self._end + 1
        if (
            found is None
            and self._first_timed(max(self._end, self._start), end, time_ms, INTEGER_MAX) is None
        ):
            return end
        if found is not None and (ahead is None or found < ahead):
            return max(found, self._start)
        return position_by(self._first_timed, time_ms, low=max(found or 0, self._start), high=end)

    def ahead(self, position: int) -> int | None:
        """See `Log.ahead`."""
        found = self._offset_at(latest_ms() + 1)
        if found is None or found >= position:
            return found
        self._ask_bounds()
        return ahead_by(self._first_timed, position, below=self._end + 1)

    def _offset_at(self, time_ms: int) -> int | None:
        try:
            return self._asker.offset_at(max(0, min(time_ms, INTEGER_MAX)), timeout_ms=READ_MS_MAX)
        except KafkaFailed as failed:
            raise self._error(failed) from failed

    def _first_timed(
        self, position: int, below: int, from_ms: int, to_ms: int
    ) -> tuple[int, int] | None:
        """See `FirstTimed`. Reads message by message, since it is needed only where a clock was
        wrong.
        """
        if position >= below:
            return None
        deadline = Deadline.after(timeout_ms=FIRST_ANSWER_MS_MAX)
        with closing(self._clients.consumer(self._address.topic)) as reader:
            reader.start_at(position)
            while remaining_ms := deadline.remaining_ms():
                taken = reader.take(READ_ENTRIES_MAX, timeout_ms=remaining_ms) or Taken()
                for offset, message in taken.messages:
                    _, at_ms = message.timestamp()
                    if offset < below and from_ms <= at_ms <= to_ms:
                        return offset, at_ms
                    deadline = Deadline.after(timeout_ms=READ_MS_MAX)
                if taken.reached >= below:
                    return None
                if taken.failure is not None:
                    raise self._error(taken.failure)
        problem = f"the entry at offset {position} did not arrive within {deadline.timeout_ms} ms"
        raise LogUnavailable(log=self.name, problem=problem, in_doubt=False)

    def compacted_snapshot(self) -> SnapshotStore:
        """See `Log.compacted_snapshot`."""
        return self._compacted_snapshot

    def history_snapshot(self) -> SnapshotStore:
        """See `Log.history_snapshot`."""
        return self._history_snapshot

    def truncate(self, below: int, *, timeout_ms: int) -> None:
        """See `Log.truncate`."""
        self._ask_bounds(below)
        if below <= self._start:
            return
        try:
            with self._clients.administrator() as administrator:
                self._check_topic(administrator)  # Kafka truncates the topic that has the name now.
                administrator.delete_below(self._address.topic, below, timeout_ms=timeout_ms)
        except KafkaFailed as failed:
            raise self._error(failed, in_doubt=True) from failed
        self._start = below

    def close(self) -> None:
        """See `Log.close`."""
        self._compacted_snapshot.close()
        self._history_snapshot.close()
        tails, self._tails, self._leaving = [*self._tails, *self._leaving], {}, []
        for tail in tails:
            tail.stop()
        for tail in tails:
            tail.join()
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._asker.close()

    def _tail_at(self, position: int) -> Tail:
        """Return a tail that has reached `position`, or a new one."""
        if position < self._start:
            check_position(self.name, position, start=self._start, end=self._end)
        with self._changed:
            tail = next((tail for tail in self._tails if tail.head == position), None)
            tail = tail or next(
                (tail for tail in self._tails if tail.head < position <= tail.reached), None
            )
            if tail is not None:
                tail.skip_to(position)
        if tail is None:
            tail = self._new_tail(position)
        now_s = time.monotonic()
        self._tails[tail] = now_s
        if len(self._tails) > 1:
            for other in [
                other for other, read_s in self._tails.items() if read_s < now_s - TAIL_IDLE_S
            ]:
                self._give_up(other)
        return tail

    def _new_tail(self, position: int) -> Tail:
        self._ask_bounds(position)
        check_position(self.name, position, start=self._start, end=self._end)
        if len(self._tails) == TAILS_MAX:
            self._give_up(min(self._tails, key=self._tails.__getitem__))
        return Tail(
            self._clients.consumer(self._address.topic),
            position,
            name=self.name,
            changed=self._changed,
        )

    def _give_up(self, tail: Tail) -> None:
        """Close a tail without waiting for it."""
        del self._tails[tail]
        tail.stop()
        self._leaving = [leaving for leaving in (*self._leaving, tail) if not leaving.is_gone]

    def _comes(self, tail: Tail, *, limit: int) -> bool:
        """Return whether there is an entry at or above the head of `tail`. Waits for up to `limit`
        entries that are known to be there.
        """
        if self._is_dry(tail):
            self._ask_bounds(tail.reached)
            check_position(self.name, tail.head, start=self._start, end=self._end)
        with self._changed:
            if self._is_dry(tail):
                return False
            answer_ms = READ_MS_MAX if tail.has_begun else FIRST_ANSWER_MS_MAX
            has_come = self._changed.wait_for(
                lambda: (
                    tail.failure is not None or tail.reached > self._end or tail.holds_enough(limit)
                ),
                answer_ms / 1_000,
            )
            if len(tail):
                return True
        if tail.failure is not None:
            self._give_up(tail)
            self._explain(tail.failure, tail.head)
        if not has_come:
            tail.missed += 1
            if tail.missed == MISSED_MAX:
                self._give_up(tail)
            problem = f"the entry at offset {tail.head} did not arrive within {answer_ms} ms"
            raise LogUnavailable(log=self.name, problem=problem, in_doubt=False)
        return False

    def _is_dry(self, tail: Tail) -> bool:
        """Return whether a working tail has delivered everything known to be there. The last known
        offset may be no entry.
        """
        return not len(tail) and tail.failure is None and self._end < tail.reached

    def _explain(self, failure: KafkaFailed, position: int) -> NoReturn:
        """Raise the reason why a reader at `position` cannot read on."""
        self._may_be_another = True
        self._ask_bounds(position)
        check_position(self.name, position, start=self._start, end=self._end)
        raise self._error(failure) from failure

    def _error(self, failed: KafkaFailed, *, in_doubt: bool = False) -> EquipoiseError:
        """Translate a failure of an opened log. A right that existed at opening is missing only
        temporarily.
        """
        if in_doubt or failed.trouble is Trouble.DENIED:
            return LogUnavailable(log=self.name, problem=failed.problem, in_doubt=in_doubt)
        return failed.as_error(log=self.name, in_doubt=False)

    def _ask_bounds(self, position: int = FIRST_OFFSET) -> None:
        """Update the bounds from the partition's leader. Also check the topic, periodically and
        after anything unusual.

        All offsets below `position` were issued, as its reader says. Raises `LogWentBack` if they
        were not, or are issued again.
        """
        if self._lost is not None:
            raise self._lost
        issued = max(self._end, position - 1)
        try:
            if self._may_be_another:
                self._look_up_topic()
            if self._producer is not None:
                self._producer.drain()
            bounds = self._asker.bounds(timeout_ms=READ_MS_MAX)
            end = bounds.high - 1
            if end < issued:
                self._look_up_topic()
                end = self._proven_end(end, issued)
        except KafkaFailed as failed:
            self._may_be_another = True  # After an outage it may be another topic.
            raise self._error(failed) from failed
        if time.monotonic() >= self._look_s:
            with suppress(KafkaFailed):
                self._look_up_topic()
        self._start, self._end = max(bounds.low, self._start), end

    def _proven_end(self, end: int, issued: int) -> int:
        """Return the end that an append of our own proves, where a node reports an `end` below an
        offset that was `issued`.

        Raises `LogWentBack`, and `KafkaFailed` while nothing is proven.
        """
        self._asker.close()  # It would go on asking the same node.
        self._asker = self._clients.consumer(self._address.topic)
        sent = self._send([HEADER], key=HEADER_KEY, timeout_ms=READ_MS_MAX)
        if sent.failure is not None:
            problem = (
                f"a node of Kafka ends the topic {self._address.topic} at {end}, below offset"
                f" {issued}, which was read before: it is cut off from the other nodes, or the end"
                f" is lost. An append shows which of both, and has failed ({sent.failure.problem})"
            )
            raise KafkaFailed(trouble=Trouble.AWAY, problem=problem)
        if sent.offsets[0] <= issued:
            raise LogWentBack(log=self.name, position=issued + 1, end=sent.offsets[0] - 1)
        return sent.offsets[0]

    def _look_up_topic(self) -> None:
        """Raise `OperatorError` unless the topic is still the one that was opened."""
        self._look_s = time.monotonic() + LOOK_MS / 1_000
        with self._clients.administrator() as administrator:
            self._check_topic(administrator)

    def _check_topic(self, administrator: Administrator) -> None:
        """See `_look_up_topic`. Raises `KafkaFailed` while the topic may merely be unknown to the
        node that was asked.
        """
        topic = self._address.topic
        found = administrator.identity(topic, timeout_ms=FIRST_ANSWER_MS_MAX)
        if found is None:
            self._may_be_another = True
            now_s = time.monotonic()
            self._missing_since_s = (
                now_s if self._missing_since_s is None else self._missing_since_s
            )
            if now_s - self._missing_since_s < MISSING_MS / 1_000:
                raise KafkaFailed(trouble=Trouble.NO_TOPIC, problem=f"there is no topic {topic}")
        if found != self.identity:
            raise LogReplaced(log=self.name, path=f"the topic {topic}")
        self._may_be_another, self._missing_since_s = False, None
