"""What waits to be appended: the bounds of each queue, and the turns that several take in one batch.

May live here: examples of `channel.log.append_queue`. That a thread appends what is drawn here is shown in test_log_thread.py.
"""

from __future__ import annotations

from collections import deque

from equipoise.channel.core.errors import AppendTooLarge, Overloaded
from equipoise.channel.core.log import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, RECORD_BYTES_MAX
from equipoise.channel.log.append_queue import APPENDS_QUEUED_BYTES_MAX, APPENDS_QUEUED_MAX, AppendQueue, Attempt, next_batch

NAME = "memory:queue"


def filled(*records: bytes) -> AppendQueue:
    """A queue in which these records wait."""
    queue = AppendQueue(NAME)
    for record in records:
        assert queue.refusal(record) is None
        queue.put(Attempt(data=record, done=None, queued_ns=0))
    return queue


def drawn(waiting: deque[AppendQueue]) -> list[bytes]:
    """The records of the next batch."""
    return [attempt.data for attempt in next_batch(waiting)]


def test_queues_take_turns() -> None:
    """Each queue gives one record and goes to the end of the row; the records of each stay in their order."""
    waiting = deque([filled(b"a1", b"a2", b"a3"), filled(b"b1"), filled(b"c1", b"c2")])
    assert [b"a1", b"b1", b"c1", b"a2", b"c2", b"a3"] == drawn(waiting)
    assert not waiting


def test_one_record_is_in_the_next_batch_however_much_another_appends() -> None:
    """Behind a full queue, a record of another waits for nothing: it is drawn second."""
    much, little = filled(*[b"much"] * APPENDS_QUEUED_MAX), filled(b"little")
    waiting = deque([much, little])
    batch = drawn(waiting)
    assert (BATCH_ENTRIES_MAX, 1) == (len(batch), batch.index(b"little"))
    assert [much] == list(waiting)


def test_who_missed_a_batch_is_first_in_the_next() -> None:
    """The row goes on where a full batch ended, so that giants of one queue do not keep another's out for ever."""
    giants = BATCH_BYTES_MAX // RECORD_BYTES_MAX
    waiting = deque([filled(*[bytes(RECORD_BYTES_MAX)] * 2) for _ in range(giants)] + [filled(b"last")])
    assert giants == len(drawn(waiting))
    assert b"last" == drawn(waiting)[0]


def test_each_queue_has_a_bound_of_its_own() -> None:
    """A full queue refuses more, and the queue beside it takes what comes."""
    full = filled(*[b"a"] * APPENDS_QUEUED_MAX)
    refusal = full.refusal(b"a")
    assert isinstance(refusal, Overloaded)
    assert APPENDS_QUEUED_MAX == refusal.limit
    assert AppendQueue(NAME).refusal(b"a") is None


def test_the_bound_in_bytes_is_free_again_when_records_are_taken() -> None:
    """Giants fill a queue by their bytes; what is taken or drained makes room for as much."""
    giant = bytes(RECORD_BYTES_MAX)
    queue = filled(*[giant] * (APPENDS_QUEUED_BYTES_MAX // RECORD_BYTES_MAX))
    refusal = queue.refusal(b"a")
    assert isinstance(refusal, Overloaded)
    assert (f"the queue of bytes to append to {NAME}", APPENDS_QUEUED_BYTES_MAX) == (refusal.what, refusal.limit)
    queue.take()
    assert queue.refusal(giant) is None
    assert APPENDS_QUEUED_BYTES_MAX // RECORD_BYTES_MAX - 1 == len(queue.drain())
    assert (0, None) == (len(queue), queue.refusal(giant))


def test_what_no_log_takes_is_refused_at_once() -> None:
    """A record that is too large for any batch never gets into one, where it would spoil the records of others."""
    assert isinstance(AppendQueue(NAME).refusal(bytes(RECORD_BYTES_MAX + 1)), AppendTooLarge)
