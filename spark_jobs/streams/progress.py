"""Show the progress of a running stream: lines on the terminal, a live line, and `/metrics`.

Findings arrive on a thread of Spark. Only the thread that calls `Watch.show` prints, so that lines
do not mix.

Spark reports on each batch. While no batch ends, it waits silently, for minutes, for a Kafka or a
file that is unavailable. So the driver checks the log itself.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Self, TypeVar

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from rich.console import Console
from rich.live import Live
from rich.text import Text

from equipoise.channel.core.errors import CallerError, EquipoiseError, LogNotBegun, LogUnavailable
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.streams.options import Screen

LOOK_MS: Final = 10_000
"""Time without a batch before a check of the log, and the interval between checks. A check costs a
connection."""

SILENCE_MS: Final = 30_000
"""Time without a batch before a message although the log answers (brokers renew every few seconds),
and before one about a slow check."""

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


_NO_ANSWER: Final = Seen(f"it has not answered within {SILENCE_MS // 1_000} s")


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
        self._batch_ms = self._quiet_ms = self._there_ms = self._looked_ms = now_ms
        self._has_batches = False
        self._is_looking = False
        self._idle_ms: int | None = None
        self._outage: Seen | None = None
        self._outage_reported_ms = 0
        self._reported: str | None = None

    @property
    def missed_since_ms(self) -> int | None:
        """Since when nothing has come from a log that does not answer; None if it answers, as far
        as is known.
        """
        return None if self._outage is None else self._there_ms

    def batch(self, now_ms: int, *, began_ms: int) -> Iterator[str]:
        """Record the end of a batch and yield messages. It proves that the log was available when
        the batch began, not later.
        """
        if self._outage is None or began_ms > self._looked_ms:
            yield from self._there(began_ms, now_ms)
        self._batch_ms = self._quiet_ms = now_ms
        self._has_batches, self._idle_ms, self._reported = True, None, None

    def idle(self, now_ms: int) -> None:
        """Record that Spark found nothing new, which it reports every 10 s. No batch is running
        then.
        """
        self._idle_ms = now_ms

    def wants_look(self, now_ms: int) -> bool:
        """Return whether the caller should check the log now and pass the result to `seen`. One
        check runs at a time.
        """
        if self._is_looking or min(now_ms - self._batch_ms, now_ms - self._looked_ms) < LOOK_MS:
            return False
        self._is_looking, self._looked_ms = True, now_ms
        return True

    def seen(self, now_ms: int, seen: Seen) -> Iterator[str]:
        """Record the result of a check and yield messages."""
        self._is_looking = False
        if seen.problem is None:
            yield from self._there(now_ms, now_ms)
            yield from self._quiet(now_ms)
        elif self._looked_ms >= self._there_ms:
            # Else a batch has begun since the check did, and its result is outdated.
            yield from self._missed(now_ms, seen)

    def wait(self, now_ms: int) -> Iterator[str]:
        """Yield a message if a check takes too long."""
        if self._is_looking and now_ms - max(self._looked_ms, self._there_ms) >= SILENCE_MS:
            yield from self._missed(now_ms, _NO_ANSWER)

    def _missed(self, now_ms: int, outage: Seen) -> Iterator[str]:
        is_known = self._outage is not None
        self._outage = outage
        if is_known and now_ms - self._outage_reported_ms < REMIND_MS:
            return
        self._outage_reported_ms = now_ms
        what = "is unavailable" if outage.is_away else "cannot be read"
        missed_s = (now_ms - self._there_ms) // 1_000
        yield (
            f"{self._name} {what}, and nothing has come from it for {missed_s} s: {outage.problem};"
            " waiting"
        )

    def _there(self, at_ms: int, now_ms: int) -> Iterator[str]:
        """Record, at `now_ms`, that the log was available at `at_ms`."""
        if self._outage is not None:
            yield (
                f"{self._name} is available again; nothing came from it for"
                f" {(at_ms - self._there_ms) // 1_000} s"
            )
            self._outage = None
            self._quiet_ms = now_ms  # The wait until now has been reported.
        self._there_ms = max(self._there_ms, at_ms)

    def _quiet(self, now_ms: int) -> Iterator[str]:
        if now_ms - self._quiet_ms < SILENCE_MS:
            return
        if self._idle_ms is not None and now_ms - self._idle_ms < SILENCE_MS:
            why = f"{self._name} has no new entries; waiting"
        elif self._has_batches:
            why = f"{self._name} answers, but this machine is slow to process its entries; waiting"
        else:
            why = "the first batch takes longest, especially on a busy machine; waiting"
        if why != self._reported:
            self._reported = why
            yield f"no batch has ended for {(now_ms - self._batch_ms) // 1_000} s: {why}"


WINDOW_MS: Final = 10_000
"""Window of the reported rate: some ten batches."""

_BATCHES_MAX: Final = 1_000  # Enough for a full window of 10 ms batches; none is shorter.

_BATCHES_MIN: Final = 2

_KIB: Final = 1_024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


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
        newest, end = (
            dict(_numbers(_object(source.get("latestOffset")))),
            dict(_numbers(_object(source.get("endOffset")))),
        )
        if not newest:
            return None
        # A part without an end offset, such as a new topic, is behind from its first offset.
        behind += sum(max(0, offset - end.get(name, 0)) for name, offset in newest.items())
    return behind


def _object(offset: object) -> object:
    """Return an offset as parsed JSON. Spark gives some as a string of JSON."""
    if not isinstance(offset, str):
        return offset
    try:
        return orjson.loads(offset)
    except orjson.JSONDecodeError:
        return None


def _numbers(offsets: object, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield each integer in an offset of any shape, with the path to it."""
    match offsets:
        case bool():
            return
        case int():
            yield name, offsets
        case dict():
            for key in sorted(offsets):
                yield from _numbers(offsets[key], f"{name}/{key}")
        case list():
            for place, part in enumerate(offsets):
                yield from _numbers(part, f"{name}/{place}")


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
        f"state {done.state_rows:,} rows, {size(done.state_bytes)}",
    ]
    if found is not None:
        parts.append("1 finding" if found == 1 else f"{found:,} findings")
    return " · ".join(parts)


def size(count: int) -> str:
    """Format a number of bytes in the largest unit that gives at least 1."""
    amount, unit = float(count), 0
    while amount >= _KIB and unit < len(_UNITS) - 1:
        amount, unit = amount / _KIB, unit + 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


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

_Item = TypeVar("_Item")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class StreamMetrics:
    """The Prometheus metrics of `job`, in their own registry, with names that begin with
    `equipoise_JOB_`.

    `docs/reference/metrics.md` describes each one.
    """

    def __init__(self, job: str, *, rules: Collection[str] = ()) -> None:
        """`rules` are the names of what the job may find."""
        self.registry = CollectorRegistry()
        self._ended_ms = _now_ms()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"equipoise_{job}_{name}", text, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"equipoise_{job}_{name}", text, labels, registry=self.registry)

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
        self._audited = self._end = None
        if rules:
            self._audited = gauge(
                "audited_offset", "The offset up to which the audit has checked all records."
            )
            self._end = gauge("log_end_offset", "The last offset of the log, at that time.")
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

    def reached(self, *, audited: int, end: int) -> None:
        """Set how far an audit has come."""
        if self._audited is not None and self._end is not None:
            self._audited.set(audited)
            self._end.set(end)

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

    def reached(self, *, audited: int, end: int) -> None:
        """Show in the metrics how far an audit has come."""
        self._metrics.reached(audited=audited, end=end)

    def restarted(self) -> None:
        """Count a restart of the stream."""
        self._metrics.restarted()

    def note(self, line: str) -> None:
        """Print a progress line now. Other threads call `remark`."""
        self._beside(self._screen.note, line)

    def idle(self) -> None:
        """Record that the job found nothing new in its sources."""
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
