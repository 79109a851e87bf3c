"""Test the names of an archive's files, which of them count, and which are joined."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.spark_jobs.archive.tables.layout import (
    FileName,
    covered,
    day_folder,
    joined,
    joins,
    parse_day,
    parse_name,
    parse_part,
    part_name,
    resolved,
)

ALL = dict.fromkeys(range(10), 10**9)


def name(first: int, last: int | None = None, *, generation: int = 1) -> FileName:
    """Return the name of a file of these batches."""
    return FileName(generation=generation, first=first, last=first if last is None else last)


def texts(*names: FileName) -> list[str]:
    """Return names as texts."""
    return [each.text for each in names]


@given(st.integers(1, 9_999), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_name_survives_its_text(generation: int, first: int, more: int) -> None:
    """The name of a partial file is parsed by `parse_part` alone, all others by `parse_name`
    alone.
    """
    spelled = name(first, first + more, generation=generation)
    assert spelled == parse_name(spelled.text)
    assert spelled == parse_part(part_name(spelled.text))
    assert parse_name(part_name(spelled.text)) is None
    assert parse_part(spelled.text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x.parquet",
        "g1-b1.parquet",
        "g0001-b0000000002-0000000001.parquet",
        "g0001-b0000000001.parquet.crc",
        "part-0000.snappy.parquet",
    ],
)
def test_other_files_are_ignored(text: str) -> None:
    assert parse_name(text) is None
    assert () == resolved([text], ALL)


def test_a_day_survives_the_name_of_its_folder() -> None:
    assert "2026-11-22" == parse_day(day_folder("2026-11-22"))
    assert parse_day("day=__HIVE_DEFAULT_PARTITION__") is None


def test_a_file_within_another_is_not_read() -> None:
    """Files were joined twice. Only the last results count, in each generation by itself."""
    files = [
        name(0),
        name(1),
        name(2),
        name(0, 2),
        name(3),
        name(4),
        name(0, 4),
        name(5),
        name(0, generation=2),
        name(2, generation=2),
    ]
    random.Random(1).shuffle(files)
    expected = (name(0, 4), name(5), name(0, generation=2), name(2, generation=2))
    assert expected == resolved(texts(*files), ALL)
    assert (name(0), name(0, 2), name(1), name(2), name(3), name(4)) == covered(texts(*files))


def test_an_unfinished_batch_is_not_read() -> None:
    """Neither is a file of an unknown generation."""
    files = texts(name(0), name(1), name(2), name(0, generation=2), name(0, generation=3))
    assert (name(0), name(1), name(0, generation=2)) == resolved(files, {1: 1, 2: 0})


def test_a_joined_file_is_finished() -> None:
    """A reader may have read the manifest before further batches were finished and joined."""
    assert (name(0, 4), name(6)) == resolved(texts(name(0, 4), name(6), name(7)), {1: 6})
    assert (name(0, 4),) == resolved(texts(name(0, 4), name(5)), {1: 3})


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=30), st.integers(0, 2**32)
)
def test_each_batch_is_in_exactly_one_file_that_counts(
    widths: list[tuple[int, int]], seed: int
) -> None:
    """Neighbours are joined again and again, and a random part of the joined files remains."""
    rng, now, left = random.Random(seed), [name(batch) for batch in range(60)], set[FileName]()
    left.update(now)
    for place, width in widths:
        group = now[place : place + width + 2]
        if len(group) > 1:
            now[place : place + width + 2] = [joined(group)]
            left.add(joined(group))
            left -= {each for each in group if rng.random() < 1 / 2}
    found = resolved(texts(*left), ALL)
    assert list(range(60)) == [
        batch for each in found for batch in range(each.first, each.last + 1)
    ]


def test_neighbours_are_joined_up_to_a_size() -> None:
    """Runs end at the size, at large files, and between generations. Single files stay."""
    files = [(name(batch), 10) for batch in range(5)] + [
        (name(5), 1_000),
        (name(6), 10),
        (name(0, generation=2), 10),
    ]
    assert ((name(0), name(1), name(2)), (name(3), name(4))) == joins(
        files, size_max=35, files_min=2
    )
    assert ((name(0), name(1), name(2)),) == joins(files, size_max=35, files_min=3)
    assert () == joins(files, size_max=5, files_min=2)
    assert () == joins([], size_max=5, files_min=2)
