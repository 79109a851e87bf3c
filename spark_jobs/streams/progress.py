"""Whoever looks on while a stream runs: lines on the terminal, a line that is written over, and `/metrics`.

May live here: who asks Spark, who prints, and what Prometheus is told. What the figures are is `spark_jobs.streams.stream_progress`.

Findings come on a thread of Spark's; all that is printed is printed by the one thread that
calls `Watch.show`, so that no two write over one another.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.text import Text

from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.silence import Seen, Silence
from equipoise.spark_jobs.streams.stream_errors import MetricsPortTaken
from equipoise.spark_jobs.streams.stream_progress import BatchDone, Rate, batch_done, told

NOTE_MS: Final = 10_000
"""How often a line says how it goes where nobody could see one that is written over, such as in a file of logs."""

_Item = TypeVar("_Item")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class StreamMetrics:
    """What Prometheus is told of the job `job`, in a registry of its own; names begin with `spark_JOB_`.

    `docs/reference/metrics.md` says what each one means.
    """

    def __init__(self, job: str) -> None:
        self.registry = CollectorRegistry()
        self._ended_ms = _now_ms()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"spark_{job}_{name}", text, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"spark_{job}_{name}", text, labels, registry=self.registry)

        self._rows = counter("rows_total", "Entries that this job has taken from its sources since its start.")
        self._batches = counter("batches_total", "Batches that it has finished since its start.")
        self._rate = gauge("rows_per_second", "Entries it takes a second, over the last ten seconds.")
        self._behind = gauge("entries_behind", "Entries that its sources hold and it has not taken yet.")
        self._batch = gauge("batch_seconds", "How long the last batch took.")
        self._state_rows = gauge("state_rows", "Rows in the state of its operators.")
        self._state_bytes = gauge("state_bytes", "The memory that this state takes.")
        quiet = gauge("quiet_seconds", "The time since the last batch ended.")
        quiet.set_function(lambda: (_now_ms() - self._ended_ms) / 1_000)
        self._missed_since_ms: int | None = None
        missed = gauge("log_missed_seconds", "How long nothing has come from its log, which does not answer; 0 while it does.")
        missed.set_function(lambda: 0 if self._missed_since_ms is None else (_now_ms() - self._missed_since_ms) / 1_000)
        self._restarts = counter("restarts_total", "How often its stream failed and was started again.")
        self._findings = counter("findings_total", "What it has found since its start.", "rule")

    def batch(self, done: BatchDone, *, rows_per_second: float) -> None:
        """One batch has ended."""
        self._ended_ms = _now_ms()
        self._rows.inc(done.rows)
        self._batches.inc()
        self._rate.set(rows_per_second)
        if done.behind is not None:  # Else the last that is known is still the best.
            self._behind.set(done.behind)
        self._batch.set(done.took_ms / 1_000)
        self._state_rows.set(done.state_rows)
        self._state_bytes.set(done.state_bytes)

    def found(self, rule: str, count: int) -> None:
        """So many findings of one rule."""
        self._findings.labels(rule).inc(count)

    def missed(self, since_ms: int | None) -> None:
        """Nothing has come since then from the log, which does not answer; None if it does."""
        self._missed_since_ms = since_ms

    def restarted(self) -> None:
        """The stream was started again."""
        self._restarts.inc()


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The log that a stream reads: what it is called, and how to find out whether it is there, which may take a while."""

    name: str
    look: Callable[[], Seen]


class Watch:
    """Who looks on while the stream `job` runs.

    `say`, `remark`, `found` and `batch` may be called on any thread, the others on one alone.
    """

    def __init__(self, job: str, screen: Screen, *, metrics: StreamMetrics, log: LookedAt | None = None, finds: bool = False) -> None:
        """`finds` says whether this job can find anything, and so should tell how much; without `log` nobody looks where it stays."""
        self.job = job
        self.rows = 0
        self._screen = screen
        self._metrics = metrics
        self._found: Tally[str] | None = Tally() if finds else None
        self._waiting: SimpleQueue[BatchDone | Seen | Callable[[], None]] = SimpleQueue()
        self._log = log
        self._rate = Rate()
        self._last: BatchDone | None = None
        self._batches = 0
        self._batch_ms = self._noted_ms = _now_ms()
        self._rate.add(self._batch_ms, 0)
        self._silence = Silence("" if log is None else log.name, self._batch_ms)
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True) if screen.is_live else None

    @property
    def batches(self) -> int:
        """How many batches have ended, as far as they have been shown."""
        return self._batches

    @property
    def findings(self) -> Tally[str]:
        """How often each rule was found broken."""
        return Tally() if self._found is None else Tally(self._found)

    def batch(self, done: BatchDone) -> None:
        """A batch has ended."""
        self._waiting.put(done)

    def say(self, line: str) -> None:
        """A line that was asked for."""
        self._waiting.put(partial(self._beside, self._screen.result, line))

    def remark(self, line: str) -> None:
        """A line that says how it goes."""
        self._waiting.put(partial(self.note, line))

    def found(self, rule: str, count: int) -> None:
        """So many findings of one rule."""
        self._metrics.found(rule, count)
        if self._found is not None:
            self._found[rule] += count

    def restarted(self) -> None:
        """The stream was started again."""
        self._metrics.restarted()

    def note(self, line: str) -> None:
        """Print at once a line that says how it goes; see `remark` for one of another thread."""
        self._beside(self._screen.note, line)

    def idle(self) -> None:
        """Spark has found nothing new in its sources."""
        self._waiting.put(lambda: self._silence.idle(_now_ms()))

    def show(self) -> None:
        """Print what has come since, and how it goes."""
        self._print()
        self._tell()

    def _print(self) -> None:
        for waiting in _taken(self._waiting):
            if isinstance(waiting, BatchDone):
                self._take(waiting)
            elif isinstance(waiting, Seen):
                self._note_all(self._silence.seen(_now_ms(), waiting))
            else:
                waiting()

    def close(self) -> None:
        """Print what is left, and take the line away that is written over."""
        self._print()
        self._aside()

    def _take(self, done: BatchDone) -> None:
        now_ms = _now_ms()
        self._note_all(self._silence.batch(now_ms, began_ms=now_ms - done.took_ms))
        self._last, self._batch_ms = done, now_ms
        self._batches += 1
        self.rows += done.rows
        self._rate.add(now_ms, done.rows)
        self._metrics.batch(done, rows_per_second=self._rate.per_second(now_ms))

    def _note_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.note(line)

    def _look(self) -> None:
        assert self._log is not None, "only a log that is named is looked at"
        self._waiting.put(self._log.look())

    def _tell(self) -> None:
        now_ms = _now_ms()
        if self._log is not None and self._silence.wants_look(now_ms):
            # On a thread, since a look at a log that is away takes as long as its client waits; there is one at a time.
            threading.Thread(target=self._look, name="log-look", daemon=True).start()
        self._note_all(self._silence.wait(now_ms))
        missed_since_ms = self._silence.missed_since_ms
        self._metrics.missed(missed_since_ms)
        if self._last is None:
            return
        found = None if self._found is None else self._found.total()
        missed_ms = None if missed_since_ms is None else now_ms - missed_since_ms
        line = told(self._last, rows_per_second=self._rate.per_second(now_ms), found=found, missed_ms=missed_ms)
        if self._live is not None:
            self._live.start()
            self._live.update(Text(f"{self.job}  {line}", no_wrap=True, overflow="ellipsis"), refresh=True)
        elif now_ms - self._noted_ms > NOTE_MS and self._batch_ms > self._noted_ms:
            self._noted_ms = now_ms
            self._screen.note(line)

    def _beside(self, printed: Callable[[str], None], line: str) -> None:
        self._aside()
        printed(line)

    def _aside(self) -> None:
        if self._live is not None and self._live.is_started:
            sys.stderr.flush()
            self._live.stop()


def _taken(queue: SimpleQueue[_Item]) -> Iterator[_Item]:
    """What is in the queue now; what is put in meanwhile is for the next time."""
    for _ in range(queue.qsize()):
        try:
            yield queue.get_nowait()
        except Empty:
            return


class Follower:
    """Tells a `Watch` of each batch of one start of a query, asked now and again: a listener of Spark's may be told after the end."""

    def __init__(self, query: StreamingQuery, watch: Watch) -> None:
        self._query = query
        self._watch = watch
        self._told = -1
        self._looked_at: str | None = None
        self.has_waited = False
        """Whether its sources have answered that there was nothing, for some seconds on end."""

    def follow(self) -> None:
        """Tell of the batches that have ended since; Spark remembers the last 100. Raises what Spark raises once it has ended itself."""
        last = self._query.lastProgress
        if last is None or last.timestamp == self._looked_at:
            return
        self._looked_at = last.timestamp
        for progress in self._query.recentProgress:
            if "addBatch" not in progress.durationMs:
                # While nothing comes Spark tells of the next batch now and again, which has not been worked on.
                self.has_waited = True
            elif progress.batchId > self._told:
                self._told = progress.batchId
                self._watch.batch(batch_done(progress.json))
        if "addBatch" not in last.durationMs:
            self._watch.idle()


@contextmanager
def watching(
    job: str, screen: Screen, *, log: LookedAt | None = None, metrics_port: int | None = None, finds: bool = False
) -> Iterator[Watch]:
    """A `Watch` on the stream `job`, which reads `log`; with `metrics_port` Prometheus finds it at `/metrics` there while the block runs.

    Raises `MetricsPortTaken`.
    """
    metrics = StreamMetrics(job)
    watch = Watch(job, screen, metrics=metrics, log=log, finds=finds)
    if metrics_port is None:
        try:
            yield watch
        finally:
            watch.close()
        return
    try:
        server, thread = start_http_server(metrics_port, registry=metrics.registry)
    except OSError as error:
        raise MetricsPortTaken(port=metrics_port, problem=error.strerror or str(error)) from error
    try:
        yield watch
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        watch.close()
