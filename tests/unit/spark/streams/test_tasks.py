"""Test the folds in tasks without a JVM: their state is always that after the last batch, whichever
worker a task goes to.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import partial

import pytest

from equipoise.channel.core.errors import LogUnavailable, OperatorError, PeerError
from equipoise.spark_jobs.sequence.rows import LASTING, Arrival, Emitted
from equipoise.spark_jobs.sequence.sequence import RowSequence
from equipoise.spark_jobs.streams import tasks
from equipoise.spark_jobs.streams.tasks import Tasks, spark_work
from tests.channels.walk import Walk
from tests.spark.spark_host import fake_context

BATCH = 25


def sequence_of(_number: int) -> RowSequence:
    return RowSequence()


def emitted(sequence: RowSequence, batch: Many[Arrival]) -> list[Emitted]:
    """The rows of entries. A restored sequence also tells again what lasts."""
    return [row for row in sequence.feed(batch) if row.ordinal != LASTING]


def folds() -> Tasks[RowSequence, list[Emitted]]:
    """One fold, at the beginning of a log."""
    made = Tasks(fake_context(), "test", count=1, make=sequence_of, feed=emitted)
    made.restore(state_of(RowSequence()))
    return made


def state_of(fold: RowSequence | Tasks[RowSequence, list[Emitted]]) -> dict[str, bytes]:
    return {key: data for key, data in fold.changed_rows() if data is not None}


def batches(seed: int) -> list[list[Arrival]]:
    """The batches of a walk."""
    walk = Walk(seed)
    steps = [walk.step() for _ in range(6 * BATCH)]
    arrivals = [Arrival("channel", offset, 1_000 * offset, data) for offset, data in steps]
    return [arrivals[first : first + BATCH] for first in range(0, len(arrivals), BATCH)]


def test_a_batch_may_go_to_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have no fold, or an outdated one."""
    parts, found = batches(3), folds()
    rows: list[Emitted] = []
    workers: list[dict[int, tuple[str, int, RowSequence]]] = [{}, {}]
    for place, part in enumerate(parts):
        monkeypatch.setattr(tasks, "_kept", workers[place // 2 % 2])
        rows += found.feed(part)[0]
    expected = RowSequence()
    assert [row for part in parts for row in emitted(expected, part)] == rows
    # The changed rows of all batches are the state of the last one.
    assert state_of(expected).items() <= {**state_of(RowSequence()), **state_of(found)}.items()


def test_a_failed_attempt_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark repeats the task in the same worker."""
    parts, found = batches(2), folds()
    fails = iter([False, True, False, False])

    def failing(sequence: RowSequence, batch: Many[Arrival]) -> list[Emitted]:
        if next(fails):
            emitted(sequence, batch[: BATCH // 2])
            raise LogUnavailable(log="x", problem="busy", in_doubt=False)
        return emitted(sequence, batch)

    monkeypatch.setitem(found._work.keywords, "feed", failing)  # noqa: SLF001 - as it goes to tasks
    rows = found.feed(parts[0])[0]
    with pytest.raises(LogUnavailable):
        found.feed(parts[1])
    rows += found.feed(parts[1])[0]
    expected = RowSequence()
    assert [row for part in parts[:2] for row in emitted(expected, part)] == rows


def test_a_failure_of_spark_names_its_cause() -> None:
    """The class of an error of ours decides whether it may pass."""

    def failing(text: str) -> None:
        raise RuntimeError(text)

    away = "equipoise.channel.core.errors.LogUnavailable: the log x is unavailable"
    for text, kind, named in (
        (f"Traceback:\n{away}\n", PeerError, "failed: the log x is unavailable; fix that"),
        ("KeyError: 'owner'", OperatorError, "failed: KeyError: 'owner'; fix that"),
    ):
        with pytest.raises(kind, match=f"the Spark job test {named}"):
            spark_work(fake_context(), "test", partial(failing, text))

    def gone() -> None:
        raise ConnectionResetError("reset by peer")

    with pytest.raises(OperatorError, match=r"Java process is gone: .*SPARK_DRIVER_MEMORY=4g"):
        spark_work(fake_context(), "test", gone)
