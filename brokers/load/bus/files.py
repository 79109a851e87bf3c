"""Exchange load reports on one machine, through one small file per broker in a folder beside the
log.

Files suit this better than a table: each has one writer, which replaces it as a whole, and nobody
waits. A crash leaves an old summary, whose averages let a restarted broker go on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from equipoise.brokers.errors import UnreadableLoad, load_bus_unavailable
from equipoise.brokers.load.bus.documents import SUMMARY_BYTES_MAX, decode_summary, encode_summary
from equipoise.brokers.runtime.failures import LoggedFailures
from equipoise.brokers.runtime.observations.records import (
    Kind,
    Observation,
    Observations,
    ObservationsUnavailable,
)
from equipoise.channel.core.errors import PeerError
from equipoise.channel.system import private_files
from equipoise.shedder.load_reports import Sample, Summary, summarized

# A file not replaced for an hour belongs to a broker that is gone; readers delete it.
KEPT_SECONDS: Final = 3_600

# Ten times the brokers that one machine is meant for. Further files are not read.
REPORTS_MAX: Final = 1_000

_SUFFIX: Final = ".json"

_logger: Final = logging.getLogger(__name__)


class FileLoadBus:
    """A handle on the load bus in `folder`, which is created with the first sample in an existing
    parent. See `LoadBus`.
    """

    def __init__(self, folder: Path, *, observations: Observations | None = None) -> None:
        """Each summary made here is also added to `observations`, if given. A failure of that is
        only logged.
        """
        self._folder = folder
        self._observations = observations
        self._failures: LoggedFailures | None = None

    def publish(self, sample: Sample) -> None:
        """See `LoadBus.publish`. Does not fsync: after a power failure the next interval brings a
        sample.
        """
        path = self._path_of(sample.broker)
        unfinished = path.with_suffix(".unfinished")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            summary = encode_summary(summarized(_read(path), sample))
            private_files.make(unfinished)
            unfinished.write_bytes(summary)
            unfinished.replace(path)  # Readers see the former summary or the whole new one.
        except OSError as error:
            raise self._unavailable(error) from error
        if self._observations is not None:
            self._keep(
                self._observations,
                Observation(at_ms=sample.at_ms, broker=sample.broker, document=summary),
            )

    def _keep(self, observations: Observations, summary: Observation) -> None:
        failures = self._failures = self._failures or LoggedFailures(
            _logger,
            broker=summary.broker,
            failed="load reports not stored",
            over="load reports are stored again",
        )
        try:
            observations.write(Kind.LOADS, [summary])
        except ObservationsUnavailable as error:
            failures.failed(error, time.monotonic_ns() // 1_000_000)
        else:
            failures.succeeded()

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
            return []  # Nothing has been published yet.
        except OSError as error:
            raise self._unavailable(error) from error
        return sorted(summaries, key=lambda summary: summary.broker)

    def _path_of(self, broker: str) -> Path:
        # A hash, since an id may hold characters or have a length that file names cannot.
        return self._folder / f"{hashlib.sha256(broker.encode()).hexdigest()[:32]}{_SUFFIX}"

    def _read_all(self) -> Iterator[Summary]:
        """Yield every readable summary of a recent file. Deletes old files."""
        oldest = time.time() - KEPT_SECONDS
        with os.scandir(self._folder) as entries:
            paths = sorted(Path(entry) for entry in entries if entry.name.endswith(_SUFFIX))
        for path in paths[:REPORTS_MAX]:
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
                    continue
            except FileNotFoundError:
                continue  # Another reader has just deleted it.
            if (summary := _read(path)) is not None:
                yield summary

    def _unavailable(self, error: OSError) -> PeerError:
        return load_bus_unavailable(bus=str(self._folder), problem=str(error))


def _read(path: Path) -> Summary | None:
    """Return the summary in a file, or None if there is no file or no summary in it."""
    try:
        with path.open("rb") as file:
            data = file.read(SUMMARY_BYTES_MAX + 1)
        return decode_summary(data) if len(data) <= SUMMARY_BYTES_MAX else None
    except (FileNotFoundError, UnreadableLoad):
        return None
