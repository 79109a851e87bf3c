"""A log in memory for each test of compaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.channels.gap_log import GapLog


@pytest.fixture
def log() -> Iterator[GapLog]:
    """A log of its own."""
    with closing(GapLog()) as log:
        yield log


@pytest.fixture
def other(log: GapLog) -> Iterator[GapLog]:
    """The same log, as another compactor has it."""
    with closing(GapLog(name=log.name)) as other:
        yield other
