"""Run a task for each shard, in the process that owns the shard.

Theory of operation:

* A shard is a bundle. Its task starts when the bundle is opened, and is cancelled and awaited when
  the bundle is closed.
* A task that raises is started again, after a pause that doubles. One that returns has done its
  work, until the shard moves.
* The CPU time of the task, of the tasks that it starts, and its time are its load.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.balancing.namespace_policies import check_new_bundles
from equipoise.brokers.load.metering import driven_for
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service, Work
from equipoise.brokers.sharded.keyed import SHARDS
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import check_namespace
from equipoise.channel.system.clocks import Deadline

_logger: Final = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
_PAUSE_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class Shard:
    """What a task works on: the keys of one bundle, while this process owns it."""

    ownership: Ownership

    @property
    def bundle(self) -> Bundle:
        """The bundle, with its range of hash points, `low` to `high`."""
        return self.ownership.bundle

    @property
    def token(self) -> int:
        """The fencing token. Give it to every store that the task writes to."""
        return self.ownership.token

    def contains(self, key: str) -> bool:
        """Return whether the shard holds `key`."""
        return self.bundle.contains(self.bundle.namespace, key)

    def begin(self, key: str) -> Work:
        """Start work on a key: see `Ownership.begin`."""
        return self.ownership.begin(key)


class Tasks(Service):
    """A service that runs `work(shard)` for each shard that this process owns:
    `Tasks("acme/crawler", crawl)`.

    `work` runs until it is cancelled, or until it has nothing more to do. It must end soon after
    its cancellation: the next owner waits for it, for `close_ms` at most.
    """

    def __init__(
        self, namespace: str, work: Callable[[Shard], Awaitable[None]], *, shards: int = SHARDS
    ) -> None:
        """`work` is started again if it raises, first after a second, then later and later.
        `shards`: how many bundles the namespace has at first.

        Raises `InvalidName`, and `CallerError` for a function that is no coroutine function.
        """
        self.namespace = check_namespace(namespace)
        self.shards = check_new_bundles(namespace, shards)
        if inspect.isfunction(work) and not inspect.iscoroutinefunction(work):
            raise CallerError(
                f"{work.__name__} cannot be the task of {namespace}: write it as `async def"
                f" {work.__name__}(shard)`"
            )
        self._work = work
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # By bundle: the cancelled tasks that its own waits for.
        self._before: dict[str, set[asyncio.Task[None]]] = {}

    def __repr__(self) -> str:
        return f"<Tasks of {self.namespace}, {len(self._tasks)} open bundles>"

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:  # noqa: ARG002
        """Start the task of a shard."""
        self._start(ownership)

    async def close(
        self,
        bundle: Bundle,
        moved_to: Peer | None,  # noqa: ARG002
        deadline: Deadline,
    ) -> None:
        """Cancel the task, and wait for its end. Raises `DeadlineExceeded` if it goes on."""
        ending = self._cancelled(bundle)
        await deadline.wait(
            asyncio.wait(ending), what=f"the end of the task of {bundle.name}, which is cancelled,"
        )

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        """End the task of the parent, and then start those of its children."""
        self._replace([parent], children)

    def merge(self, left: Bundle, right: Bundle, union: Ownership) -> None:
        """End both tasks, and then start the one of the union."""
        self._replace([left, right], [union])

    def _start(self, ownership: Ownership, after: set[asyncio.Task[None]] | None = None) -> None:
        shard = Shard(ownership)
        self._before[shard.bundle.name] = after = after or set()
        self._tasks[shard.bundle.name] = asyncio.get_running_loop().create_task(
            self._run(shard, after), name=f"task of {shard.bundle.name}"
        )

    def _cancelled(self, bundle: Bundle) -> set[asyncio.Task[None]]:
        """Cancel the task of a bundle. Return what must end before another task has its keys."""
        task = self._tasks.pop(bundle.name)
        task.cancel()
        return {task, *self._before.pop(bundle.name)}

    def _replace(self, before: Sequence[Bundle], after: Sequence[Ownership]) -> None:
        ending = set[asyncio.Task[None]]().union(*map(self._cancelled, before))
        for ownership in after:
            self._start(ownership, ending)

    async def _run(self, shard: Shard, after: set[asyncio.Task[None]]) -> None:
        if after:
            await asyncio.wait(after)
        pause_s, name = _PAUSE_S / 2, shard.bundle.name
        account = shard.ownership.account
        while True:
            began_s = time.monotonic()
            try:
                with account.running():
                    await driven_for(account, self._work(shard))
            except Exception:
                if (own := asyncio.current_task()) is None or own.cancelling():
                    raise  # What it raises at its end does not start it again.
                ran_s = time.monotonic() - began_s
                pause_s = _PAUSE_S if ran_s > _PAUSE_S_MAX else min(2 * pause_s, _PAUSE_S_MAX)
                _logger.exception(
                    "task failed: it starts again in %.0f s",
                    pause_s,
                    extra={"bundle": name},
                )
                await asyncio.sleep(pause_s * random.uniform(1.0, 1.2))  # noqa: S311 - jitter
            else:
                return
