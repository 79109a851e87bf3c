"""Show the progress of a job: lines on the terminal, a live line, and `/metrics`."""

from __future__ import annotations

import sys
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from equipoise.channel.core.errors import CallerError
from equipoise.spark_jobs.streams.options import Screen

AWAY_MS: Final = 10_000
"""How long a log may be away before a message."""

SILENCE_MS: Final = 30_000
"""Time without an entry before a message although the log answers: brokers renew every few seconds.
"""

REMIND_MS: Final = 60_000
"""Interval of reminders that the log is away. New problems do not shorten it: Kafka words one
outage in many ways."""


class Silence:
    """What is known of the log `name` since its last entry. Times are milliseconds of one monotonic
    clock.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        """`now_ms` is the start of the job."""
        self._name = name
        self._entry_ms = self._there_ms = now_ms
        self._outage_reported_ms: int | None = None
        self._is_quiet_reported = False

    @property
    def missed_since_ms(self) -> int | None:
        """Since when the log has been away, once that was reported; else None."""
        return None if self._outage_reported_ms is None else self._there_ms

    def away(self, now_ms: int, problem: str) -> Iterator[str]:
        """Record that the log does not answer, and yield messages."""
        reported_ms, missed_ms = self._outage_reported_ms, now_ms - self._there_ms
        if missed_ms >= AWAY_MS if reported_ms is None else now_ms - reported_ms >= REMIND_MS:
            self._outage_reported_ms = now_ms
            yield (
                f"{self._name} is unavailable, and nothing has come from it for"
                f" {missed_ms // 1_000} s: {problem}; waiting"
            )

    def answered(self, now_ms: int, *, is_new: bool) -> Iterator[str]:
        """Record that the log answers, with entries (`is_new`) or without, and yield messages."""
        if self._outage_reported_ms is not None:
            missed_s = (now_ms - self._there_ms) // 1_000
            yield f"{self._name} is available again; nothing came from it for {missed_s} s"
        self._there_ms, self._outage_reported_ms = now_ms, None
        if is_new:
            self._entry_ms, self._is_quiet_reported = now_ms, False
        elif now_ms - self._entry_ms >= SILENCE_MS and not self._is_quiet_reported:
            self._is_quiet_reported = True
            yield (
                f"nothing has come from {self._name} for {(now_ms - self._entry_ms) // 1_000} s,"
                " although it answers: it has no new entries; waiting"
            )


WINDOW_MS: Final = 10_000
"""Window of the reported rate: some ten batches."""

_BATCHES_MAX: Final = 1_000  # Enough for a full window of 10 ms batches; none is shorter.

_BATCHES_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """One finished batch.

    * `rows`: entries taken from the sources.
    * `behind`: entries that the channel held beyond the batch. None if unknown.
    * `state_rows`, `state_bytes`: what is remembered after the batch.
    """

    batch: int
    rows: int
    took_ms: int
    behind: int | None
    state_rows: int = 0
    state_bytes: int = 0


def progress_line(
    done: BatchDone, *, rows_per_second: float, found: int | None, missed_ms: int | None = None
) -> str:
    """Return one line about a stream after `done`. `found` is its number of findings, None if it
    makes none.

    * `rows_per_second`: the rate over the last window.
    * `missed_ms`: how long the log has not answered; None if it answers. Only an answering log
      shows how far behind the stream is.
    """
    parts = [f"{rows_per_second:,.0f} rows/s"]
    if missed_ms is not None:
        parts.append(f"the log does not answer, nothing for {missed_ms // 1_000} s")
    elif done.behind is not None:
        parts.append(f"{done.behind:,} behind")
    parts += [
        f"batch {done.batch} in {done.took_ms / 1_000:.1f} s",
        f"state {done.state_rows:,} rows, {decimal(done.state_bytes)}",
    ]
    if found is not None:
        parts.append("1 finding" if found == 1 else f"{found:,} findings")
    return " · ".join(parts)


class Rate:
    """Rows per second over a window. A single batch means little, since rows come in bursts."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int]] = deque(maxlen=_BATCHES_MAX)

    def add(self, now_ms: int, rows: int) -> None:
        """Count rows taken up to `now_ms`, a monotonic time."""
        self._batches.append((now_ms, rows))

    def per_second(self, now_ms: int) -> float:
        """Return the rate of all batches after the oldest in the window."""
        # Keep two batches of any age: a stream with long batches is slow, not stopped.
        while len(self._batches) > _BATCHES_MIN and self._batches[0][0] < now_ms - WINDOW_MS:
            self._batches.popleft()
        if not self._batches:
            return 0.0
        rows = sum(rows for _, rows in self._batches) - self._batches[0][1]
        return 1_000 * rows / max(1, now_ms - self._batches[0][0])


NOTE_MS: Final = 10_000
"""How often to print a progress line where there is no live line, such as in a log file."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


_GAUGES: Final[Mapping[str, str]] = {
    "rows_per_second": "Entries it takes a second, over the last ten seconds.",
    "entries_behind": "Entries that its sources hold and it has not taken yet.",
    "batch_seconds": "How long the last batch took.",
    "state_rows": "Rows in the state of its operators.",
    "state_bytes": "The memory that this state takes.",
    "quiet_seconds": "The time since the last batch ended.",
    "log_missed_seconds": (
        "How long nothing has come from its log, which does not answer; 0 while it does."
    ),
    "audited_offset": "The offset up to which the audit has checked all records.",
    "log_end_offset": "The last offset of the log, at that time.",
}
_COUNTERS: Final[Mapping[str, str]] = {
    "rows_total": "Entries that this job has taken from its sources since its start.",
    "batches_total": "Batches that it has finished since its start.",
    "restarts_total": "How often a batch failed and was repeated.",
}
_OF_AUDITS: Final = ("audited_offset", "log_end_offset")


class StreamMetrics:
    """The Prometheus metrics of `job`, in their own registry, with names that begin with
    `equipoise_JOB_`.

    `docs/reference/metrics.md` describes each one.
    """

    def __init__(self, job: str, *, rules: Collection[str] = ()) -> None:
        """`rules` are the names of what the job may find."""
        self.registry = CollectorRegistry()
        self._ended_ms = _now_ms()
        self._missed_since_ms: int | None = None
        prefix = f"equipoise_{job}_"
        self._gauges = {
            name: Gauge(prefix + name, text, registry=self.registry)
            for name, text in _GAUGES.items()
            if rules or name not in _OF_AUDITS
        }
        self._counters = {
            name: Counter(prefix + name, text, registry=self.registry)
            for name, text in _COUNTERS.items()
        }
        self._gauges["quiet_seconds"].set_function(lambda: _seconds_since(self._ended_ms))
        self._gauges["log_missed_seconds"].set_function(
            lambda: _seconds_since(self._missed_since_ms)
        )
        text = "What it has found since its start."
        self._findings = Counter(f"{prefix}findings_total", text, ["rule"], registry=self.registry)
        for rule in rules:
            # From 0: a series that appears with its first event has no rate.
            self._findings.labels(rule)

    def batch(self, done: BatchDone, *, rows_per_second: float) -> None:
        """Count a finished batch."""
        self._ended_ms = _now_ms()
        self._counters["rows_total"].inc(done.rows)
        self._counters["batches_total"].inc()
        found = {
            "rows_per_second": rows_per_second,
            "entries_behind": done.behind,
            "batch_seconds": done.took_ms / 1_000,
            "state_rows": done.state_rows,
            "state_bytes": done.state_bytes,
        }
        for name, value in found.items():
            if value is not None:  # Else keep the last known value.
                self._gauges[name].set(value)

    def found(self, rule: str, count: int) -> None:
        """Count findings of one rule."""
        self._findings.labels(rule).inc(count)

    def reached(self, *, audited: int, end: int) -> None:
        """Set how far an audit has come."""
        for name, value in zip(_OF_AUDITS, (audited, end), strict=True):
            self._gauges[name].set(value)

    def missed(self, since_ms: int | None) -> None:
        """Set since when the log has not answered; None if it answers."""
        self._missed_since_ms = since_ms

    def repeated(self) -> None:
        """Count a batch that failed and is repeated."""
        self._counters["restarts_total"].inc()


def _seconds_since(at_ms: int | None) -> float:
    return 0 if at_ms is None else (_now_ms() - at_ms) / 1_000


class Watch:
    """Show the progress of `job`, on the one thread that runs it."""

    def __init__(
        self, job: str, screen: Screen, *, log: str, metrics: StreamMetrics, finds: bool = False
    ) -> None:
        """`log` is the name of its log. `finds` means that this job makes findings and shows their
        number.
        """
        self.job = job
        self.rows = self.batches = 0
        self._screen = screen
        self._metrics = metrics
        self._found: Tally[str] | None = Tally() if finds else None
        self._rate = Rate()
        self._last: BatchDone | None = None
        self._batch_ms = self._noted_ms = _now_ms()
        self._rate.add(self._batch_ms, 0)
        self._silence = Silence(log, self._batch_ms)
        self._live = (
            Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            if screen.is_live
            else None
        )

    @property
    def findings(self) -> Tally[str]:
        """How many findings each rule has."""
        return Tally() if self._found is None else Tally(self._found)

    def batch(self, done: BatchDone) -> None:
        """Count a finished batch, and show the progress."""
        now_ms = _now_ms()
        self._last, self._batch_ms = done, now_ms
        self.batches += 1
        self.rows += done.rows
        self._rate.add(now_ms, done.rows)
        self._metrics.batch(done, rows_per_second=self._rate.per_second(now_ms))
        self.show()

    def away(self, problem: str) -> None:
        """Note that the log does not answer."""
        self._hear(self._silence.away(_now_ms(), problem))

    def answered(self, *, is_new: bool) -> None:
        """Note that the log answers, with entries (`is_new`) or without."""
        self._hear(self._silence.answered(_now_ms(), is_new=is_new))

    def _hear(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.note(line)
        self._metrics.missed(self._silence.missed_since_ms)
        self.show()

    def say(self, line: str) -> None:
        """Print a line that was asked for."""
        self.close()
        self._screen.result(line)

    def note(self, line: str) -> None:
        """Print a progress line."""
        self.close()
        self._screen.note(line)

    def found(self, rule: str, count: int) -> None:
        """Count findings of one rule."""
        self._metrics.found(rule, count)
        if self._found is not None:
            self._found[rule] += count

    def reached(self, *, audited: int, end: int) -> None:
        """Show in the metrics how far an audit has come."""
        self._metrics.reached(audited=audited, end=end)

    def repeated(self) -> None:
        """Count a batch that failed and is repeated."""
        self._metrics.repeated()

    def show(self) -> None:
        """Show the progress."""
        if self._last is None:
            return
        now_ms, missed_since_ms = _now_ms(), self._silence.missed_since_ms
        line = progress_line(
            self._last,
            rows_per_second=self._rate.per_second(now_ms),
            found=None if self._found is None else self._found.total(),
            missed_ms=None if missed_since_ms is None else now_ms - missed_since_ms,
        )
        if self._live is not None:
            self._live.start()
            self._live.update(
                Text(f"{self.job}  {line}", no_wrap=True, overflow="ellipsis"), refresh=True
            )
        elif now_ms - self._noted_ms > NOTE_MS and self._batch_ms > self._noted_ms:
            self._noted_ms = now_ms
            self._screen.note(line)

    def close(self) -> None:
        """Remove the live line."""
        if self._live is not None and self._live.is_started:
            sys.stderr.flush()
            self._live.stop()


@contextmanager
def watching(
    job: str,
    screen: Screen,
    *,
    log: str,
    metrics_port: int | None = None,
    rules: Collection[str] = (),
) -> Iterator[Watch]:
    """Yield a `Watch` of `job`, which reads the log named `log` and makes findings of `rules`.

    With `metrics_port`, serve `/metrics` on that port during the block.

    Raise `CallerError` if that port cannot be opened.
    """
    metrics = StreamMetrics(job, rules=rules)
    watch = Watch(job, screen, log=log, metrics=metrics, finds=bool(rules))
    with ExitStack() as stack:
        stack.callback(watch.close)
        if metrics_port is not None:
            try:
                server, thread = start_http_server(metrics_port, registry=metrics.registry)
            except OSError as error:
                problem = error.strerror or str(error)
                raise CallerError(
                    f"cannot serve metrics at port {metrics_port}: {problem}; name another port"
                    " with --metrics-port"
                ) from error
            for end in (thread.join, server.server_close, server.shutdown):
                stack.callback(end)
        yield watch
