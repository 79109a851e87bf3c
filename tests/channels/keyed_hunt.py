"""Callers of objects by key, while bundles move, brokers die and the store fails, until an answered
change is lost or one is made twice.

Each change is an id of its own, and an object is the list of its changes. The bundle of one key
moves at an await point that the seed chooses. Other bundles move, split and merge between calls,
and slow calls outlast their ownership.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

from equipoise import Keyed
from equipoise.brokers.testing.moving_cluster import MovingCluster
from equipoise.errors import CallerError, DeadlineExceeded, NotFound, PeerError, StaleToken
from tests.channels import hunting
from tests.channels.hunting import require

SCENARIO: Final = "keyed"
NAMESPACE: Final = "hunt/ledgers"
KEYS: Final = ("ash", "birch", "cedar", "dogwood")
DEEDS_MAX: Final = 14
FAILURES: Final = 0.25
"""The share of questions to a failing store that it does not answer."""


@dataclass
class Ledger:
    changes: list[str] = field(default_factory=list)


Ledgers = Keyed[Ledger]


class Shelf:
    """What all brokers' stores share."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.states: dict[str, tuple[int, bytes]] = {}
        self.late: dict[str, tuple[int, bytes]] = {}
        self.fails = False

    def put(self, key: str, token: int, state: bytes) -> None:
        if token < self.states.get(key, (0, b""))[0]:
            raise StaleToken(key=f"{NAMESPACE}/{key}", token=token)
        self.states[key] = token, state

    def changes(self, key: str) -> str:
        return self.states.get(key, (0, b""))[1].decode()


class BrokerStore:
    """The store of one broker. A save that failed may be carried out before the next one."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.is_dead = False

    async def load(self, namespace: str, key: str) -> bytes | None:
        await self._answer()
        late = self._shelf.late.pop(key, None)
        if late is not None and self._shelf.rng.random() < 0.5:
            with suppress(StaleToken):
                self._shelf.put(key, *late)
        return self._shelf.states.get(key, (0, None))[1]

    async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
        rng = self._shelf.rng
        self._shelf.late.pop(key, None)
        try:
            await self._answer()
        except OSError:
            if not self.is_dead and rng.random() < 0.5:
                self._shelf.late[key] = token, state
            raise
        self._shelf.put(key, token, state)
        await self._answer()

    async def _answer(self) -> None:
        for _ in range(self._shelf.rng.randrange(3)):
            await asyncio.sleep(0)
        if self.is_dead or (self._shelf.fails and self._shelf.rng.random() < FAILURES):
            raise OSError("no answer")


@dataclass(slots=True)
class Hunt:
    """One seed. `answered` are the changes by key, without those that may be lost. `failed` are
    those of calls that raised.
    """

    rng: random.Random
    has_store: bool
    unsaved_ms: int
    shelf: Shelf = field(init=False)
    cluster: MovingCluster[Ledgers] = field(init=False)
    stores: dict[Ledgers, BrokerStore] = field(default_factory=dict)
    answered: dict[str, set[str]] = field(default_factory=lambda: {key: set() for key in KEYS})
    failed: set[str] = field(default_factory=set)
    slow: list[tuple[asyncio.Task[None], asyncio.Event]] = field(default_factory=list)
    ids: Iterable[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.shelf = Shelf(self.rng)
        at = self.rng.randrange(1, 60)
        self.cluster = MovingCluster(
            self.keyed, NAMESPACE, KEYS[0], at=at, patience_ms=30, serves_peers=True
        )

    def keyed(self) -> Ledgers:
        store = BrokerStore(self.shelf)
        keyed = Keyed(
            NAMESPACE,
            Ledger,
            store=store if self.has_store else None,
            idle_ms=self.rng.choice((0, 60_000)),
            unsaved_ms=self.unsaved_ms,
        )
        self.stores[keyed] = store
        return keyed

    # --- what callers do ---

    async def change(self, broker: str, key: str, released: asyncio.Event | None = None) -> None:
        """Change an object, and note the change if it was answered."""
        change, keyed = f"<{next(iter(self.ids))}>", self.cluster.service(broker)
        with suppress(PeerError, ValueError):
            async with keyed.at(key) as ledger:
                await self.pause()
                ledger.changes.append(change)
                if released is not None:
                    await released.wait()
                await self.pause()
                if self.rng.random() < 0.1:
                    self.failed.add(change)
                    raise ValueError("the call fails")
            if not self.stores[keyed].is_dead:
                self.answered[key].add(change)

    async def pause(self) -> None:
        for _ in range(self.rng.randrange(3)):
            await asyncio.sleep(0)

    def call(self) -> None:
        async def calls() -> None:
            brokers, keys = self.cluster.brokers, self.rng.choices(KEYS, k=6)
            await asyncio.gather(*(self.change(self.rng.choice(brokers), key) for key in keys))

        with suppress(DeadlineExceeded):  # A slow call has one of the keys. These are cancelled.
            self.cluster.call(calls(), within_ms=30_000)

    def call_slowly(self) -> None:
        """Begin a call that other deeds do not wait for. A close that waits for it overruns, which
        only what is saved outlives.
        """
        if self.unsaved_ms:
            return
        key, released = self.rng.choice(KEYS), asyncio.Event()
        broker = self.owner(key) or self.cluster.brokers[0]

        async def begin() -> None:
            task = asyncio.ensure_future(self.change(broker, key, released))
            self.slow.append((task, released))

        self.cluster.call(begin())
        if not self.has_store:
            self.outlast(key, broker)

    def outlast(self, key: str, broker: str) -> None:
        """Let a slow call end after its key has been elsewhere and come back."""
        bundle, away = self.cluster.bundle(NAMESPACE, key), min({*self.cluster.brokers} - {broker})
        with suppress(PeerError):
            self.cluster.give(bundle, away)
        self.cluster.advance(60_000)
        for answered in self.answered.values():
            answered.clear()
        self.call()
        with suppress(PeerError):
            self.cluster.give(bundle, broker)
        self.call()
        self.release()

    def release(self) -> None:
        async def end() -> None:
            for task, released in self.slow:
                released.set()
                await task

        self.cluster.call(end(), within_ms=30_000)
        self.slow.clear()

    # --- what happens to brokers ---

    def owner(self, key: str) -> str | None:
        try:
            return self.cluster.owner(self.cluster.bundle(NAMESPACE, key))
        except (NotFound, CallerError):
            return None

    def move(self) -> None:
        bundle = self.rng.choice(self.cluster.bundles(NAMESPACE))
        with suppress(PeerError, NotFound):
            self.cluster.give(bundle, self.rng.choice(self.cluster.brokers))

    def reshape(self) -> None:
        bundle = self.rng.choice(self.cluster.bundles(NAMESPACE))
        with suppress(PeerError, CallerError):
            self.rng.choice((self.cluster.split, self.cluster.merge))(bundle)

    def kill(self) -> None:
        """Kill a broker. What only its memory had may be lost."""
        if not self.has_store or len(self.cluster.brokers) == 1:
            return
        broker = self.rng.choice(self.cluster.brokers)
        if self.unsaved_ms:
            for key, answered in self.answered.items():
                if self.owner(key) in (broker, None):
                    stored = self.shelf.changes(key)
                    answered -= {change for change in answered if change not in stored}
        self.stores[self.cluster.service(broker)].is_dead = True
        self.cluster.kill(broker)
        self.cluster.advance(20_000)
        self.cluster.start(broker)

    def forget(self) -> None:
        """Have what nobody uses dropped from memory."""
        for broker in self.cluster.brokers:
            self.cluster.service(broker).load()

    def fail(self) -> None:
        self.shelf.fails = not self.shelf.fails

    # --- what must hold ---

    async def read(self, key: str) -> list[str]:
        while True:
            for broker in self.cluster.brokers:
                with suppress(PeerError):
                    async with self.cluster.service(broker).at(key) as ledger:
                        return list(ledger.changes)

    def check(self) -> None:
        """Compare what was answered with what is there: in memory, and in the store."""
        for key, answered in self.answered.items():
            changes = Counter(self.cluster.call(self.read(key), within_ms=60_000))
            twice = [change for change, times in changes.items() if times > 1]
            require(not twice, f"each change is made once: {key} has {twice} twice")
            failed = self.failed & changes.keys()
            require(not failed, f"a call that failed changes nothing: {key} has {failed}")
            lost = answered - changes.keys()
            require(not lost, f"no answered change is lost: {key} lacks {sorted(lost)}")

    def check_store(self) -> None:
        for key, answered in self.answered.items():
            lost = {change for change in answered if change not in self.shelf.changes(key)}
            require(not lost, f"the store has what was answered: it lacks {sorted(lost)} of {key}")

    def play(self) -> None:
        deeds: tuple[Callable[[], None], ...] = (
            self.call,
            self.call,
            self.call,
            self.call_slowly,
            self.release,
            self.move,
            self.move,
            self.reshape,
            self.kill,
            self.forget,
            self.fail,
        )
        with self.cluster:
            self.cluster.create(NAMESPACE, bundles=self.rng.choice((1, 2)))
            for _ in range(self.rng.randrange(4, DEEDS_MAX)):
                self.rng.choice(deeds)()
                if self.has_store and not self.unsaved_ms:
                    self.check_store()
            self.shelf.fails = False
            self.release()
            self.cluster.advance(20_000)
            self.check()
            if self.has_store:
                for bundle in self.cluster.bundles(NAMESPACE):  # A move saves what is unsaved.
                    others = set(self.cluster.brokers) - {self.cluster.owner(bundle)}
                    with suppress(PeerError):
                        self.cluster.give(bundle, min(others))
                self.check_store()


def play(seed: int) -> None:
    """Play one seed."""
    rng = random.Random(seed)
    has_store = rng.random() < 0.8
    unsaved_ms = rng.choice((0, 0, 2, 3_600_000)) if has_store else 0
    with patch("equipoise.brokers.sharded.saving._LAST_PAUSE_S", 0.01):
        Hunt(rng, has_store, unsaved_ms).play()


if __name__ == "__main__":
    sys.exit(hunting.hunt(SCENARIO, play))
