"""Kill compactors at random moments: nothing is lost, and the next compactor
continues.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.core.codec import decode
from equipoise.channel.core.log import Log
from equipoise.channel.core.view import View, apply
from equipoise.channel.log.open_log import open_log
from equipoise.compaction.retention import Retention
from tests.channels.compacting import (
    TIMEOUT_MS,
    all_of,
    all_rows,
    image_of,
    marker_in,
    restored_to_end,
    told_by,
)
from tests.channels.walk import Walk
from tests.integration.compaction_process import Death, Lived, compact_and_die
from tests.kafka.fixtures import Kafka
from tests.repeats import times

# On Kafka each compactor claims a transactional id, which takes up to a second.
pytestmark = [pytest.mark.integration, pytest.mark.repeats, pytest.mark.timeout(1_800)]

DEADLINE_SECONDS = 60.0
DEATHS = times(8, many=50)
SEEDS = times(1, many=4)
RECORDS_BETWEEN = 30

# Each child is forked from a clean process that has all imported, so it starts fast.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.integration.compaction_process"])


class LiveChannel:
    """A random walk that is appended to a log as it goes, and the view that it comes to."""

    def __init__(self, log: Log, *, seed: int) -> None:
        self.log = log
        self.view = View()
        self._digests: dict[int, int] = {}
        self._walk = Walk(seed)
        self._random = random.Random(seed)

    def go_on(self) -> None:
        """Append some more records."""
        for _ in range(self._random.randrange(1, 2 * RECORDS_BETWEEN)):
            data = self._walk.next_data()
            [offset] = self.log.append([data], timeout_ms=TIMEOUT_MS)
            self._walk.entries.append((offset, data))
            apply(self.view, offset, decode(data))
            self._digests[self.view.offset] = self.view.digest()

    def check(self) -> None:
        """Whoever restores now comes to the view that all records come to, and whoever looks back
        to views that were.
        """
        assert all_of(self.view) == all_of(restored_to_end(self.log))
        assert told_by(self.log).items() <= self._digests.items()

    def fold_from_zero(self) -> View:
        """Once more all that was ever appended, whatever is left of it."""
        view = View()
        for offset, data in self._walk.entries:
            apply(view, offset, decode(data))
        return view


# A claim on Kafka takes up to a second, and each step has several.
@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.soak)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log that processes share."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/log.db"
    kafka: Kafka = request.getfixturevalue("kafka")
    return f"kafka://{kafka.address}/{kafka.topic('crashes')}"


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """A handle on it."""
    with closing(open_log(url)) as made:
        yield made


def run(url: str, death: Death = Death(), *, kept: int = 0) -> Lived | None:  # noqa: B008 - a value
    """Run a compactor until it ends or dies; None if it died, as it was meant to."""
    told = _context.SimpleQueue()
    process = _context.Process(
        target=compact_and_die, args=(url, Retention(unit="offsets", amount=kept), death, told)
    )
    process.start()
    process.join(DEADLINE_SECONDS)
    assert process.exitcode in (0, -signal.SIGKILL)
    lived = None if process.exitcode else told.get()
    told.close()
    return lived


def compacts_whole(channel: LiveChannel, url: str) -> Lived:
    """The next compactor finishes what others left, and holds what a fold from zero holds."""
    lived = run(url)
    assert lived is not None
    assert lived.error is None
    channel.check()
    assert all_rows(channel.view) == image_of(channel.log).rows
    assert (channel.view.offset, channel.view.offset + 1) == (
        marker_in(channel.log).horizon,
        channel.log.start(),
    )
    return lived


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_compactor_dies_anywhere(log: Log, url: str, seed: int) -> None:
    """Killed before any of its SQL statements, or at any time, it leaves the same channel; another
    one, sooner or later, goes on.
    """
    rng = random.Random(seed)
    channel = LiveChannel(log, seed=10 + seed)
    channel.go_on()
    whole = compacts_whole(channel, url)
    deaths = 0
    while deaths < DEATHS:
        channel.go_on()
        lived = run(url, _any_death(rng, whole), kept=rng.choice((0, 0, 5, 50)))
        channel.check()
        deaths += lived is None
        assert lived is None or lived.error is None, lived
        if lived is None and rng.random() < 0.2:
            whole = compacts_whole(channel, url)
    compacts_whole(channel, url)
    assert all_of(channel.fold_from_zero()) == all_of(restored_to_end(log))


def _any_death(rng: random.Random, whole: Lived) -> Death:
    """A moment within a compaction that takes as long as this one did."""
    if whole.statements:
        return Death(statement=rng.randrange(1, whole.statements + 1))
    return Death(after_ms=rng.uniform(0, whole.took_ms))
