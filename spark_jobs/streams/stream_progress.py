"""What Spark says of one batch of a stream, and how that is told to whoever looks on.

May live here: the value, the way to it from Spark's own JSON, and the line of text. Who listens to Spark is `spark_jobs.streams.progress`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

WINDOW_MS: Final = 10_000
"""Over how long a rate is told: some ten batches."""

_BATCHES_MAX: Final = 1_000  # Batches of 10 ms in such a window; none is so short.

_BATCHES_MIN: Final = 2

_KIB: Final = 1_024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """One batch that a stream has finished.

    `batch` is its number, `rows` what it took from its sources, `took_ms` the whole time of it, of which `worked_ms` went into the
    rows themselves. `behind` is how many entries the sources held beyond it when it began, None where a source does not tell: it was
    not asked for a batch that was planned before a restart.
    `state_rows` and `state_bytes` are of all stateful operators together, after it. `log_time` is the watermark: up to there, in the
    log's own time, time-outs have been looked at; None before the first.
    """

    batch: int
    rows: int
    took_ms: int
    worked_ms: int
    behind: int | None
    state_rows: int
    state_bytes: int
    log_time: str | None

    @property
    def rows_per_second(self) -> float:
        """How quickly this batch went; 0 for one without rows."""
        return 1_000 * self.rows / max(1, self.took_ms)


def batch_done(document: bytes | str) -> BatchDone:
    """The batch of which `document`, the JSON of Spark's `StreamingQueryProgress`, tells. What is missing in it counts as 0."""
    raw: Mapping[str, Any] = orjson.loads(document)
    durations = raw.get("durationMs") or {}
    states = raw.get("stateOperators") or []
    return BatchDone(
        batch=int(raw.get("batchId") or 0),
        rows=sum(int(source.get("numInputRows") or 0) for source in raw.get("sources") or []),
        took_ms=int(durations.get("triggerExecution") or raw.get("batchDuration") or 0),
        worked_ms=int(durations.get("addBatch") or 0),
        behind=_behind(raw.get("sources") or []),
        state_rows=sum(int(state.get("numRowsTotal") or 0) for state in states),
        state_bytes=sum(int(state.get("memoryUsedBytes") or 0) for state in states),
        log_time=(raw.get("eventTime") or {}).get("watermark"),
    )


def _behind(sources: list[Mapping[str, Any]]) -> int | None:
    """By how much the newest offsets that the sources know exceed those that the batch ended with."""
    behind = 0
    for source in sources:
        newest, end = dict(_numbers(_object(source.get("latestOffset")))), dict(_numbers(_object(source.get("endOffset"))))
        if not newest:
            return None
        # A part that the batch has not begun on, such as a topic made a moment ago, is behind from its first offset.
        behind += sum(max(0, offset - end.get(name, 0)) for name, offset in newest.items())
    return behind


def _object(offset: object) -> object:
    """An offset as JSON has it: Spark hands over some as a text that holds it."""
    if not isinstance(offset, str):
        return offset
    try:
        return orjson.loads(offset)
    except orjson.JSONDecodeError:
        return None


def _numbers(offsets: object, name: str = "") -> Iterator[tuple[str, int]]:
    """Each whole number in an offset, which is of whatever shape its source likes, by the names that lead to it."""
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


def told(done: BatchDone, *, rows_per_second: float, found: int | None, missed_ms: int | None = None) -> str:
    """One line about a stream after `done`; `rows_per_second` is over the last while, `found` its findings, None if it makes none.

    `missed_ms` is how long nothing has come from its log, which does not answer; None while it does, for only then is it known how far
    behind the stream is.
    """
    parts = [f"{rows_per_second:,.0f} rows/s"]
    if missed_ms is not None:
        parts.append(f"its log does not answer, nothing for {missed_ms // 1_000} s")
    elif done.behind is not None:
        parts.append(f"{done.behind:,} behind")
    parts += [f"batch {done.batch} in {done.took_ms / 1_000:.1f} s", f"state {done.state_rows:,} rows, {size(done.state_bytes)}"]
    if found is not None:
        parts.append("1 finding" if found == 1 else f"{found:,} findings")
    return " · ".join(parts)


def size(count: int) -> str:
    """A number of bytes in the largest unit of which there is at least one."""
    amount, unit = float(count), 0
    while amount >= _KIB and unit < len(_UNITS) - 1:
        amount, unit = amount / _KIB, unit + 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


class Rate:
    """Rows per second over the last while: one batch alone says little, since they come in bursts."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int]] = deque(maxlen=_BATCHES_MAX)

    def add(self, now_ms: int, rows: int) -> None:
        """So many rows have been taken up to `now_ms`, by a clock that only rises."""
        self._batches.append((now_ms, rows))

    def per_second(self, now_ms: int) -> float:
        """The mean of those that came after the oldest of the window, over the time since that one."""
        # Two are kept however old they are: a stream whose batches are long is slow, and does not stand still.
        while len(self._batches) > _BATCHES_MIN and self._batches[0][0] < now_ms - WINDOW_MS:
            self._batches.popleft()
        if not self._batches:
            return 0.0
        rows = sum(rows for _, rows in self._batches) - self._batches[0][1]
        return 1_000 * rows / max(1, now_ms - self._batches[0][0])
