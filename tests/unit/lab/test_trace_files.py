"""Trace files: what is written is read again, and each mistake in one is named with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.errors import CallerError
from equipoise.lab.trace_files import SUFFIXES, path_of_brokers, read_trace, write_trace
from equipoise.lab.traces import Shape, Trace, TraceBroker, generated

NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")),
    min_size=1,
    max_size=8,
)
HEADER = "time_s,bundle,load\n"


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    bundles = sorted(draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)))
    steps = draw(st.integers(2, 5))
    loads = np.array([[draw(st.integers(0, 10**9)) / 1_000 for _ in bundles] for _ in range(steps)])
    brokers = (
        TraceBroker(broker="a", capacity=draw(st.floats(0.1, 1e9))),
        TraceBroker(
            broker="b", capacity=1.0, joins_s=2.0, leaves_s=draw(st.sampled_from([None, 3.0]))
        ),
    )
    return Trace(
        name="trace",
        step_s=draw(st.sampled_from([0.25, 1.0, 10.0])),
        bundles=tuple(bundles),
        brokers=brokers,
        loads=loads,
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(trace=traces())
@settings(max_examples=20)
def test_a_written_trace_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, trace: Trace
) -> None:
    path = tmp_path_factory.mktemp("traces") / f"trace{suffix}"
    write_trace(trace, path)
    found = read_trace(path)
    assert (trace.name, trace.step_s, trace.bundles, trace.brokers) == (
        found.name,
        found.step_s,
        found.bundles,
        found.brokers,
    )
    assert np.array_equal(trace.loads, found.loads)


def test_without_a_file_of_brokers_equal_ones_are_half_used(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}0,a,10\n0,b,20\n5,b,20\n5,a,10\n")
    trace = read_trace(path, brokers=3)
    assert [20.0] * 3 == [broker.capacity for broker in trace.brokers]
    assert (5.0, [[10, 20], [10, 20]]) == (trace.step_s, trace.loads.tolist())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"{HEADER}0,a,1\n0,b,1\n1,a,1\n",
            "line 4: after it, b has no load at 1 s; write 0 for a bundle without load",
        ),
        (f"{HEADER}0,a,1\n0,a,1\n1,a,1\n", "line 3: a has a second load at 0 s"),
        (
            f"{HEADER}0,a,1\n1,a,1\n3,a,1\n4,a,1\n",
            "line 4: the step before 3 s lasts 2 s, most last 1 s; steps must be equal",
        ),
        (
            f"{HEADER}0,a,1\n10,a,1\n30,a,1\n",
            "line 4: the step before 30 s lasts 20 s, most last 10 s; steps must be equal",
        ),
        (f"{HEADER}0,a,1\n", "line 2: there are fewer than two steps"),
        (HEADER, "line 2: there are no rows"),
        (
            "time_s,bundle,load,cpu\n0,a,1,1\n",
            "line 1: there is an unknown column 'cpu'; the columns are time_s, bundle, load",
        ),
        (
            "time_s,bundle\n0,a\n",
            "line 1: the column load is missing; the columns are time_s, bundle, load",
        ),
        ("time_s,bundle,load,load\n", "line 1: a column is there twice"),
        (
            f"{HEADER}0,a,1\n1,a,-1\n",
            "line 3: load is -1.0; it must be a load from 0 to 1e+12",
        ),
        (f"{HEADER}0,a,nan\n1,a,1\n", "line 2: load is 'nan', not a number"),
        (f"{HEADER}0,a,inf\n1,a,1\n", "line 2: load is inf; it must be"),
        (f"{HEADER}0,a,much\n1,a,1\n", "line 2: load is 'much', not a number"),
        (
            f"{HEADER}1700000000000,a,1\n",
            "line 2: time_s is 1700000000000.0; it must be seconds: divide milliseconds by 1,000",
        ),
        (f"{HEADER}0,,1\n1,a,1\n", "line 2: bundle is empty"),
        (f"{HEADER}0,a\n1,a,1\n", "line 2: it has 2 values, not 3"),
        ("", "line 1: the column time_s is missing"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(CallerError) as refused:
        read_trace(path)
    assert str(refused.value).startswith(f"the trace {path}, {problem}")


def test_a_mistake_in_the_brokers_names_their_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    write_trace(replace(generated("steady", Shape(brokers=2, bundles=2, duration_s=20.0))), path)
    path_of_brokers(path).write_text("broker,capacity,joins_s,leaves_s\na,0,,\n")
    with pytest.raises(
        CallerError, match=r"trace\.brokers\.csv, line 2: capacity is 0; it must be positive"
    ):
        read_trace(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CallerError, match=r"is no (CSV file in UTF-8|Parquet file)"):
        read_trace(path)
    with pytest.raises(CallerError, match="cannot be read: No such file or directory"):
        read_trace(tmp_path / f"other{suffix}")
    with pytest.raises(CallerError, match=r"the name must end with \.csv or \.parquet"):
        read_trace(tmp_path / "trace.json")
