"""Count what the bundles of a service use: calls, CPU time, wall time and bytes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from equipoise.shedder.loads import BundleLoad

Result = TypeVar("Result")


@dataclass(slots=True)
class _Used:
    calls: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    size: int = 0


@dataclass(slots=True, eq=False)
class _Run:
    """Work that goes on. What it lasted before `since_s` is counted."""

    bundle: str
    since_s: float


class Meter:
    """Counts by bundle, from one question for the load to the next."""

    def __init__(self) -> None:
        self._used: dict[str, _Used] = {}
        self._runs: set[_Run] = set()
        self._since_s = time.monotonic()

    def count(self, bundle: str, *, calls: int = 0, cpu_s: float = 0.0, size: int = 0) -> None:
        """Count what a bundle has used. `size`: bytes."""
        used = self._of(bundle)
        used.calls += calls
        used.cpu_s += cpu_s
        used.size += size

    @contextmanager
    def running(self, bundle: str) -> Iterator[None]:
        """Count the time of the context. Work that runs side by side adds up."""
        run = _Run(bundle, time.monotonic())
        self._runs.add(run)
        try:
            yield
        finally:
            self._runs.remove(run)
            self._of(bundle).wall_s += time.monotonic() - run.since_s

    def loads(self, bundles: Iterable[str]) -> Mapping[str, BundleLoad]:
        """Return what these bundles have used since the last question, and count anew."""
        now_s = time.monotonic()
        elapsed_s, self._since_s = max(now_s - self._since_s, 0.001), now_s
        for run in self._runs:
            self._of(run.bundle).wall_s += now_s - run.since_s
            run.since_s = now_s
        used, self._used = self._used, {}
        idle = _Used()
        return {
            bundle: BundleLoad(
                calls_per_second=each.calls / elapsed_s,
                bytes_per_second=each.size / elapsed_s,
                cpu_seconds_per_second=each.cpu_s / elapsed_s,
                wall_seconds_per_second=each.wall_s / elapsed_s,
            )
            for bundle in bundles
            for each in (used.get(bundle, idle),)
        }

    def _of(self, bundle: str) -> _Used:
        used = self._used.get(bundle)
        if used is None:
            used = self._used[bundle] = _Used()
        return used


class Timed(Generic[Result]):
    """Awaits `work`, and gives `count` the CPU time of each of its steps, in seconds."""

    def __init__(self, work: Awaitable[Result], count: Callable[[float], None]) -> None:
        self._work = work
        self._count = count

    def __await__(self) -> Generator[Any, Any, Result]:
        steps = self._work.__await__()
        sent: Any = None
        error: BaseException | None = None
        while True:
            began_s = time.thread_time()
            try:
                awaited = steps.send(sent) if error is None else steps.throw(error)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self._count(time.thread_time() - began_s)
            sent = error = None
            try:
                sent = yield awaited
            except BaseException as raised:  # noqa: BLE001 - it is passed on
                error = raised
