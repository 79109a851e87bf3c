"""The decision vectors: all of them are equal, and the program that says so would tell if they were
not.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from tests.vectors.__main__ import FILES, differing, main
from tests.vectors.cases import HERE, files_of, read_cases
from tests.vectors.comparing import difference


def test_no_file_is_without_a_replay_and_none_without_its_file() -> None:
    """Each file that lies there has a module that answers it, and each such module its file."""
    assert sorted(FILES) == list(files_of(HERE))


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_case_is_equal(name: str) -> None:
    """Our rules answer each case of the file as Pulsar's classes did."""
    assert [] == differing(name, read_cases(name))


def test_the_count_is_told_and_the_exit_is_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of files, compressed or not, gets a line for each."""
    plain, packed = (
        "".join(json.dumps(case) + "\n" for case in read_cases(name)[:3])
        for name in ("broker_load_data", "conflict_rules")
    )
    (tmp_path / "broker_load_data.jsonl").write_text(plain, encoding="utf-8")
    (tmp_path / "conflict_rules.jsonl.gz").write_bytes(gzip.compress(packed.encode()))
    assert 0 == main([str(tmp_path)])
    assert [
        "broker_load_data 3 cases, 3 equal",
        "conflict_rules 3 cases, 3 equal",
    ] == capsys.readouterr().out.splitlines()


def test_a_difference_is_told_and_the_exit_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A case that we answer otherwise is named, with the way to the first difference."""
    case = read_cases("broker_load_data")[0]
    case["output"][0]["percent"][0] = 7.0
    (tmp_path / "broker_load_data.jsonl").write_text(json.dumps(case) + "\n", encoding="utf-8")
    assert 1 == main([str(tmp_path)])
    first, second = capsys.readouterr().out.splitlines()
    assert "broker_load_data 1 cases, 0 equal" == first
    assert f"  {case['id']}[0].percent[0]: expected 7.0, got 0.0" == second


def test_an_unknown_file_and_an_empty_folder_are_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody could replay is not passed over in silence."""
    assert 1 == main([str(tmp_path)])
    assert "there are no vectors" in capsys.readouterr().out
    (tmp_path / "novelty.jsonl").write_text("{}\n", encoding="utf-8")
    assert 1 == main([str(tmp_path)])
    assert "novelty: nobody here knows this file" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([1, "a", None, True], (1, "a", None, True)),
        ({"a": 1.0}, {"a": 1.0 + 1e-10}),
        (["NaN", "Infinity", "-Infinity"], [math.nan, math.inf, -math.inf]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_what_counts_as_equal(expected: object, actual: object) -> None:
    """Floating point may be off by a billionth part, and names of a mapping stand in any order."""
    assert difference(expected, actual) is None


@pytest.mark.parametrize(
    ("expected", "actual", "told"),
    [
        (1, 2, ": expected 1, got 2"),
        (1, 1.0, ": expected 1, got 1.0"),
        (1, True, ": expected 1, got True"),
        (1.0, math.nan, ": expected 1.0, got nan"),
        ({"a": [1.0, 1.0]}, {"a": [1.0, 1.0 + 1e-8]}, ".a[1]: expected 1.0, got 1.00000001"),
        ({"a": 1}, {"b": 1}, ": expected the names ['a'], got ['b']"),
        (["a", "b"], ["b", "a"], "[0]: expected 'a', got 'b'"),
        ([1], [], ": expected 1 of them, got 0: [1], []"),
        (None, [], ": expected None, got []"),
    ],
)
def test_what_counts_as_different(expected: object, actual: object, told: str) -> None:
    """Integers, names and order are exact, and the first difference is told with the way to it."""
    assert told == difference(expected, actual)
