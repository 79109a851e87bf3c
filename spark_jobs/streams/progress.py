"""Show the progress of a running stream: lines on the terminal, a live line, and `/metrics`.

Findings arrive on a thread of Spark. Only the thread that calls `Watch.show` prints, so that lines
do not mix.

Spark reports on each batch. While no batch ends, it waits silently, for minutes, for a Kafka or a
file that is unavailable. So the driver checks the log itself.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Self

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from equipoise.channel.core.errors import CallerError, EquipoiseError, LogNotBegun, LogUnavailable
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.streams.options import Screen

LOOK_MS: Final = 10_000
"""Time without a batch before a check of the log, and the interval between checks. A check costs a
connection."""

SILENCE_MS: Final = 30_000
"""Time without a batch before a message although the log answers: brokers renew every few seconds.
"""

REMIND_MS: Final = 60_000
"""Interval of reminders that the log cannot be read. New problems do not shorten it: Kafka words
one outage in many ways."""

_ABSENT: Final = (LogUnavailable, LogNotBegun)


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a check: the problem (None if the log answers), and whether the log is away or
    unreadable.
    """

    problem: str | None = None
    is_away: bool = True


def look(url: str) -> Seen:
    """Check whether the log at `url` answers. This takes as long as opening it: some 10 s for an
    unavailable Kafka.
    """
    try:
        with closing(open_log(url, create=False)) as log:
            log.end()
    except _ABSENT as error:
        return Seen(error.problem)
    except (EquipoiseError, OSError) as error:
        # Any other error: the stream itself reports when it cannot continue.
        return Seen(str(error), is_away=False)
    return Seen()


class Silence:
    """What is known of the log `name` since the last batch. Times are milliseconds of one monotonic
    clock.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        """`now_ms` is the start of the stream."""
        self._name = name
        self._batch_ms = self._there_ms = self._looked_ms = now_ms
        self._outage_reported_ms: int | None = None
        self._is_looking = self._is_quiet_reported = False

    @property
    def missed_since_ms(self) -> int | None:
        """Since when nothing has come from a log that does not answer; None if it answers, as far
        as is known.
        """
        return None if self._outage_reported_ms is None else self._there_ms

    def batch(self, now_ms: int) -> None:
        """Record the end of a batch. It may have begun before an outage, so it does not end one."""
        self._batch_ms, self._is_quiet_reported = now_ms, False
        if self._outage_reported_ms is None:
            self._there_ms = now_ms

    def wants_look(self, now_ms: int) -> bool:
        """Return whether the caller should check the log now and pass the result to `seen`. One
        check runs at a time.
        """
        quiet_ms = now_ms - self._batch_ms if self._outage_reported_ms is None else LOOK_MS
        if self._is_looking or min(quiet_ms, now_ms - self._looked_ms) < LOOK_MS:
            return False
        self._is_looking, self._looked_ms = True, now_ms
        return True

    def seen(self, now_ms: int, seen: Seen) -> Iterator[str]:
        """Record the result of a check and yield messages."""
        self._is_looking = False
        missed_s, reported_ms = (now_ms - self._there_ms) // 1_000, self._outage_reported_ms
        if seen.problem is not None:
            is_outdated = self._there_ms > self._looked_ms  # A batch has ended since it began.
            if not is_outdated and (reported_ms is None or now_ms - reported_ms >= REMIND_MS):
                self._outage_reported_ms = now_ms
                what = "is unavailable" if seen.is_away else "cannot be read"
                yield (
                    f"{self._name} {what}, and nothing has come from it for {missed_s} s:"
                    f" {seen.problem}; waiting"
                )
            return
        self._there_ms, self._outage_reported_ms = now_ms, None
        if reported_ms is not None:
            yield f"{self._name} is available again; nothing came from it for {missed_s} s"
        elif now_ms - self._batch_ms >= SILENCE_MS and not self._is_quiet_reported:
            self._is_quiet_reported = True
            yield (
                f"no batch has ended for {(now_ms - self._batch_ms) // 1_000} s, although"
                f" {self._name} answers: it has no new entries, or this machine is slow; waiting"
            )


WINDOW_MS: Final = 10_000
"""Window of the reported rate: some ten batches."""

_BATCHES_MAX: Final = 1_000  # Enough for a full window of 10 ms batches; none is shorter.

_BATCHES_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """One finished batch of a stream.

    * `rows`: entries taken from the sources.
    * `behind`: entries that the sources held beyond the batch when it began. None if unknown, as
      for a batch that was planned before a restart.
    * `state_rows`, `state_bytes`: of all stateful operators, after the batch.
    """

    batch: int
    rows: int
    took_ms: int
    behind: int | None
    state_rows: int
    state_bytes: int


def batch_done(document: bytes | str) -> BatchDone:
    """Return the batch described by `document`, the JSON of Spark's `StreamingQueryProgress`.
    Missing numbers are 0.
    """
    raw: Mapping[str, Any] = orjson.loads(document)
    durations = raw.get("durationMs") or {}
    states = raw.get("stateOperators") or []
    return BatchDone(
        batch=int(raw.get("batchId") or 0),
        rows=sum(int(source.get("numInputRows") or 0) for source in raw.get("sources") or []),
        took_ms=int(durations.get("triggerExecution") or raw.get("batchDuration") or 0),
        behind=_behind(raw.get("sources") or []),
        state_rows=sum(int(state.get("numRowsTotal") or 0) for state in states),
        state_bytes=sum(int(state.get("memoryUsedBytes") or 0) for state in states),
    )


def _behind(sources: list[Mapping[str, Any]]) -> int | None:
    """Return how far the newest offsets in the sources are beyond the batch's end."""
    behind = 0
    for source in sources:
        newest, end = (_numbers(source.get(name)) for name in ("latestOffset", "endOffset"))
        if not newest:
            return None
        behind += max(0, sum(newest) - sum(end))
    return behind


def _numbers(offset: object) -> list[int]:
    """Return the numbers in an offset of Spark: JSON of any shape, or a string of it."""
    text = offset if isinstance(offset, str) else orjson.dumps(offset).decode()
    return [int(number) for number in re.findall(r":\s*(\d+)", text)]


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
    "restarts_total": "How often its stream failed and was started again.",
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

    def restarted(self) -> None:
        """Count a restart of the stream."""
        self._counters["restarts_total"].inc()


def _seconds_since(at_ms: int | None) -> float:
    return 0 if at_ms is None else (_now_ms() - at_ms) / 1_000


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
        self.batches = 0
        self._batch_ms = self._noted_ms = _now_ms()
        self._rate.add(self._batch_ms, 0)
        self._silence = Silence("" if log is None else log.name, self._batch_ms)
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

    def reached(self, *, audited: int, end: int) -> None:
        """Show in the metrics how far an audit has come."""
        self._metrics.reached(audited=audited, end=end)

    def restarted(self) -> None:
        """Count a restart of the stream."""
        self._metrics.restarted()

    def note(self, line: str) -> None:
        """Print a progress line now. Other threads call `remark`."""
        self._beside(self._screen.note, line)

    def show(self) -> None:
        """Print queued lines and the progress."""
        self._print()
        self._report()

    def _print(self) -> None:
        for _ in range(self._waiting.qsize()):  # Items added meanwhile wait for the next call.
            waiting = self._waiting.get_nowait()  # Only this thread takes any.
            if isinstance(waiting, BatchDone):
                self._take(waiting)
            elif isinstance(waiting, Seen):
                for line in self._silence.seen(_now_ms(), waiting):
                    self.note(line)
            else:
                waiting()

    def close(self) -> None:
        """Print queued lines, and remove the live line."""
        self._print()
        self._aside()

    def _take(self, done: BatchDone) -> None:
        now_ms = _now_ms()
        self._silence.batch(now_ms)
        self._last, self._batch_ms = done, now_ms
        self.batches += 1
        self.rows += done.rows
        self._rate.add(now_ms, done.rows)
        self._metrics.batch(done, rows_per_second=self._rate.per_second(now_ms))

    def _look(self) -> None:
        assert self._log is not None, "only a log that is named is looked at"
        self._waiting.put(self._log.look())

    def _report(self) -> None:
        now_ms = _now_ms()
        if self._log is not None and self._silence.wants_look(now_ms):
            # On a thread, because a check of an unavailable log takes as long as its client waits.
            # Only one runs at a time.
            threading.Thread(target=self._look, name="log-look", daemon=True).start()
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
