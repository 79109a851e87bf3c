"""The sequential operator without a JVM: its state is always as of the last batch that was
committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from equipoise.channel.core.snapshot import to_bytes
from equipoise.spark_jobs.sequence.rows import LASTING, Arrival, Emitted, Table
from equipoise.spark_jobs.sequence.sequence import RowSequence
from equipoise.spark_jobs.sources.sqlite_source import record_batch
from equipoise.spark_jobs.streams import sequential_operator
from equipoise.spark_jobs.streams.sequential_operator import FoldProcessor, pack, write_state
from tests.channels.folding import channel_with
from tests.channels.walk import Walk

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

BATCH = 25


@dataclass(slots=True)
class State:
    """What Spark keeps for one key; `committed` is what an attempt begins with, and `now` what it
    has made of it.
    """

    committed: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    now: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def begin(self) -> None:
        self.now = {name: list(values) for name, values in self.committed.items()}

    def commit(self) -> None:
        self.committed = self.now


@dataclass(slots=True)
class Variable:
    """A value state or a list state, as `StatefulProcessorHandle` gives them."""

    state: State
    name: str

    def exists(self) -> bool:
        return self.name in self.state.now

    def get(self) -> Any:  # noqa: ANN401 - a value has one tuple, a list an iterator
        values = self.state.now.get(self.name, [])
        return values[0] if self.name == "version" else iter(values)

    def update(self, value: tuple[Any, ...]) -> None:
        self.state.now[self.name] = [value]

    def appendList(self, values: list[tuple[Any, ...]]) -> None:  # noqa: N802 - Spark's name
        self.state.now.setdefault(self.name, []).extend(values)

    def clear(self) -> None:
        self.state.now.pop(self.name, None)


@dataclass(slots=True)
class Handle:
    state: State

    def getValueState(self, name: str, _schema: str) -> Variable:  # noqa: N802 - Spark's name
        return Variable(self.state, name)

    def getListState(self, name: str, _schema: str) -> Variable:  # noqa: N802 - Spark's name
        return Variable(self.state, name)


class Worker:
    """A worker of Spark with one task: `attempt` feeds a batch, and reads at most so many frames of
    what comes of it.
    """

    def __init__(self, state: State, begin: Path) -> None:
        self.state = state
        self.processor = FoldProcessor(lambda _key: RowSequence(), begin)

    def attempt(self, batch: list[Arrival], *, frames_max: int | None = None) -> list[Emitted]:
        """The rows of a batch; what it wrote is not committed yet."""
        self.state.begin()
        self.processor.init(cast("StatefulProcessorHandle", Handle(self.state)))
        frames = self.processor.handleInputRows(
            (0,), self._frames(batch), cast("TimerValues", None)
        )
        rows: list[Emitted] = []
        for place, frame in enumerate(frames):
            if place == frames_max:
                return rows
            rows += (
                Emitted(**row)
                for row in pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
            )
        self.processor.close()
        return rows

    def run(self, batch: list[Arrival]) -> list[Emitted]:
        """Feed a batch, and commit it. Return its rows without those of state."""
        rows = self.attempt(batch)
        self.state.commit()
        return of_entries(rows)

    @staticmethod
    def _frames(batch: list[Arrival]) -> Iterator[pd.DataFrame]:
        """In two frames, the later one first: Spark promises no order."""
        middle = len(batch) // 2
        return (
            part.to_pandas()
            for half in (batch[middle:], batch[:middle])
            for part in pack([record_batch(half)])
        )


@pytest.fixture
def begin(tmp_path: Path) -> Path:
    """What a checkpoint begins with: the beginning of a log."""
    return begun(tmp_path, RowSequence())


def begun(folder: Path, sequence: RowSequence) -> Path:
    """The state of a sequence in a file."""
    path = folder / "begin"
    write_state(path, {key: data for key, data in sequence.changed_rows() if data is not None})
    return path


def batches(seed: int, *, length: int = 150) -> list[list[Arrival]]:
    """The batches of a walk."""
    walk = Walk(seed)
    arrivals = [
        Arrival("channel", *(offset, 1_000 * offset, data))
        for offset, data in (walk.step() for _ in range(length))
    ]
    return [arrivals[first : first + BATCH] for first in range(0, length, BATCH)]


def at_once(parts: list[list[Arrival]]) -> list[Emitted]:
    """The rows of all batches, by one sequence that is fed at once."""
    return of_entries(RowSequence().feed(arrival for part in parts for arrival in part))


def of_entries(rows: Iterable[Emitted]) -> list[Emitted]:
    """Leave out the rows of state, and those that say at the end of a batch what lasts."""
    return [row for row in rows if row.ordinal != LASTING and row.table != Table.STATE]


def test_a_failed_attempt_leaves_nothing(monkeypatch: pytest.MonkeyPatch, begin: Path) -> None:
    """It was fed in part, or whole but never committed."""
    monkeypatch.setattr(sequential_operator, "CHUNK_ROWS_MAX", 5)
    parts, worker = batches(2), Worker(State(), begin)
    rows: list[Emitted] = []
    for place, part in enumerate(parts):
        worker.attempt(part, frames_max=2 if place % 2 else None)
        rows += worker.run(part)
    assert at_once(parts) == rows


def test_a_batch_may_go_to_another_worker(monkeypatch: pytest.MonkeyPatch, begin: Path) -> None:
    """A worker's cache may be outdated."""
    parts, worker = batches(3), Worker(State(), begin)
    rows: list[Emitted] = []
    caches: list[dict[tuple[str, int], sequential_operator.Kept]] = [{}, {}]
    for place, part in enumerate(parts):
        monkeypatch.setattr(sequential_operator, "_kept", caches[place // 2 % 2])
        rows += worker.run(part)
    assert at_once(parts) == rows


def test_a_restart_continues_from_the_state(begin: Path) -> None:
    parts, state = batches(4), State()
    rows = [row for part in parts for row in Worker(state, begin).run(part)]
    assert at_once(parts) == rows


def test_the_list_of_state_rows_is_rewritten_before_it_is_twice_too_long(
    monkeypatch: pytest.MonkeyPatch, begin: Path
) -> None:
    monkeypatch.setattr(sequential_operator, "STATE_ROWS_SPARE", 0)
    monkeypatch.setattr(sequential_operator, "STATE_ROWS_AT_ONCE", 7)
    state = State()
    worker = Worker(state, begin)
    for part in batches(5, length=400):
        worker.run(part)
        listed = state.committed["rows"]
        latest = dict(listed)
        assert len(listed) <= 2 * sum(data is not None for data in latest.values())


def test_only_a_new_checkpoint_begins_with_the_given_state(tmp_path: Path) -> None:
    channel = channel_with("b1")
    begin = begun(tmp_path, RowSequence(to_bytes(channel.view)))
    head = len(channel.entries)
    channel.own("b1")
    arrivals = [Arrival("channel", offset, 0, data) for offset, data in channel.entries]
    state = State()
    rows = Worker(state, begin).run(arrivals[head : head + 1])
    rows += Worker(state, tmp_path / "none").run(arrivals[head + 1 :])
    assert ["accepted", "accepted"] == [row.verdict for row in rows if row.table == Table.RECORDS]
