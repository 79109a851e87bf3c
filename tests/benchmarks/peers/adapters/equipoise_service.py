"""Shards by Equipoise."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from equipoise import Bundle, Deadline, Equipoise, Ownership, Peer, Service, Work
from tests.benchmarks.peers.program import SHARDS, Program
from tests.benchmarks.peers.shard_keys import shard_keys

NAMESPACE = "bench/peers"
KEYS = shard_keys()


class Adapter(Service):
    """Serves the shards that this program owns, each with its fencing token."""

    def __init__(self, program: Program, settings: Mapping[str, Any]) -> None:
        self._program = program
        self._owned: dict[int, Ownership] = {}
        broker = settings.get("broker", {})
        self._member = Equipoise(settings["log"], {NAMESPACE: self}, cluster="peers", **broker)

    async def start(self) -> None:
        await self._member.__aenter__()
        await self._member.create_namespace(NAMESPACE, bundles=SHARDS)

    async def stop(self) -> None:
        await self._member.__aexit__(None, None, None)

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        for shard in self._take(ownership):
            self._program.open(
                shard,
                token=ownership.token,
                good=partial(self._is_good, shard),
                work=partial(self._admit, shard),
                computing=ownership.account.charge,
            )

    def _is_good(self, shard: int) -> bool:
        return self._owned[shard].is_good

    def _admit(self, shard: int) -> Work:
        return self._owned[shard].admit(KEYS[shard])

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> None:
        await self._program.close(_shards(bundle))

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        for child in children:
            self._take(child)

    def _take(self, ownership: Ownership) -> Sequence[int]:
        shards = _shards(ownership.bundle)
        self._owned |= dict.fromkeys(shards, ownership)
        return shards


def _shards(bundle: Bundle) -> Sequence[int]:
    return [shard for shard, key in enumerate(KEYS) if bundle.contains(NAMESPACE, key)]
