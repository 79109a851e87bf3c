"""Messages with times that a test chooses: what a node of Kafka with a wrong clock would have
stamped.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

DEADLINE_S: Final = 30.0


def let_writers_stamp(address: str, topic: str) -> None:
    """Have the topic take the times that messages bring, however far ahead."""
    settings = {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": str(2**63 - 1),
    }
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    # What it promises is broken when nobody holds it any more.
    client = AdminClient({"bootstrap.servers": address})
    client.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": address})
    stamps: list[int] = [TIMESTAMP_LOG_APPEND_TIME]
    give_up_s = time.monotonic() + DEADLINE_S
    # A setting is in force somewhat later.
    while stamps[-1] == TIMESTAMP_LOG_APPEND_TIME and time.monotonic() < give_up_s:
        producer.produce(
            topic,
            b"x",
            partition=0,
            on_delivery=lambda _, message: stamps.append(message.timestamp()[0]),
        )
        producer.flush(DEADLINE_S)


def put(address: str, topic: str, times_ms: Collection[int]) -> None:
    """Append a message with each time."""
    producer = Producer({"bootstrap.servers": address})
    for time_ms in times_ms:
        producer.produce(topic, b"x", partition=0, timestamp=time_ms)
    assert 0 == producer.flush(DEADLINE_S)
