"""Shards by the recipe `SetPartitioner` of kazoo."""

from collections.abc import Mapping
from typing import Any

from kazoo.client import KazooClient

from tests.benchmarks.peers.program import SHARDS, Program
from tests.benchmarks.peers.threads import InThread

WAIT_S = 1.0


class Adapter(InThread):
    """Serves its partition, as the documentation of the recipe does."""

    def __init__(self, program: Program, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._program, self._options = program, settings["partitioner"]
        self._zk = KazooClient(settings["hosts"], timeout=settings["session_s"])

    def run(self) -> None:
        self._zk.start()
        while not self.is_ending:
            partitioner = self._zk.SetPartitioner(
                "/partition",
                set=tuple(range(SHARDS)),
                identifier=self._program.name,
                state_change_event=self.changed,
                **self._options,
            )
            self._share(partitioner)
        self._zk.stop()

    def _share(self, partitioner: Any) -> None:  # noqa: ANN401 - kazoo is untyped
        """Serve partitions until the partitioner has failed, which is for good."""
        held: list[int] = []
        while not (self.is_ending or partitioner.failed):
            if partitioner.release:
                self._program.close_and_wait(held)
                held = []
                partitioner.release_set()
            elif partitioner.acquired and not held:
                held = list(partitioner)
                for shard in held:
                    self._program.open_soon(shard, good=lambda: not partitioner.failed)
            self.wait(WAIT_S)
        self._program.close_and_wait(held)
        partitioner.finish()
