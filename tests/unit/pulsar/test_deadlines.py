"""One timer for all topics that wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from brokers.pulsar.deadlines import Deadlines
from brokers.pulsar.hosting import Served
from brokers.pulsar.service import now_ms


class Waiting:
    """A topic whose time has come."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic = SimpleNamespace(wake_at_ms=now_ms(), is_fenced=False)


def test_a_topic_that_fails_keeps_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """Its failure is told, and the others are looked at all the same."""

    async def story() -> None:
        looked: asyncio.Queue[str] = asyncio.Queue()

        def look(served: Served) -> None:
            if served.name == "bad":
                raise RuntimeError("spoiled")
            looked.put_nowait(served.name)

        deadlines = Deadlines(look, now_ms=now_ms)
        for name in ("bad", "good"):
            deadlines.watch(cast("Served", Waiting(name)))
        assert "good" == await asyncio.wait_for(looked.get(), 10)

    asyncio.run(story())
    assert ["a topic failed as its time had come"] == [record.getMessage() for record in caplog.records]
