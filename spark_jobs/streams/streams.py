"""Run a stream from its start to its end: checkpoint, batches, restarts after failures, Ctrl-C.

This is what all streaming jobs share. `spark_jobs.streams.progress` prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from equipoise.channel.core.errors import EquipoiseError, OperatorError, PeerError
from equipoise.spark_jobs.streams.causes import Cause, cause_of, cause_of_error
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.progress import Watch, batch_done
from equipoise.spark_jobs.streams.session import MEMORY_VARIABLE, driver_memory

ATTEMPTS_MAX: Final = 3
"""Starts of a stream without a finished batch in between, for a failure that is not expected to
pass."""

AWAY_MAX_S: Final = 900
"""How long a stream waits without a finished batch for its source or destination: longer than Kafka
takes to restart."""

WORKERS_MAX_S: Final = 180
"""The same for Spark's Python workers. A machine is too busy for them for minutes at most; an unfit
interpreter never starts."""

_PAUSES_S: Final = (1, 2, 4, 8, 15)
"""Pauses before restarts; the last one repeats. A start takes some seconds more."""

_GONE: Final = (Py4JError, ConnectionError)
"""What a call into Spark's Java process raises after that process has ended."""

_POLL_S: Final = 0.25  # Refresh interval of the terminal, short enough for the eye.

_POLLING_DELAY: Final = "100ms"
"""How often Spark polls a source that had nothing: ten times a second instead of Spark's
hundred."""

_STOP_MAX: Final = "30s"
"""How long a stopped stream may take to finish the current batch. By default Spark waits for
ever."""

_BATCHES_RETAINED: Final = "20"
"""Batches that Spark keeps in a checkpoint (default 100). A restart goes back by one at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One streaming query.

    * `frame`: makes a new frame for each start.
    * `take`: gets the number and rows of each batch. After a failure it may get the same batch
      again, and must have the same effect.
    * `to_end`: end after the entries that the sources held at the start.
    """

    job: str
    checkpoint: Path
    to_end: bool
    frame: Callable[[], DataFrame]
    take: Callable[[int, pa.Table], None]


def run_stream(spark: SparkSession, stream: Stream, watch: Watch) -> None:
    """Run `stream` to its end, or without `to_end` until an interrupt, which raises
    `KeyboardInterrupt`.

    After a failure, report it and restart the stream from its checkpoint. Raise:

    * `PeerError` if the source or the output was unavailable for `AWAY_MAX_S`, or Spark's workers
      did not start for `WORKERS_MAX_S`;
    * `OperatorError` if the stream fails `ATTEMPTS_MAX` times at one batch, or Spark's Java process
      ended;
    * any other `EquipoiseError` of `Stream.take` at once.
    """
    with delayed_interrupts() as check:
        spark.conf.set("spark.sql.streaming.pollingDelay", _POLLING_DELAY)
        spark.conf.set("spark.sql.streaming.minBatchesToRetain", _BATCHES_RETAINED)
        spark.conf.set("spark.sql.streaming.stopTimeout", _STOP_MAX)
        _until_it_ends(stream, watch, check)


def _until_it_ends(stream: Stream, watch: Watch, check: Callable[[], None]) -> None:
    failures, batches, since_s = 0, 0, time.monotonic()
    while True:
        run = _Run(stream, watch)
        cause = run.to_its_end(check)
        if cause is None:
            return
        if watch.batches > batches or run.has_waited:
            failures, batches = 0, watch.batches
        if not failures:
            since_s = time.monotonic()
        failures += 1
        waited_s = int(time.monotonic() - since_s)
        if cause.passes and waited_s > (
            WORKERS_MAX_S if cause.missing == "workers" else AWAY_MAX_S
        ):
            raise _gave_up(stream.job, cause, waited_s)
        if not cause.passes and failures >= ATTEMPTS_MAX:
            raise OperatorError(
                f"the {stream.job} cannot continue: {cause.text}; see {_details(stream)}, fix the"
                " cause, and start it again: it continues where it stopped"
            )
        pause_s = _PAUSES_S[min(failures, len(_PAUSES_S)) - 1]
        watch.note(f"the stream failed; restarting it in {pause_s} s: {cause.text}")
        watch.restarted()
        _sleep(pause_s, check)


def _gave_up(job: str, cause: Cause, waited_s: int) -> PeerError:
    if cause.missing == "source":
        what = (
            f"the {job} has waited {waited_s} s for its log: {cause.text}; start it again when the"
            " log is back"
        )
    else:
        what = (
            f"the {job} gives up after {waited_s} s: {cause.text}; start it again once that is"
            " fixed"
        )
    return PeerError(f"{what}: it continues where it stopped")


def _sleep(seconds: float, check: Callable[[], None]) -> None:
    for _ in range(round(seconds / _POLL_S)):
        time.sleep(_POLL_S)
        check()


def _details(stream: Stream) -> Path:
    return stream.checkpoint.with_name(f"{stream.job}-failure.txt")


class Follower:
    """Report each batch of one start of a query to a `Watch`, by polling: Spark may call a listener
    after the end.
    """

    def __init__(self, query: StreamingQuery, watch: Watch) -> None:
        self._query = query
        self._watch = watch
        self._reported = -1
        self._looked_at: str | None = None
        self.has_waited = False
        """Whether the sources have had nothing new for some seconds."""

    def follow(self) -> None:
        """Report the batches that ended since the last call; Spark keeps the last 100. Raise
        Spark's error if the query failed.
        """
        last = self._query.lastProgress
        if last is None or last.timestamp == self._looked_at:
            return
        self._looked_at = last.timestamp
        for progress in self._query.recentProgress:
            if "addBatch" not in progress.durationMs:
                # Without new entries Spark sometimes reports the next batch, which has not run.
                self.has_waited = True
            elif progress.batchId > self._reported:
                self._reported = progress.batchId
                self._watch.batch(batch_done(progress.json))


class _Run:
    """One start of a stream. `has_waited`: its sources answered that they had nothing new."""

    def __init__(self, stream: Stream, watch: Watch) -> None:
        self._stream = stream
        self._watch = watch
        self._raised: Exception | None = None
        self.has_waited = False

    def to_its_end(self, check: Callable[[], None]) -> Cause | None:
        """Start the stream and wait. Return why it failed, or None. Raise errors that cannot pass,
        and those of `check`.
        """
        query: StreamingQuery | None = None
        try:
            query = self._started()
            follower = Follower(query, self._watch)
            while query.isActive:
                _sleep(_POLL_S, check)
                follower.follow()
                self.has_waited = follower.has_waited
                self._watch.show()
            follower.follow()
            query.awaitTermination()
        except EquipoiseError as error:
            if not isinstance(error, PeerError):
                raise
            return cause_of_error(error)
        except (PySparkException, Py4JJavaError) as error:
            return self._cause(error)
        except _GONE as error:
            problem = cause_of_error(error).text
            raise OperatorError(
                f"the {self._stream.job} stopped because Spark's Java process is gone: {problem};"
                f" if it was short of memory, give it more than its {driver_memory()}, for example"
                f" by {MEMORY_VARIABLE}=4g in the environment, and start the job again: it"
                " continues where it stopped"
            ) from error
        finally:
            # Before anything else: a batch that is running when the interpreter ends makes it
            # abort.
            if query is not None:
                with suppress(PySparkException, *_GONE):  # The end of this process stops it too.
                    query.stop()
            self._watch.show()
        return None

    def _started(self) -> StreamingQuery:
        writer = (
            self._stream.frame().writeStream.foreachBatch(self._take).queryName(self._stream.job)
        )
        writer = writer.option(
            "checkpointLocation", str(self._stream.checkpoint.absolute())
        ).outputMode("append")
        trigger = (
            writer.trigger(availableNow=True)
            if self._stream.to_end
            else writer.trigger(processingTime="0 seconds")
        )
        return trigger.start()

    def _take(self, frame: DataFrame, number: int) -> None:
        try:
            self._stream.take(number, frame.toArrow())
        except Exception as error:
            # Spark turns the error into text, but its class shows who must act.
            self._raised = error
            raise

    def _cause(self, error: Exception) -> Cause:
        # A full disk may be the cause of the failure; the code below reports that.
        with suppress(OSError):
            _details(self._stream).write_text(str(error), encoding="utf-8")
        raised = self._raised
        if not isinstance(raised, EquipoiseError):
            return cause_of(str(error))
        if not isinstance(raised, PeerError):
            raise raised
        return cause_of_error(raised, missing="output")
