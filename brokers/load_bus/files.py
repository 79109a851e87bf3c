"""The load bus of one machine: one small file for each broker, in a folder beside the log.

May live here: `FileLoadBus`, and the spelling of a report as a file. A file rather than a table: there is one writer for
each, it replaces the file whole, nobody waits for anybody, and what a crash leaves behind is one old report.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from brokers.errors import InvalidLoad, LoadBusUnavailable
from brokers.load import Report

# A file that its broker has not replaced for an hour tells of a broker that is gone: whoever reads it takes it away.
KEPT_SECONDS: Final = 3_600

# A broker that owns all 65,536 bundles of the largest namespace writes 11 MB. What is larger is no report of ours.
REPORT_BYTES_MAX: Final = 16 << 20

# Ten times the brokers for which one machine is meant; any more files are left unread.
REPORTS_MAX: Final = 1_000

_SUFFIX: Final = ".json"
_REPORT: Final = TypeAdapter(Report)


class FileLoadBus:
    """A handle on the bus in `folder`, which is made with the first report; its parent must exist. See `LoadBus`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def publish(self, report: Report) -> None:
        """See `LoadBus.publish`. Nothing is fsynced: after a power cut the next interval brings a report anyway."""
        # Not named by the id itself, which may hold characters, or be of a length, that no file's name may.
        path = self._folder / f"{hashlib.sha256(report.broker.encode()).hexdigest()[:32]}{_SUFFIX}"
        unfinished = path.with_suffix(".unfinished")
        try:
            self._folder.mkdir(exist_ok=True)
            unfinished.write_bytes(_REPORT.dump_json(report))
            unfinished.replace(path)  # Readers see the former report, or this one as a whole.
        except OSError as error:
            raise self._unavailable(error) from error

    def latest(self) -> Sequence[Report]:
        """See `LoadBus.latest`."""
        try:
            reports = list(self._read_all())
        except FileNotFoundError:
            return []  # Nobody has published anything yet.
        except OSError as error:
            raise self._unavailable(error) from error
        return sorted(reports, key=lambda report: report.broker)

    def _read_all(self) -> Iterator[Report]:
        """Every report that can be read, of files that are young enough; the others go."""
        oldest = time.time() - KEPT_SECONDS
        with os.scandir(self._folder) as entries:
            paths = sorted(Path(entry) for entry in entries if entry.name.endswith(_SUFFIX))
        for path in paths[:REPORTS_MAX]:
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
                    continue
                with path.open("rb") as file:
                    data = file.read(REPORT_BYTES_MAX + 1)
            except FileNotFoundError:
                continue  # Another reader has just taken it away.
            if len(data) <= REPORT_BYTES_MAX and (report := _parsed(data)) is not None:
                yield report

    def _unavailable(self, error: OSError) -> LoadBusUnavailable:
        return LoadBusUnavailable(bus=str(self._folder), problem=str(error))


def _parsed(data: bytes) -> Report | None:
    """The report that a file holds; None if it holds none."""
    try:
        return _REPORT.validate_json(data)
    except (ValidationError, InvalidLoad):
        return None
