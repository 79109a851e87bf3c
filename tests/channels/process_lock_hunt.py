"""Processes that hold a data directory, end and come back, while somebody deletes, copies or
replaces the lock file, and neighbours look at it. See tests.channels.hunting.
"""

from __future__ import annotations

import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from equipoise.brokers.runtime import data_directory
from equipoise.brokers.runtime.data_directory import DataDirectory, look_at
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system import process_lock
from equipoise.channel.system.process_lock import LockedFile
from tests.channels import hunting
from tests.channels.hunting import require

SCENARIO = "process-lock"
DEEDS_MAX = 30


@dataclass(frozen=True)
class Life:
    """One process that holds the directory. `lock` is what its `joined` says."""

    directory: DataDirectory
    lock: LockedFile
    instance_id: str


class Machine:
    """A machine with one data directory. Only a replaced lock file lets two processes hold it."""

    def __init__(self, rng: random.Random, path: Path) -> None:
        self.rng = rng
        self.path = path
        self.living: list[Life] = []
        self.lives: list[Life] = []
        self.is_touched = False  # Somebody has deleted or replaced the lock file.

    def start(self) -> None:
        if self.living and not self.is_touched:
            return
        try:
            directory = DataDirectory(self.path)
        except OperatorError:
            return
        instance_id = f"id-{len(self.lives)}"
        directory.write_instance_id(instance_id)
        if self.rng.random() < 1 / 2:
            directory.forget_instance_ids(instance_id)
        assert directory.lock is not None, "Linux has such locks"
        life = Life(directory, directory.lock, instance_id)
        self.living.append(life)
        self.lives.append(life)
        self.is_touched = False

    def end(self) -> None:
        if self.living:
            self.living.pop(self.rng.randrange(len(self.living))).directory.close()

    def touch(self) -> None:
        """Delete the lock file, or put a copy in its place."""
        lock = self.path / "lock"
        if lock.exists():
            self.is_touched = True
            copy = self.path / "copy"
            shutil.copyfile(lock, copy)
            lock.unlink()
            if self.rng.random() < 2 / 3:
                copy.rename(lock)

    def deed(self) -> None:
        self.rng.choice((self.start, self.start, self.end, self.end, self.touch))()

    def look(self) -> None:
        """Look at a lock as a neighbour, while more happens. What it finds must have ended."""
        life = self.rng.choice(self.lives)
        is_held = process_lock.is_held

        def slowly(file: int) -> bool:
            self.restart()
            held = is_held(file)
            self.restart()
            return held

        with mock.patch.object(data_directory, "is_held", slowly):
            try:
                is_proven = look_at(life.lock, life.instance_id).has_ended
            except FileNotFoundError:
                return
        if is_proven:
            require(life not in self.living, "a proof of death is of a process that has ended")

    def restart(self) -> None:
        if self.rng.random() < 1 / 3:
            self.rng.choice((self.start, self.end))()


def play(seed: int, path: Path) -> None:
    """One machine and what happens to it. At last, the end of each process is seen."""
    machine = Machine(random.Random(seed), path)
    machine.start()
    for _ in range(machine.rng.randrange(2, DEEDS_MAX)):
        machine.rng.choice((machine.deed, machine.look))()
    while machine.living:
        machine.end()
    machine.is_touched = False
    machine.start()
    (last,) = machine.living
    machine.end()
    require(look_at(last.lock, last.instance_id).has_ended, "the end of a process shows")


def hunt(seed: int) -> None:
    """Play one seed in a folder of its own."""
    with TemporaryDirectory(prefix="lock-") as folder:
        play(seed, Path(folder) / "data")


if __name__ == "__main__":
    sys.exit(hunting.hunt(SCENARIO, hunt))
