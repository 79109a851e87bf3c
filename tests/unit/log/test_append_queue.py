"""The bounds of the queue of records to append. Batches and outcomes are in
test_subscription.py.
"""

from __future__ import annotations

from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.log import BATCH_BYTES_MAX, RECORD_BYTES_MAX
from equipoise.channel.log.append_queue import APPENDS_QUEUED_BYTES_MAX, AppendQueue, Attempt


def test_bytes_are_bounded_and_free_again_when_records_are_taken() -> None:
    """Few records of the greatest size fill a batch and the queue."""
    giant = bytes(RECORD_BYTES_MAX)
    queue = AppendQueue("memory:queue")
    for _ in range(APPENDS_QUEUED_BYTES_MAX // RECORD_BYTES_MAX):
        assert queue.refusal(giant) is None
        queue.put(Attempt(data=giant, done=None, queued_ns=0))
    refusal = queue.refusal(b"a")
    assert isinstance(refusal, Overloaded)
    assert ("the queue of bytes to append to memory:queue", APPENDS_QUEUED_BYTES_MAX) == (
        refusal.what,
        refusal.limit,
    )
    assert BATCH_BYTES_MAX // RECORD_BYTES_MAX == len(queue.take_batch())
    assert queue.refusal(giant) is None
    assert (APPENDS_QUEUED_BYTES_MAX - BATCH_BYTES_MAX) // RECORD_BYTES_MAX == len(queue.drain())
    assert (0, None) == (len(queue), queue.refusal(giant))
