"""Shards by a lock each in ZooKeeper, shared out by the number of members."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.benchmarks.peers.program import SHARDS, Program
from tests.benchmarks.peers.threads import InThread

LOOK_S = 1.0


class Adapter(InThread):
    """Takes free locks up to its share. The transaction that made a lock is its token."""

    def __init__(self, program: Program, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._program, self._has_tokens = program, settings["tokens"]
        self._zk = KazooClient(settings["hosts"], timeout=settings["session_s"])
        self._children: dict[str, list[str]] = {}

    def run(self) -> None:
        self._zk.start()
        for path in ("/members", *(f"/shards/{shard}" for shard in range(SHARDS))):
            self._zk.ensure_path(path)
            self._zk.ChildrenWatch(path, partial(self._seen, path))
        while not self.is_ending:
            with suppress(KazooException):
                self._hold(self._zk.client_id)
            self.wait(LOOK_S)
        self._zk.stop()  # Ends the session, and so releases all locks.

    def _seen(self, path: str, children: list[str]) -> None:
        self._children[path] = children
        self.changed.set()

    def _hold(self, session: object) -> None:
        """Hold locks until the session is lost. Serve only while there is a connection."""
        locks = dict[int, Any]()
        self._zk.create(f"/members/{self._program.name}", ephemeral=True)
        try:
            while not self.is_ending and self._zk.client_id == session:
                self.wait(LOOK_S)
                self._level(locks, lambda: self._zk.connected and self._zk.client_id == session)
        finally:
            self._program.close_and_wait(locks)

    def _level(self, locks: dict[int, Any], good: Callable[[], bool]) -> None:
        share = -(-SHARDS // max(1, len(self._children["/members"])))
        for shard in list(locks)[share:]:
            self._program.close_and_wait([shard])
            locks.pop(shard).release()
        for shard in range(SHARDS):
            lock = self._zk.Lock(f"/shards/{shard}")
            is_free = len(locks) < share and not self._children[lock.path]
            if is_free and lock.acquire(blocking=False):
                locks[shard] = lock
                node = self._zk.exists(f"{lock.path}/{lock.node}")
                token = node.czxid if self._has_tokens else None
                self._program.open_soon(shard, token=token, good=good)
