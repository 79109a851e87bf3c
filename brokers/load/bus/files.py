"""The load bus of one machine: one small file for each broker, in a folder beside the log.

May live here: `FileLoadBus`. A file rather than a table: there is one writer for each, it replaces the file whole, nobody
waits for anybody, and what a crash leaves behind is one old summary. The averages in it are all that a broker needs to go
on with them after a restart.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from equipoise.brokers.errors import LoadBusUnavailable, UnreadableLoad
from equipoise.brokers.load.bus.spelling import SUMMARY_BYTES_MAX, parse_summary, spell_summary
from equipoise.brokers.runtime.failures.told_failures import ToldFailures
from equipoise.brokers.runtime.observations.observed import Kind, Observation, Observations, ObservationsUnavailable
from equipoise.channel.system import private_files
from equipoise.shedder.load_reports import Sample, Summary, summarized

# A file that its broker has not replaced for an hour tells of a broker that is gone: whoever reads it takes it away.
KEPT_SECONDS: Final = 3_600

# Ten times the brokers for which one machine is meant; any more files are left unread.
REPORTS_MAX: Final = 1_000

_SUFFIX: Final = ".json"

_logger: Final = logging.getLogger(__name__)


class FileLoadBus:
    """A handle on the bus in `folder`, which is made with the first sample; its parent must exist. See `LoadBus`."""

    def __init__(self, folder: Path, *, observations: Observations | None = None) -> None:
        """Each summary made here is also added to `observations`, if there are any; that this fails is told, and no more."""
        self._folder = folder
        self._observations = observations
        self._failures: ToldFailures | None = None

    def publish(self, sample: Sample) -> None:
        """See `LoadBus.publish`. Nothing is fsynced: after a power cut the next interval brings a sample anyway."""
        path = self._path_of(sample.broker)
        unfinished = path.with_suffix(".unfinished")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            summary = spell_summary(summarized(_read(path), sample))
            private_files.make(unfinished)
            unfinished.write_bytes(summary)
            unfinished.replace(path)  # Readers see the former summary, or this one as a whole.
        except OSError as error:
            raise self._unavailable(error) from error
        if self._observations is not None:
            self._keep(self._observations, Observation(at_ms=sample.at_ms, broker=sample.broker, document=summary))

    def _keep(self, observations: Observations, summary: Observation) -> None:
        told = self._failures = self._failures or ToldFailures(
            _logger, broker=summary.broker, failed="load reports are not kept", over="load reports are kept again"
        )
        try:
            observations.write(Kind.LOADS, [summary])
        except ObservationsUnavailable as error:
            told.failed(error, time.monotonic_ns() // 1_000_000)
        else:
            told.succeeded()

    def withdraw(self, broker: str) -> None:
        """See `LoadBus.withdraw`."""
        try:
            self._path_of(broker).unlink(missing_ok=True)
        except OSError as error:
            raise self._unavailable(error) from error

    def latest(self) -> Sequence[Summary]:
        """See `LoadBus.latest`."""
        try:
            summaries = list(self._read_all())
        except FileNotFoundError:
            return []  # Nobody has published anything yet.
        except OSError as error:
            raise self._unavailable(error) from error
        return sorted(summaries, key=lambda summary: summary.broker)

    def _path_of(self, broker: str) -> Path:
        # Not named by the id itself, which may hold characters, or be of a length, that no file's name may.
        return self._folder / f"{hashlib.sha256(broker.encode()).hexdigest()[:32]}{_SUFFIX}"

    def _read_all(self) -> Iterator[Summary]:
        """Every summary that can be read, of files that are young enough; the others go."""
        oldest = time.time() - KEPT_SECONDS
        with os.scandir(self._folder) as entries:
            paths = sorted(Path(entry) for entry in entries if entry.name.endswith(_SUFFIX))
        for path in paths[:REPORTS_MAX]:
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
                    continue
            except FileNotFoundError:
                continue  # Another reader has just taken it away.
            if (summary := _read(path)) is not None:
                yield summary

    def _unavailable(self, error: OSError) -> LoadBusUnavailable:
        return LoadBusUnavailable(bus=str(self._folder), problem=str(error))


def _read(path: Path) -> Summary | None:
    """The summary that a file holds; None if there is no such file, or it holds none."""
    try:
        with path.open("rb") as file:
            data = file.read(SUMMARY_BYTES_MAX + 1)
        return parse_summary(data) if len(data) <= SUMMARY_BYTES_MAX else None
    except (FileNotFoundError, UnreadableLoad):
        return None
