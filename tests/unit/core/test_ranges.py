"""Names and ranges of the hash space: Pulsar's own answers, then each rule of spelling by its
edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from equipoise.channel.core.errors import CallerError, InvalidName
from equipoise.channel.core.ranges import (
    BUNDLES_MAX,
    HASH_MAX,
    NAME_BYTES_MAX,
    TOPIC_BYTES_MAX,
    BundleName,
    TopicName,
    bundle_contains,
    bundle_name,
    check_broker_id,
    check_cuts,
    check_namespace,
    even_boundaries,
    key_hash,
    parse_bundle,
    parse_range,
    parse_topic,
    topic_hash,
)
from tests.vectors.cases import read_cases


@dataclass(frozen=True, kw_only=True)
class TopicCase:
    id: str
    topic: str
    point: int
    range_by_count: dict[int, str]


@dataclass(frozen=True, kw_only=True)
class BoundsCase:
    id: str
    count: int
    boundaries: tuple[int, ...]
    answer_by_point: dict[int, str]


VECTORS = read_cases("topic_hashing")
TOPIC_CASES = [
    TopicCase(
        id=case["id"],
        topic=case["input"]["topic"],
        point=case["output"]["hash"],
        range_by_count={int(count): name for count, name in case["output"]["bundleOf"].items()},
    )
    for case in VECTORS
    if "topic" in case["input"]
]
BOUNDS_CASES = [
    BoundsCase(
        id=case["id"],
        count=case["input"]["numBundles"],
        boundaries=tuple(int(boundary, 16) for boundary in case["output"]["boundaries"]),
        answer_by_point={
            int(point): answer for point, answer in case["output"]["bundleOfHash"].items()
        },
    )
    for case in VECTORS
    if "numBundles" in case["input"]
]

NAMESPACE = "tenant/namespace"
# Its CRC-32 is 0xffffffff, the one point for which Pulsar finds no bundle.
TOPIC_AT_HASH_MAX = "persistent://public/default/last-point-mrucevxz"


def holders(count: int, point: int) -> list[str]:
    """The ranges, by name, that hold a point in a namespace of so many even bundles: one, if all is
    well.
    """
    ranges = [
        (low, high)
        for low, high in pairwise(even_boundaries(count))
        if bundle_contains(low, high, point)
    ]
    return [bundle_name(NAMESPACE, low, high).removeprefix(f"{NAMESPACE}/") for low, high in ranges]


def test_no_vector_is_left_out() -> None:
    """Each of the 54 vectors is a case of a topic or a case of boundaries."""
    assert (50, 4) == (len(TOPIC_CASES), len(BOUNDS_CASES))


@pytest.mark.parametrize("case", TOPIC_CASES, ids=lambda case: case.id)
def test_a_topic_comes_to_the_point_and_the_bundle_of_pulsar(case: TopicCase) -> None:
    """A topic hashes to the point that it has in Pulsar, and lies in the same bundle however many
    there are. Its name is canonical.
    """
    assert case.topic == parse_topic(case.topic).full
    assert case.point == topic_hash(case.topic)
    assert {count: [name] for count, name in case.range_by_count.items()} == {
        count: holders(count, case.point) for count in case.range_by_count
    }


@pytest.mark.parametrize("case", BOUNDS_CASES, ids=lambda case: case.id)
def test_a_new_namespace_has_the_boundaries_of_pulsar(case: BoundsCase) -> None:
    """A new namespace is cut where Pulsar cuts it."""
    assert case.boundaries == even_boundaries(case.count)


@pytest.mark.parametrize("case", BOUNDS_CASES, ids=lambda case: case.id)
def test_points_at_the_edges_lie_in_the_bundle_of_pulsar(case: BoundsCase) -> None:
    """Points at the edges of bundles lie where Pulsar finds them, save that we also find the last
    one of all.
    """
    expected = {point: [answer] for point, answer in case.answer_by_point.items()}
    # Pulsar's range of the last bundle holds this point too, only its search runs past the end of
    # the list.
    assert ["error:IndexOutOfBoundsException"] == expected[HASH_MAX]
    expected[HASH_MAX] = expected[HASH_MAX - 1]
    assert expected == {point: holders(case.count, point) for point in case.answer_by_point}


@pytest.mark.parametrize(
    ("topic", "point"),
    [
        ("non-persistent://public/default/t", 0xC9179F49),
        ("persistent://public/default/t-partition-0", 0x3DA51034),
        (TOPIC_AT_HASH_MAX, HASH_MAX),
    ],
)
def test_domain_and_partition_are_hashed_too(topic: str, point: int) -> None:
    """The whole name is hashed, domain and partition suffix included."""
    assert point == topic_hash(topic)


def test_a_key_is_hashed_like_a_topic_and_no_key_breaks_it() -> None:
    """A key's point is the CRC-32 of its UTF-8 bytes, and what UTF-8 cannot express counts as a
    question mark.
    """
    assert 0xCBF43926 == key_hash("123456789")
    assert 0 == key_hash("")
    assert key_hash("half ?") == key_hash("half \ud83d")


def test_the_greatest_number_of_bundles_fits_one_record() -> None:
    """All boundaries of the largest new namespace, spelled out, take less than nine tenths of a
    record of 1 MiB.
    """
    spelled = ",".join(f'"0x{boundary:08x}"' for boundary in even_boundaries(BUNDLES_MAX))
    assert len(spelled) < 0.9 * 2**20


@pytest.mark.parametrize("count", [-1, 0, BUNDLES_MAX + 1])
def test_a_namespace_starts_with_a_bounded_number_of_bundles(count: int) -> None:
    """A number of bundles that no namespace can start with is refused with the number and the
    bound.
    """
    with pytest.raises(CallerError, match=f"{count} bundles.* 1 to {BUNDLES_MAX}"):
        even_boundaries(count)


def test_a_bundle_name_is_taken_apart() -> None:
    """A bundle's name holds its namespace and the two ends of its range."""
    assert BundleName("a-1/b=c:d.e_f", 0x40000000, 0x8000000A) == parse_bundle(
        "a-1/b=c:d.e_f/0x40000000_0x8000000a"
    )
    assert "a/b/0x00000000_0xffffffff" == bundle_name("a/b", 0, HASH_MAX)


WRONG_RANGES = {
    "empty": "",
    "upper case": "0x0000000A_0x40000000",
    "upper case prefix": "0X00000000_0x40000000",
    "short": "0x0_0x40000000",
    "long": "0x00000000_0x100000000",
    "no prefix": "00000000_40000000",
    "low is high": "0x40000000_0x40000000",
    "low above high": "0x40000001_0x40000000",
    "newline at the end": "0x00000000_0x40000000\n",
    "blank at the start": " 0x00000000_0x40000000",
    "digits of another script": "0x\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660_0x40000000",
    "minus": "0x00000000-0x40000000",
    "no end": "0x00000000_",
}
WRONG_NAMESPACES = {
    "empty": "",
    "one part": "tenant",
    "three parts": "tenant/cluster/namespace",
    "no tenant": "/namespace",
    "no namespace": "tenant/",
    "blank": "ten ant/namespace",
    "newline at the end": "tenant/namespace\n",
    "letter beyond ASCII": "tenant/nam\u00e9space",
    "percent": "tenant/a%20b",
    "backslash": "tenant\\namespace",
    "a tenant of a dot": "./namespace",
    "a tenant of two dots": "../namespace",
    "a namespace of a dot": "tenant/.",
    "a namespace of two dots": "tenant/..",
    "tenant too long": f"{'t' * (NAME_BYTES_MAX + 1)}/namespace",
    "namespace too long": f"tenant/{'n' * (NAME_BYTES_MAX + 1)}",
}


@pytest.mark.parametrize("text", WRONG_RANGES.values(), ids=WRONG_RANGES.keys())
def test_a_range_has_one_spelling(text: str) -> None:
    """A range in any other than the canonical spelling is refused, alone and in a bundle's name."""
    with pytest.raises(InvalidName, match="bundle range"):
        parse_range(text)
    with pytest.raises(InvalidName, match="bundle name"):
        parse_bundle(f"tenant/namespace/{text}")


@pytest.mark.parametrize("text", WRONG_NAMESPACES.values(), ids=WRONG_NAMESPACES.keys())
def test_a_namespace_is_two_named_entities(text: str) -> None:
    """A namespace that Pulsar would refuse, one that no path can name, or an endless one is
    refused, alone and in a topic's name.
    """
    with pytest.raises(InvalidName, match="namespace"):
        check_namespace(text)
    if text != "tenant/cluster/namespace":
        with pytest.raises(InvalidName, match="topic name"):
            parse_topic(f"persistent://{text}/topic")


def test_the_longest_names_pass() -> None:
    """A name of exactly the greatest length is a name."""
    longest = "n" * NAME_BYTES_MAX
    assert f"{longest}/{longest}" == check_namespace(f"{longest}/{longest}")
    assert longest == check_broker_id(longest)
    assert (f"{longest}/{longest}", 0, 1) == parse_bundle(bundle_name(f"{longest}/{longest}", 0, 1))


@pytest.mark.parametrize(
    "name", ["127.0.0.1:8080", "[::1]:8080", "broker-1", "b", "administrator:8080", "admin"]
)
def test_a_broker_id_may_be_any_word(name: str) -> None:
    """Host and port make a broker's id, and so does any other word without blank and slash."""
    assert name == check_broker_id(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "admin:",
        "admin:ann",
        "a b",
        "a/b",
        "a\tb",
        "broker\n",
        "br\u00f6ker",
        "\x7f",
        "b" * (NAME_BYTES_MAX + 1),
    ],
)
def test_a_broker_id_is_printable_and_no_admin(name: str) -> None:
    """What could not stand in a path or could pass for an admin is no broker's id."""
    with pytest.raises(InvalidName, match="broker id"):
        check_broker_id(name)


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("topic", TopicName("persistent", "public/default", "topic")),
        ("/topic/", TopicName("persistent", "public/default", "topic")),
        ("t/ns/topic", TopicName("persistent", "t/ns", "topic")),
        (
            "non-persistent://t/ns/topic-partition-3",
            TopicName("non-persistent", "t/ns", "topic-partition-3"),
        ),
        ("PERSISTENT://t/ns/Topic", TopicName("persistent", "t/ns", "Topic")),
        (
            "persistent://t/ns/ a:b?c%20d\n\u4e2d",
            TopicName("persistent", "t/ns", " a:b?c%20d\n\u4e2d"),
        ),
    ],
)
def test_a_topic_name_is_taken_apart(text: str, topic: TopicName) -> None:
    """Short forms are spelled out as in Pulsar, and the local part may hold anything but a
    slash.
    """
    assert topic == parse_topic(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "ns/topic",
        "/t/ns/topic",
        "t/ns/topic/",
        "t//topic",
        "t/cluster/ns/topic",
        "persistent://topic",
        "persistent://t/ns/",
        "persistent://t/ns/ \n",
        "persistent://t/cluster/ns/topic",
        "persistent://t/ns/a://b",
        "persistent:///ns/topic",
        "persistent://t/n s/topic",
        "per\u017fistent://t/ns/topic",
        "http://t/ns/topic",
        "://t/ns/topic",
        "persistent://t/ns/half-\ud83d",
        f"persistent://t/ns/{'x' * TOPIC_BYTES_MAX}",
    ],
)
def test_what_is_no_topic_name_is_refused(text: str) -> None:
    """A name of the wrong number of parts, with a wrong part, or unfit for the wire is no
    topic's.
    """
    with pytest.raises(InvalidName, match="topic name"):
        parse_topic(text)


def test_the_bound_of_a_topic_is_in_bytes_of_the_full_name() -> None:
    """A topic is bounded by the bytes of its full name, of which a letter may take several."""
    room = TOPIC_BYTES_MAX - len("persistent://public/default/")
    assert room // 2 == len(parse_topic("\u00e9" * (room // 2)).local)
    with pytest.raises(InvalidName):
        parse_topic("\u00e9" * (room // 2 + 1))


def test_an_error_repeats_a_long_name_in_part() -> None:
    """The message about an endless name is itself short, and shows how the name begins."""
    with pytest.raises(InvalidName) as caught:
        check_namespace("start-" + "x" * 1_000_000)
    assert "start-xxx" in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("low", "high", "cuts"),
    [(10, 20, (10,)), (10, 20, (20,)), (10, 20, (15, 15)), (2**31, HASH_MAX, (HASH_MAX,))],
)
def test_an_error_about_cuts_names_the_range(low: int, high: int, cuts: tuple[int, ...]) -> None:
    """A cut on an end, even on that of the hash space, would leave an empty child. Two equal cuts
    would, too.
    """
    check_cuts(low, high, (low + 1, low + 2))
    with pytest.raises(CallerError, match=f"0x{low:08x}_0x{high:08x}"):
        check_cuts(low, high, cuts)
