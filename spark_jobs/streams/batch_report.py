"""Parse Spark's report on one batch of a stream, and format it for people.

`spark_jobs.streams.progress` listens to Spark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

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
