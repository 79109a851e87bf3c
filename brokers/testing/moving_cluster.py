"""Move a bundle while the code under test waits: one run of a scenario for each of its await
points.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from traceback import FrameSummary, format_list
from types import FrameType
from typing import Any, Final, TypeVar

from equipoise.brokers.load.metering import work_in
from equipoise.brokers.operations.moves import transfer
from equipoise.brokers.runtime.service import Service
from equipoise.brokers.testing.virtual_cluster import NOT_SERVED, Cluster, ClusterLoop
from equipoise.channel.core.errors import CallerError, EquipoiseError, PeerError
from equipoise.channel.core.ranges import key_hash

T = TypeVar("T")
S = TypeVar("S", bound=Service)
C = TypeVar("C", bound="MovingCluster[Any]")

PATIENCE_MS: Final = 100
"""Limit of the real time that a held coroutine waits. It takes all of that if `close` or another
task waits for it."""

_REASON: Final = "moved at an await point"
_EXAMPLES: Final = "equipoise.examples."


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedMove:
    """A move of `bundle` at the await point `number` of a run. `calls` lead to the await point, the
    outermost first.
    """

    number: int
    bundle: str
    source: str
    destination: str
    calls: Sequence[FrameSummary]

    @property
    def place(self) -> str:
        """Return the await point as `FILE:LINE in FUNCTION`."""
        call = self.calls[-1]
        return f"{call.filename}:{call.lineno} in {call.name}"

    def __str__(self) -> str:
        """Return the move, its place, and the calls that lead there."""
        moved = f"{self.bundle} moved from {self.source} to {self.destination}"
        return (
            f"{moved} while this code waited at"
            f" {self.place}:\n{''.join(format_list(list(self.calls))).rstrip()}"
        )


class MovingCluster(Cluster[S]):
    """A cluster that moves the bundle of one key while code under test waits at one of its await
    points.

    An await point is each suspension of a coroutine of the service or of the test, in any task,
    while a running broker owns the bundle and another one runs. Points are counted from 1, in the
    order of the run. An `await` that does not suspend is none: nothing can happen there. The
    waiting coroutine continues when the move is over, or after the patience if `close` or another
    task waits for it.

    * `points`: the await points so far, up to the move.
    * `move`: the move, once it has started.
    * `refusal`: why the channel refused the move.
    """

    def __init__(
        self,
        service: Callable[[], S],
        namespace: str,
        key: str,
        *,
        at: int | None,
        kills: bool = False,
        brokers: int | Sequence[str] = 3,
        patience_ms: int = PATIENCE_MS,
        serves_peers: bool = False,
    ) -> None:
        """Move the bundle of `key` of `namespace` at the await point `at` (None: nowhere), or kill
        its owner there, if it `kills`. `Cluster` defines the other arguments.
        """
        super().__init__(
            service, brokers=brokers, patience_ms=patience_ms, serves_peers=serves_peers
        )
        self._runner = asyncio.Runner(loop_factory=self._new_loop)
        self._namespace = namespace
        self._point = key_hash(key)
        self._at = at
        self._kills = kills
        self._is_settling = False
        self._is_held = False
        self.points = 0
        self.move: AwaitedMove | None = None
        self.refusal: EquipoiseError | None = None

    def give(self, bundle: str, broker: str) -> None:
        """Transfer a bundle as `Cluster` does. The move of this run may take it further before this
        returns.
        """
        before = self.move
        try:
            super().give(bundle, broker)
        except PeerError as error:
            if error.code != NOT_SERVED or self.move is before:
                raise

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        loop = ClusterLoop()
        loop.set_task_factory(self._new_task)
        return loop

    # As asyncio.
    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> asyncio.Task[Any]:
        return asyncio.Task(_Observed(coroutine, self._suspended), loop=loop, **options)

    async def _settle(self) -> None:
        """Settle as `Cluster` does, and let the held code go on once nothing else can happen."""
        self._is_settling = True
        await super()._settle()
        if self._is_held:
            self._is_held = False
            self._stuck.clear()  # A closing bundle may have waited for the held code.
            self._world.changed()
            await super()._settle()
        self._is_settling = False

    def _suspended(self, coroutine: object) -> Coroutine[Any, Any, None] | None:
        """Count an await point. Return the hold of the coroutine if the bundle moves there."""
        if not self._is_settling or self.move is not None:
            return None  # While a broker is killed or the cluster ends, nothing would end the hold.
        calls = _calls_in(coroutine)
        move = self._next_move(calls) if calls else None
        if move is None:
            return None
        self.points += 1
        if self.points != self._at:
            return None
        self.move = move
        return self._hold(move)

    def _next_move(self, calls: Sequence[FrameSummary]) -> AwaitedMove | None:
        """Return the move to the next broker in order of names; None if the bundle cannot move
        now.
        """
        brokers = self.brokers
        bundle = self._view.bundle_at(self._namespace, self._point) if brokers else None
        if bundle is None or bundle.phase != "owned":
            return None
        source = self.owner(bundle.name)
        if source is None or source not in brokers or len(brokers) == 1:
            return None
        destination = brokers[(brokers.index(source) + 1) % len(brokers)]
        return AwaitedMove(
            number=self.points + 1,
            bundle=bundle.name,
            source=source,
            destination=destination,
            calls=calls,
        )

    async def _hold(self, move: AwaitedMove) -> None:
        """Move the bundle, and return when `_settle` lets the held code go on."""
        if self._kills:
            killed = self._member(move.source)
            self._crash(move.source)
            await killed.runner.stop()
            return
        transferring = transfer(
            self._port(), move.bundle, move.destination, wait=False, reason=_REASON
        )
        task = asyncio.get_running_loop().create_task(transferring)
        self._is_held = True
        while self._is_held:
            await self._world.change()
        try:
            await task  # It ends when the channel has accepted the move.
        except EquipoiseError as error:
            self.refusal = error


def moves_at_every_await(
    cluster: Callable[[int | None], C], *, about: str, only: int | None = None
) -> Generator[C]:
    """Yield a new cluster for each run of a scenario: one without a move, then one for each await
    point, with a move there.

    `cluster` makes one that moves the bundle of a key at an await point (None: nowhere). `about` is
    that key in errors. `only` leaves a single run, with the move at that point.

    Raises `CallerError` if the scenario has no await point, if a run does not reach its point, or
    if the channel refused each move.
    """
    points = 0
    if only is None:
        with cluster(None) as unmoved:
            yield unmoved
        points = unmoved.points
        if not points:
            raise CallerError(
                f"the scenario has no await point at which the bundle of {about}"
                " could move: no coroutine of the service or of the test was suspended while a"
                " broker owned it. Create the namespace, run at least two brokers, call the"
                " service with cluster.call(), and let each stand-in of a store or a network wait"
                " with asyncio.sleep(0)"
            )
    refusals: list[EquipoiseError] = []
    numbers = range(1, points + 1) if only is None else (only,)
    for number in numbers:
        with cluster(number) as moving:
            yield moving
        if moving.move is None:
            before = f"; the run without a move has {points}" if only is None else ""
            raise CallerError(
                f"the scenario has not reached its await point {number}: it has"
                f" {moving.points}{before}. Make it do the same in each run"
            )
        if moving.refusal is not None:  # Another operation of the scenario came first.
            refusals.append(moving.refusal)
    if len(refusals) == len(numbers):
        raise CallerError(
            "the channel refused the move at each await point, so the scenario shows nothing:"
            f" {refusals[0]}"
        )


class _Observed(Coroutine[Any, Any, T]):
    """A coroutine for a task that calls `suspended` whenever it waits. If that returns a hold, it
    waits for the hold first.
    """

    def __init__(
        self,
        inner: Coroutine[Any, Any, T],
        suspended: Callable[[object], Coroutine[Any, Any, None] | None],
    ) -> None:
        self._inner = inner
        self._suspended = suspended
        self._hold: Coroutine[Any, Any, None] | None = None
        self._waited_for: object = None

    def send(self, value: Any) -> Any:  # noqa: ANN401 - as the type that it overrides
        """Resume the code with a value."""
        return (
            self._go_on(partial(self._inner.send, value))
            if self._hold is None
            else self._wait_on(partial(self._hold.send, value))
        )

    # As above; a task passes only the error.
    def throw(self, error: Any, value: Any = None, trace: Any = None) -> Any:  # noqa: ANN401, ARG002
        """Resume the code with an error."""
        return (
            self._go_on(partial(self._inner.throw, error))
            if self._hold is None
            else self._wait_on(partial(self._hold.throw, error))
        )

    def close(self) -> None:
        """End the code."""
        if self._hold is not None:
            self._hold.close()
        self._inner.close()

    def __await__(self) -> Any:  # noqa: ANN401 - as above
        return self._inner.__await__()

    def _go_on(self, resume: Callable[[], object]) -> object:
        """Run the code until it waits. At its end `resume` raises StopIteration, for the task."""
        waited_for = resume()
        self._hold = self._suspended(self._inner)
        if self._hold is None:
            return waited_for
        self._waited_for = waited_for
        return self._wait_on(partial(self._hold.send, None))

    def _wait_on(self, resume: Callable[[], object]) -> object:
        """Run the hold until it waits. After its end, wait for what the code waits for."""
        try:
            return resume()
        except StopIteration:
            self._hold = None
            return self._waited_for
        except BaseException as error:  # noqa: BLE001 - the code decides, as without a hold
            self._hold = None
            return self._go_on(partial(self._inner.throw, error))


def _calls_in(coroutine: Any) -> list[FrameSummary]:  # noqa: ANN401 - anything that can be awaited
    """Return the calls of code under test in a suspended coroutine, the outermost first."""
    calls = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and _is_under_test(frame):
            calls.append(
                FrameSummary(
                    _shown(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_qualname
                )
            )
        coroutine = (
            getattr(coroutine, "cr_await", None)
            or getattr(coroutine, "gi_yieldfrom", None)
            or work_in(coroutine)
        )
    return calls


def _is_under_test(frame: FrameType) -> bool:
    """Return whether code belongs to neither Equipoise nor the standard library."""
    name = str(frame.f_globals.get("__name__"))
    return name.startswith(_EXAMPLES) or name.partition(".")[0] not in {
        "equipoise",
        *sys.stdlib_module_names,
    }


def _shown(path: str) -> str:
    """Return the path of a file below the working folder as relative to it, and any other path
    unchanged.
    """
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
