"""Wrong clocks on a real Kafka: what the times of a topic say where a node of Kafka had a wrong
clock for a while.

The test gives messages their times itself, which Kafka takes once the topic no longer stamps them.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

import pytest

from equipoise.channel.log.open_log import open_log
from tests.kafka.fixtures import Kafka
from tests.kafka.stamping import let_writers_stamp, put

pytestmark = pytest.mark.integration

DAY_MS: Final = 86_400_000
YEAR_MS: Final = 365 * DAY_MS
TIMEOUT_MS: Final = 10_000


def test_one_wrong_clock_does_not_pin_the_time(kafka: Kafka) -> None:
    """After messages that Kafka stamped years ahead, each time still leads to its message, and
    `ahead` names the first wrong one.
    """
    topic = kafka.topic("clock")
    with closing(open_log(f"kafka://{kafka.address}/{topic}")) as log:
        let_writers_stamp(kafka.address, topic)
        log.truncate(log.end() + 1, timeout_ms=TIMEOUT_MS)
        now_ms = time.time_ns() // 1_000_000
        times_ms = [
            now_ms - 8 * DAY_MS,
            now_ms + 7 * YEAR_MS,
            *(now_ms - days * DAY_MS for days in (7, 6, 5, 4)),
            now_ms + YEAR_MS,
        ]
        put(kafka.address, topic, times_ms)
        offsets = range(log.start(), log.end() + 1)
        assert len(times_ms) == len(offsets)
        found = [log.position_at(time_ms) for time_ms in times_ms[:1] + times_ms[3:6]]
        assert [offsets[0], *offsets[3:6]] == found
        # A wrong time counts as that of the next message, or as now.
        assert offsets[1] == log.position_at(times_ms[2])
        assert offsets[6] == log.position_at(now_ms)
        assert [offsets[1], offsets[6]] == [log.ahead(offsets[0]), log.ahead(offsets[2])]
