"""Read and write load traces as CSV or Parquet files.

A trace is two files: FILE has the loads, and FILE with `.brokers` before its suffix has the
brokers. Public traces of stores and brokers fit in after a rename of their columns. Rows may have
any order.

* Loads: a row for each bundle and step. `time_s` is the start of the step in seconds (any origin),
  `bundle` a name, and `load` what it takes of its broker, in any unit.
* Brokers: a row for each. `broker` is an id, `capacity` in units of load, `joins_s` and `leaves_s`
  on the clock of `time_s`, empty if the broker is there at the start and at the end. Without this
  file, brokers of equal capacity are made, half used at the start.

Each mistake is an error that names the file and the line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from equipoise.channel.core.errors import CallerError
from equipoise.lab.traces import (
    COMPARED,
    KINDS,
    LOADS_MAX,
    SCALE,
    Loads,
    Shape,
    Trace,
    TraceBroker,
    Traces,
    equal_brokers,
    generated,
)

LOAD_COLUMNS: Final = ("time_s", "bundle", "load")
BROKER_COLUMNS: Final = ("broker", "capacity", "joins_s", "leaves_s")
SUFFIXES: Final = (".csv", ".parquet")

# Unix time in seconds until the year 5138. A larger time is in milliseconds.
_TIME_MAX_S: Final = 1e11
_LOAD_MAX: Final = 1e12
_MISTAKES_SHOWN: Final = 40  # Characters of a wrong value in a message.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The columns of a file as texts or numbers, and how its rows are called."""

    path: Path
    columns: dict[str, Sequence[object]]
    first_line: int

    def mistake(self, row: int, problem: str) -> CallerError:
        """Return the error for a row."""
        unit = "line" if self.path.suffix == ".csv" else "row"
        return CallerError(f"the trace {self.path}, {unit} {row + self.first_line}: {problem}")

    def numbers(
        self, column: str, *, empty: float | None = None, at_most: float, advice: str
    ) -> Loads:
        """Return a column as numbers from 0 to `at_most`. `empty`: what an empty value means; None:
        it is a mistake.
        """
        values = self.columns[column]
        numbers = np.empty(len(values))
        for row, value in enumerate(values):
            number = empty if value in ("", None) else _number(value)
            if number is None:
                raise self.mistake(
                    row, f"{column} is {str(value)[:_MISTAKES_SHOWN]!r}, not a number"
                )
            if number != empty and not 0 <= number <= at_most:
                raise self.mistake(row, f"{column} is {number}; {advice}")
            numbers[row] = number
        return numbers

    def names(self, column: str) -> list[str]:
        """Return a column of names."""
        names = [str(value) for value in self.columns[column]]
        for row, value in enumerate(self.columns[column]):
            if value in ("", None):
                raise self.mistake(row, f"{column} is empty")
        return names


def traces_named(names: Sequence[str], shape: Shape) -> dict[str, Traces]:
    """Return a function that makes the trace, for each name of a file or of a kind. Files are read
    at once. Raises `CallerError`.
    """
    made: dict[str, Traces] = {}
    for name in names:
        if name.endswith(SUFFIXES):
            made[name] = partial(_same, read_trace(Path(name), brokers=shape.brokers))
        elif name in COMPARED:
            kind, _, scale = name.partition("@")
            scaled = replace(shape, load=shape.load * int(scale or 1))
            made[name] = partial(_generated, kind, scaled)
        else:
            raise CallerError(
                f"there is no trace {name!r}: name a file (.csv, .parquet), or one of"
                f" {', '.join(KINDS)}, each also with @{SCALE}"
            )
    return made


def _same(trace: Trace, _seed: int) -> Trace:
    return trace


def _generated(kind: str, shape: Shape, seed: int) -> Trace:
    return generated(kind, shape, seed=seed)


def read_trace(path: Path, *, brokers: int = 20) -> Trace:
    """Return the trace in a file. `brokers` is the number of brokers if there is no file of
    brokers.

    Raises `CallerError` for a file that cannot be read, and for a hole, an unknown column, or an
    impossible value in it.
    """
    table = _read(path, LOAD_COLUMNS)
    times = table.numbers(
        "time_s", at_most=_TIME_MAX_S, advice="it must be seconds: divide milliseconds by 1,000"
    )
    values = table.numbers(
        "load", at_most=_LOAD_MAX, advice=f"it must be a load from 0 to {_LOAD_MAX:.0e}"
    )
    names, columns = np.unique(np.array(table.names("bundle")), return_inverse=True)
    starts, step_s = _steps(table, times)
    rows = np.searchsorted(starts, times)
    if len(starts) * len(names) > LOADS_MAX:
        raise CallerError(
            f"the trace {path} has {len(starts)} steps of {len(names)} bundles; at most"
            f" {LOADS_MAX:,} loads fit"
        )
    loads = np.full((len(starts), len(names)), np.nan)
    row = _first_repeated(np.ravel_multi_index((rows, columns), loads.shape))
    if row is not None:
        raise table.mistake(row, f"{names[columns[row]]} has a second load at {times[row]:g} s")
    loads[rows, columns] = values
    if np.isnan(loads).any():
        step, column = np.argwhere(np.isnan(loads))[0]
        last = int(np.flatnonzero(rows == step)[-1])
        raise table.mistake(
            last,
            f"after it, {names[column]} has no load at {starts[step]:g} s; write 0 for a bundle"
            " without load",
        )
    bundles = tuple(str(name) for name in names)
    brokers_path = path_of_brokers(path)
    found = (
        _brokers_in(brokers_path, float(starts[0]))
        if brokers_path.exists()
        else equal_brokers(loads, brokers)
    )
    return Trace(name=path.stem, step_s=step_s, bundles=bundles, brokers=found, loads=loads)


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace to a file and the file of its brokers, in the format of their suffix. Raises
    `CallerError`, and `OSError`.
    """
    loads: dict[str, list[object]] = {column: [] for column in LOAD_COLUMNS}
    for step, row in enumerate(trace.loads.round(3).tolist()):
        loads["time_s"] += [step * trace.step_s] * len(row)
        loads["bundle"] += trace.bundles
        loads["load"] += row
    brokers: dict[str, list[object]] = {
        "broker": [broker.broker for broker in trace.brokers],
        "capacity": [broker.capacity for broker in trace.brokers],
        "joins_s": [broker.joins_s or None for broker in trace.brokers],
        "leaves_s": [broker.leaves_s for broker in trace.brokers],
    }
    _write(path, loads)
    _write(path_of_brokers(path), brokers)


def description_of(trace: Trace, path: Path) -> tuple[str, dict[str, object]]:
    """Return what `write_trace` has written, as a sentence and as a JSON object."""
    brokers = path_of_brokers(path)
    facts = {
        "trace": str(path),
        "brokers_file": str(brokers),
        "steps": len(trace.loads),
        "bundles": len(trace.bundles),
    }
    sentence = (
        f"wrote {len(trace.loads)} steps of {len(trace.bundles)} bundles to {path}, and their"
        f" brokers to {brokers}"
    )
    return sentence, facts


def path_of_brokers(path: Path) -> Path:
    """Return the path of the file with the brokers of a trace."""
    return path.with_name(f"{path.stem}.brokers{path.suffix}")


def _steps(table: _Table, times: Loads) -> tuple[Loads, float]:
    """Return the starts of the steps, and their length."""
    starts, first_rows = np.unique(times, return_index=True)
    if len(starts) < 2:  # noqa: PLR2004 - with one step there is no length
        raise table.mistake(
            0, "there are fewer than two steps; a trace needs at least two values of time_s"
        )
    lengths = np.diff(starts)
    # A length that occurs, for the message.
    step_s = float(np.quantile(lengths, 0.5, method="lower"))
    uneven = np.flatnonzero(np.abs(lengths - step_s) > step_s / 100)
    if len(uneven):
        place = int(uneven[0]) + 1
        problem = (
            f"the step before {starts[place]:g} s lasts {lengths[place - 1]:g} s, most last"
            f" {step_s:g} s; steps must be equal"
        )
        raise table.mistake(int(first_rows[place]), problem)
    return starts, step_s


def _first_repeated(places: NDArray[np.int64]) -> int | None:
    """Return the index of the first value that has been there before, or None."""
    repeated = np.ones(len(places), bool)
    repeated[np.unique(places, return_index=True)[1]] = False
    return int(np.argmax(repeated)) if repeated.any() else None


def _brokers_in(path: Path, start_s: float) -> tuple[TraceBroker, ...]:
    table = _read(path, BROKER_COLUMNS)
    advice = "it must be positive"
    names = table.names("broker")
    capacities = table.numbers("capacity", at_most=_LOAD_MAX, advice=advice).tolist()
    joins = table.numbers("joins_s", empty=-math.inf, at_most=_TIME_MAX_S, advice=advice).tolist()
    leaves = table.numbers("leaves_s", empty=math.inf, at_most=_TIME_MAX_S, advice=advice).tolist()
    for row, capacity in enumerate(capacities):
        if capacity == 0:
            raise table.mistake(row, f"capacity is 0; {advice}")
    return tuple(
        TraceBroker(
            broker=name,
            capacity=capacity,
            joins_s=max(0.0, joins_s - start_s),
            leaves_s=None if leaves_s == math.inf else leaves_s - start_s,
        )
        for name, capacity, joins_s, leaves_s in zip(names, capacities, joins, leaves, strict=True)
    )


# --- the two formats ---


def _read(path: Path, expected: Sequence[str]) -> _Table:
    """Return the table in a file with the `expected` columns, in any order."""
    check_suffix(path)
    try:
        table = (
            _read_csv(path, expected) if path.suffix == ".csv" else _read_parquet(path, expected)
        )
    except OSError as error:
        raise CallerError(f"the trace {path} cannot be read: {error.strerror or error}") from error
    if not next(iter(table.columns.values())):
        raise table.mistake(0, "there are no rows")
    return table


def _read_csv(path: Path, expected: Sequence[str]) -> _Table:
    columns: list[list[object]] = [[] for _ in expected]
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _rows(csv.reader(file), path)
        header = [name.strip() for name in next(lines, [])]
        _check_header(path, header, expected)
        for number, row in enumerate(lines, start=2):
            if len(row) != len(header):
                raise CallerError(
                    f"the trace {path}, line {number}: it has {len(row)} values, not {len(header)}"
                )
            for column, value in zip(columns, row, strict=True):
                column.append(value.strip())
    return _Table(path=path, columns=dict(zip(header, columns, strict=True)), first_line=2)


def _rows(reader: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    try:
        yield from reader
    except (csv.Error, UnicodeDecodeError) as error:
        raise CallerError(f"the trace {path} is no CSV file in UTF-8: {error}") from error


def _read_parquet(path: Path, expected: Sequence[str]) -> _Table:
    from pyarrow import ArrowException, parquet  # noqa: PLC0415 - CSV files do not need it

    try:
        with path.open("rb") as file:
            table = parquet.read_table(file)
    except ArrowException as error:
        raise CallerError(f"the trace {path} is no Parquet file: {error}") from error
    _check_header(path, table.column_names, expected)
    return _Table(
        path=path, columns={name: table.column(name).to_pylist() for name in expected}, first_line=1
    )


def _check_header(path: Path, header: Sequence[str], expected: Sequence[str]) -> None:
    unknown = [name for name in header if name not in expected]
    missing = [name for name in expected if name not in header]
    place = f"the trace {path}, line 1" if path.suffix == ".csv" else f"the trace {path}"
    columns = f"the columns are {', '.join(expected)}"
    if unknown:
        raise CallerError(
            f"{place}: there is an unknown column {unknown[0][:_MISTAKES_SHOWN]!r}; {columns}"
        )
    if missing:
        raise CallerError(f"{place}: the column {missing[0]} is missing; {columns}")
    if len(set(header)) < len(header):
        raise CallerError(f"{place}: a column is there twice; {columns}")


def _write(path: Path, columns: dict[str, list[object]]) -> None:
    check_suffix(path)
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        return
    from pyarrow import Table, parquet  # noqa: PLC0415 - CSV files do not need it

    with path.open("wb") as file:
        parquet.write_table(Table.from_pydict(columns), file)


def check_suffix(path: Path) -> None:
    """Raise `CallerError` unless a trace may have this name."""
    if path.suffix not in SUFFIXES:
        raise CallerError(f"{path} is no trace: the name must end with {' or '.join(SUFFIXES)}")


def _number(value: object) -> float | None:
    """Return a value as a number; None if it is none. NaN counts as none."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return None if math.isnan(number) else number
