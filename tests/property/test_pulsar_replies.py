"""Compare the replies that are encoded by hand with protobuf's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
from equipoise.brokers.pulsar.wire.replies import message_head, receipt
from tests.pulsar.pulsar_speech import frame_of

# Around the lengths at which a varint grows, and anywhere.
numbers = st.one_of(
    st.integers(min_value=0, max_value=2**64 - 1),
    st.integers(min_value=0, max_value=9).flatmap(
        lambda sevens: st.sampled_from([2 ** (7 * sevens), 2 ** (7 * sevens) - 1])
    ),
)


@given(numbers, numbers, numbers, numbers)
def test_a_receipt_equals_protobufs(
    producer_id: int, sequence_id: int, highest: int, entry_id: int
) -> None:
    message_id = {"ledgerId": 0, "entryId": entry_id}
    ids = {"producer_id": producer_id, "sequence_id": sequence_id, "highest_sequence_id": highest}
    expected = frame_of(BaseCommand.SEND_RECEIPT, message_id=message_id, **ids)
    assert expected == receipt(producer_id, sequence_id, highest, entry_id)


@given(
    numbers,
    numbers,
    st.one_of(st.none(), st.integers(min_value=0, max_value=2**31 - 1)),
    st.binary(max_size=300),
)
def test_a_message_equals_protobufs(
    consumer_id: int, entry_id: int, partition: int | None, block: bytes
) -> None:
    message_id = {"ledgerId": 0, "entryId": entry_id, "partition": partition}
    expected = frame_of(BaseCommand.MESSAGE, block, consumer_id=consumer_id, message_id=message_id)
    assert (
        expected
        == message_head(consumer_id, entry_id, -1 if partition is None else partition, len(block))
        + block
    )
