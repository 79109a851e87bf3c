"""Names and ranges of the hash space: what holds for any text, any number of bundles and any
cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.channel.core.errors import CallerError, InvalidName
from equipoise.channel.core.ranges import (
    BUNDLES_MAX,
    HASH_MAX,
    bundle_contains,
    bundle_name,
    check_broker_id,
    check_cuts,
    check_namespace,
    children,
    even_boundaries,
    is_matched,
    parse_bundle,
    parse_range,
    parse_topic,
)
from tests.channels.model import fits

POINTS = st.integers(0, HASH_MAX)
RANGES = (
    st.tuples(POINTS, POINTS)
    .filter(lambda ends: ends[0] != ends[1])
    .map(lambda ends: (min(ends), max(ends)))
)
ENTITIES = st.text("abcXYZ019-=:._", min_size=1, max_size=12)
NAMESPACES = st.builds("{}/{}".format, ENTITIES, ENTITIES)
# Pieces of names and what they are confused with, so that many a text is a name but for one piece,
# and some are names.
PIECES = (
    "tenant",
    "/",
    "namespace",
    "0x00000000",
    "_",
    "0x40000000",
    "0xffffffff",
    "0xFFFFFFFF",
    "0x100000000",
    "0x",
    "ffff",
    "persistent",
    "non-persistent",
    "PERSISTENT",
    "per\u017fistent",
    "://",
    ":",
    "admin:",
    "127.0.0.1:8080",
    "-partition-",
    "0",
    " ",
    "\n",
    "\x00",
    "%20",
    "\u00e9",
    "\u0660",
    "\ud83d",
    "\U0001f600",
    "..",
)
NEARLY_NAMES = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
# Without a category left out: lone surrogates are text in Python too.
TEXTS = st.one_of(NEARLY_NAMES, st.text(st.characters(exclude_categories=())))

PARSERS: tuple[Callable[[str], object], ...] = (
    parse_bundle,
    parse_range,
    parse_topic,
    check_namespace,
    check_broker_id,
)


def holding(ranges: Sequence[tuple[int, int]], point: int) -> list[tuple[int, int]]:
    """The ranges that hold a point."""
    return [(low, high) for low, high in ranges if bundle_contains(low, high, point)]


def around(boundaries: Sequence[int]) -> list[int]:
    """The points on, before and behind boundaries, as far as there are such points."""
    return [
        point
        for boundary in boundaries
        for point in (boundary - 1, boundary, boundary + 1)
        if 0 <= point <= HASH_MAX
    ]


@pytest.mark.parametrize("parse", PARSERS)
@given(text=TEXTS)
def test_any_text_is_a_name_or_an_invalid_name(parse: Callable[[str], object], text: str) -> None:
    """Whatever the text, a parser answers with a value or with its own error, and the message can
    be printed.
    """
    try:
        parse(text)
    except InvalidName as refusal:
        str(refusal).encode()


@given(text=TEXTS)
def test_what_is_a_bundle_name_is_the_only_spelling(text: str) -> None:
    """What the parser takes is spelled as the name is written."""
    try:
        parsed = parse_bundle(text)
    except InvalidName:
        return
    assert text == bundle_name(*parsed)


@given(namespace=NAMESPACES, one=POINTS, other=POINTS)
def test_a_range_that_does_not_rise_has_no_name(namespace: str, one: int, other: int) -> None:
    """The parser compares the ends as text, which agrees with comparing them as numbers."""
    with pytest.raises(InvalidName, match="bundle name"):
        parse_bundle(bundle_name(namespace, max(one, other), min(one, other)))


@given(text=TEXTS)
def test_a_full_topic_name_stands_for_itself(text: str) -> None:
    """The full name of a topic is a topic's name, and of the same topic."""
    try:
        topic = parse_topic(text)
    except InvalidName:
        return
    assert topic == parse_topic(topic.full)
    assert topic.namespace == check_namespace(topic.namespace)


@given(count=st.integers(1, BUNDLES_MAX))
def test_even_bundles_cover_the_space_exactly_once(count: int) -> None:
    """Bundles hold all points together, and as many each, but that the last also holds what the
    division leaves over.
    """
    boundaries = even_boundaries(count)
    check_cuts(0, HASH_MAX, boundaries[1:-1])
    sizes = [high - low for low, high in pairwise(boundaries)]
    sizes[-1] += 1  # The only bundle that holds its high end.
    assert (count, HASH_MAX + 1) == (len(sizes), sum(sizes))
    assert sizes[:1] * (count - 1) == sizes[:-1]
    assert 0 <= sizes[-1] - sizes[0] < count


@given(ends=RANGES, cuts=st.lists(POINTS, max_size=4))
def test_cuts_pass_if_they_are_a_rising_set_of_points_inside(
    ends: tuple[int, int], cuts: list[int]
) -> None:
    """The check of cuts agrees with the obvious one: sorted, without repetition, and each strictly
    inside.
    """
    low, high = ends
    in_order = cuts == sorted(set(cuts)) and all(low < cut < high for cut in cuts)
    if in_order:
        check_cuts(low, high, cuts)
    else:
        with pytest.raises(CallerError, match="cannot be used"):
            check_cuts(low, high, cuts)


@given(ends=RANGES, data=st.data())
def test_children_cover_their_parent_exactly(ends: tuple[int, int], data: st.DataObject) -> None:
    """Each point of a parent lies in one child, and no point beyond it in any."""
    low, high = ends
    inside = st.integers(low + 1, max(high - 1, low + 1))
    cuts = sorted(data.draw(st.sets(inside, max_size=5 if high - low > 1 else 0)))
    check_cuts(low, high, cuts)
    ranges = children(low, high, cuts)
    points = [*around([low, *cuts, high]), data.draw(POINTS)]
    assert {point: int(bundle_contains(low, high, point)) for point in points} == {
        point: len(holding(ranges, point)) for point in points
    }


@given(
    pattern=st.text("*ab/", max_size=8),
    namespace=st.text("ab/", max_size=8),
)
def test_a_pattern_matches_what_some_way_through_it_gives(pattern: str, namespace: str) -> None:
    assert fits(pattern, namespace) == is_matched(pattern, namespace)


def test_a_pattern_of_many_stars_costs_no_time() -> None:
    assert not is_matched("*a" * 300 + "b", "a" * 600)
