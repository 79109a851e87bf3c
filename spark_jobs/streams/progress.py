"""Show the progress of a running stream: lines on the terminal, a live line, and `/metrics`.

Findings arrive on a thread of Spark. Only the thread that calls `Watch.show` prints, so that lines
do not mix.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Self, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.text import Text

from equipoise.channel.core.errors import CallerError
from equipoise.spark_jobs.streams.batch_report import BatchDone, Rate, batch_done, progress_line
from equipoise.spark_jobs.streams.options import Screen
from equipoise.spark_jobs.streams.silence import Seen, Silence, look

NOTE_MS: Final = 10_000
"""How often to print a progress line where there is no live line, such as in a log file."""

_Item = TypeVar("_Item")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class StreamMetrics:
    """The Prometheus metrics of `job`, in their own registry, with names that begin with
    `spark_JOB_`.

    `docs/reference/metrics.md` describes each one.
    """

    def __init__(self, job: str, *, rules: Iterable[str] = ()) -> None:
        """`rules` are the names of what the job may find."""
        self.registry = CollectorRegistry()
        self._ended_ms = _now_ms()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"spark_{job}_{name}", text, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"spark_{job}_{name}", text, labels, registry=self.registry)

        self._rows = counter(
            "rows_total", "Entries that this job has taken from its sources since its start."
        )
        self._batches = counter("batches_total", "Batches that it has finished since its start.")
        self._rate = gauge(
            "rows_per_second", "Entries it takes a second, over the last ten seconds."
        )
        self._behind = gauge(
            "entries_behind", "Entries that its sources hold and it has not taken yet."
        )
        self._batch = gauge("batch_seconds", "How long the last batch took.")
        self._state_rows = gauge("state_rows", "Rows in the state of its operators.")
        self._state_bytes = gauge("state_bytes", "The memory that this state takes.")
        quiet = gauge("quiet_seconds", "The time since the last batch ended.")
        quiet.set_function(lambda: (_now_ms() - self._ended_ms) / 1_000)
        self._missed_since_ms: int | None = None
        missed = gauge(
            "log_missed_seconds",
            "How long nothing has come from its log, which does not answer; 0 while it does.",
        )
        missed.set_function(
            lambda: (
                0 if self._missed_since_ms is None else (_now_ms() - self._missed_since_ms) / 1_000
            )
        )
        self._restarts = counter(
            "restarts_total", "How often its stream failed and was started again."
        )
        self._findings = counter("findings_total", "What it has found since its start.", "rule")
        for rule in rules:
            # From 0: a series that appears with its first event has no rate.
            self._findings.labels(rule)

    def batch(self, done: BatchDone, *, rows_per_second: float) -> None:
        """Count a finished batch."""
        self._ended_ms = _now_ms()
        self._rows.inc(done.rows)
        self._batches.inc()
        self._rate.set(rows_per_second)
        if done.behind is not None:  # Else keep the last known value.
            self._behind.set(done.behind)
        self._batch.set(done.took_ms / 1_000)
        self._state_rows.set(done.state_rows)
        self._state_bytes.set(done.state_bytes)

    def found(self, rule: str, count: int) -> None:
        """Count findings of one rule."""
        self._findings.labels(rule).inc(count)

    def missed(self, since_ms: int | None) -> None:
        """Set since when the log has not answered; None if it answers."""
        self._missed_since_ms = since_ms

    def restarted(self) -> None:
        """Count a restart of the stream."""
        self._restarts.inc()


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The log that a stream reads: its name, and a function that checks whether it is available,
    which may take a while.
    """

    name: str
    look: Callable[[], Seen]

    @classmethod
    def at(cls, name: str, url: str) -> Self:
        """Return the log at a URL, which each check opens."""
        return cls(name, partial(look, url))


class Watch:
    """Show the progress of the stream `job`.

    `say`, `remark`, `found` and `batch` may run on any thread, all other methods on one thread
    only.
    """

    def __init__(
        self,
        job: str,
        screen: Screen,
        *,
        metrics: StreamMetrics,
        log: LookedAt | None = None,
        finds: bool = False,
    ) -> None:
        """`finds` means that this job makes findings and shows their number. Without `log`, no
        availability check runs.
        """
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
        self._live = (
            Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            if screen.is_live
            else None
        )

    @property
    def batches(self) -> int:
        """How many finished batches have been shown."""
        return self._batches

    @property
    def findings(self) -> Tally[str]:
        """How many findings each rule has."""
        return Tally() if self._found is None else Tally(self._found)

    def batch(self, done: BatchDone) -> None:
        """Queue a finished batch."""
        self._waiting.put(done)

    def say(self, line: str) -> None:
        """Queue a line that was asked for."""
        self._waiting.put(partial(self._beside, self._screen.result, line))

    def remark(self, line: str) -> None:
        """Queue a progress line."""
        self._waiting.put(partial(self.note, line))

    def found(self, rule: str, count: int) -> None:
        """Count findings of one rule."""
        self._metrics.found(rule, count)
        if self._found is not None:
            self._found[rule] += count

    def restarted(self) -> None:
        """Count a restart of the stream."""
        self._metrics.restarted()

    def note(self, line: str) -> None:
        """Print a progress line now. Other threads call `remark`."""
        self._beside(self._screen.note, line)

    def idle(self) -> None:
        """Record that Spark found nothing new in its sources."""
        self._waiting.put(lambda: self._silence.idle(_now_ms()))

    def show(self) -> None:
        """Print queued lines and the progress."""
        self._print()
        self._report()

    def _print(self) -> None:
        for waiting in _taken(self._waiting):
            if isinstance(waiting, BatchDone):
                self._take(waiting)
            elif isinstance(waiting, Seen):
                self._note_all(self._silence.seen(_now_ms(), waiting))
            else:
                waiting()

    def close(self) -> None:
        """Print queued lines, and remove the live line."""
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

    def _report(self) -> None:
        now_ms = _now_ms()
        if self._log is not None and self._silence.wants_look(now_ms):
            # On a thread, because a check of an unavailable log takes as long as its client waits.
            # Only one runs at a time.
            threading.Thread(target=self._look, name="log-look", daemon=True).start()
        self._note_all(self._silence.wait(now_ms))
        missed_since_ms = self._silence.missed_since_ms
        self._metrics.missed(missed_since_ms)
        if self._last is None:
            return
        found = None if self._found is None else self._found.total()
        missed_ms = None if missed_since_ms is None else now_ms - missed_since_ms
        line = progress_line(
            self._last,
            rows_per_second=self._rate.per_second(now_ms),
            found=found,
            missed_ms=missed_ms,
        )
        if self._live is not None:
            self._live.start()
            self._live.update(
                Text(f"{self.job}  {line}", no_wrap=True, overflow="ellipsis"), refresh=True
            )
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
    """Yield what is in the queue now. Items added meanwhile wait for the next call."""
    for _ in range(queue.qsize()):
        try:
            yield queue.get_nowait()
        except Empty:
            return


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
        if "addBatch" not in last.durationMs:
            self._watch.idle()


@contextmanager
def watching(
    job: str,
    screen: Screen,
    *,
    log: LookedAt | None = None,
    metrics_port: int | None = None,
    rules: Collection[str] = (),
) -> Iterator[Watch]:
    """Yield a `Watch` of the stream `job`, which reads `log` and makes findings of `rules`.

    With `metrics_port`, serve `/metrics` on that port during the block.

    Raise `CallerError` if that port cannot be opened.
    """
    metrics = StreamMetrics(job, rules=rules)
    watch = Watch(job, screen, metrics=metrics, log=log, finds=bool(rules))
    if metrics_port is None:
        try:
            yield watch
        finally:
            watch.close()
        return
    try:
        server, thread = start_http_server(metrics_port, registry=metrics.registry)
    except OSError as error:
        problem = error.strerror or str(error)
        raise CallerError(
            f"cannot serve metrics at port {metrics_port}: {problem}; name another port with"
            " --metrics-port"
        ) from error
    try:
        yield watch
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        watch.close()
