"""Fold batches in tasks of Spark that keep their state from batch to batch.

The driver reads the log and keeps the state, as a job without Spark does. So a task needs no folder
that is shared, and after a failure it continues on any worker.

1. For each batch there is a Spark job with a task for each fold. It gets the batch as a broadcast.
2. A worker's process keeps its folds. A process without the fold, or with an outdated one, says so,
   and the task is repeated with the state as a second broadcast.
3. Each fold has Python processes of its own, because Spark gives a task any process that is free.
   So on one machine it is always the one that has the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError

from equipoise.channel.core.errors import EquipoiseError, OperatorError, PeerError
from equipoise.spark_jobs.rules.memory import StateRow, put_rows
from equipoise.spark_jobs.sequence.rows import Arrival
from equipoise.spark_jobs.streams.causes import cause_of
from equipoise.spark_jobs.streams.interrupts import Result, interruptible
from equipoise.spark_jobs.streams.session import MEMORY_VARIABLE, driver_memory

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

_FOLD_VARIABLE: Final = "EQUIPOISE_FOLD"
"""A variable of the processes of a fold. Spark starts others for each environment."""


def spark_work(
    context: SparkContext,
    job: str,
    work: Callable[[], Result],
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> Result:
    """Return the result of `work`, which calls into Spark. See `interruptible`.

    Raise our own errors of `work`. If Spark fails, raise `PeerError` for a cause that may pass,
    else `OperatorError`.
    """
    done = interruptible(work, cancel=context.cancelAllJobs, meanwhile=meanwhile)
    failure = done.exception()
    if failure is None or isinstance(failure, EquipoiseError) or not isinstance(failure, Exception):
        return done.result()
    if isinstance(failure, (Py4JError, ConnectionError)) and not isinstance(failure, Py4JJavaError):
        raise OperatorError(
            f"the Spark job {job} stopped because Spark's Java process is gone: {failure}; if it"
            f" was short of memory, give it more than its {driver_memory()}, for example by"
            f" {MEMORY_VARIABLE}=4g in the environment, and start the job again"
        ) from failure
    cause = cause_of(str(failure))
    kind = PeerError if cause.passes else OperatorError
    raise kind(
        f"the Spark job {job} failed: {cause.text}; fix that, and start the job again"
    ) from failure


class Fold(Protocol):
    """What a task keeps from batch to batch."""

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        ...

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Continue from the state in these rows."""
        ...


AnyFold = TypeVar("AnyFold", bound=Fold)
Made = TypeVar("Made")
Done = tuple[Made, list[StateRow]]

_kept: dict[int, tuple[str, int, Any]] = {}
"""The folds of this process by number, each with its run and the number of the next batch."""


class Tasks(Generic[AnyFold, Made]):
    """Folds number 0 to below `count` in tasks of Spark. `make` makes each, and `feed` feeds it a
    batch; what that returns is pickled.
    """

    def __init__(
        self,
        context: SparkContext,
        job: str,
        *,
        count: int,
        make: Callable[[int], AnyFold],
        feed: Callable[[AnyFold, Sequence[Arrival]], Made],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `meanwhile` regularly while tasks run."""
        self._context = context
        self._job = job
        self._count = count
        self._work = partial(_work, run=uuid4().hex, make=make, feed=feed)
        self._meanwhile = meanwhile
        self._batches = 0
        self._rows: dict[str, bytes] = {}
        self._changed: dict[str, bytes | None] = {}

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Begin with this state."""
        self._rows = dict(rows)

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        changed, self._changed = self._changed, {}
        return list(changed.items())

    def feed(self, batch: Sequence[Arrival]) -> list[Made]:
        """Return what each fold made of a batch, in order.

        Raises as `spark_work`. Then discard this object.
        """
        return spark_work(
            self._context, self._job, partial(self._feed, batch), meanwhile=self._meanwhile
        )

    def _feed(self, batch: Sequence[Arrival]) -> list[Made]:
        numbers = range(self._count)
        sent = self._context.broadcast(batch)
        done = self._in_tasks(numbers, sent, None) if self._batches else {}
        late = [number for number in numbers if number not in done]
        if late:
            state = self._context.broadcast(self._rows)
            done |= self._in_tasks(late, sent, state)
            state.destroy()
        sent.destroy()
        self._batches += 1
        for _, changed in done.values():
            put_rows(self._rows, changed)
            self._changed.update(changed)
        return [done[number][0] for number in numbers]

    def _in_tasks(
        self,
        numbers: Iterable[int],
        batch: Broadcast[Sequence[Arrival]],
        state: Broadcast[dict[str, bytes]] | None,
    ) -> dict[int, Done[Made]]:
        """Return the results of the folds that had their state."""
        tasks = []
        for number in numbers:
            self._context.environment[_FOLD_VARIABLE] = str(number)
            work = partial(self._work, batches=self._batches, batch=batch, state=state)
            task = self._context.parallelize([number], 1).mapPartitions(work)
            task.id()  # From here on it has this environment.
            tasks.append(task)
        return dict(self._context.union(tasks).collect())


def _work(
    numbers: Iterable[int],
    *,
    run: str,
    make: Callable[[int], AnyFold],
    feed: Callable[[AnyFold, Sequence[Arrival]], Made],
    batches: int,
    batch: Broadcast[Sequence[Arrival]],
    state: Broadcast[dict[str, bytes]] | None,
) -> Iterator[tuple[int, Done[Made]]]:
    """Do a task in a worker. Yield nothing if the state is missing."""
    for number in numbers:
        # Removed, because a failed attempt leaves it in an unusable state.
        kept_run, kept_batches, fold = _kept.pop(number, ("", 0, None))
        if fold is None or (kept_run, kept_batches) != (run, batches):
            if state is None:
                return
            fold = make(number)
            fold.restore(state.value)
        made = feed(fold, batch.value)
        changed = fold.changed_rows()
        _kept[number] = (run, batches + 1, fold)
        yield number, (made, changed)
