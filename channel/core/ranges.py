"""Parse and format names, and map topics and keys to hash ranges, as Apache Pulsar does.

The hash space is the 32-bit integers from 0 to `HASH_MAX`. A bundle's range has `low` but not
`high`. Only the last bundle of a namespace, whose `high` is `HASH_MAX`, includes its end. So every
point has exactly one bundle, and the ends look as in Pulsar (`0x00000000`, `0xffffffff`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from zlib import crc32

from equipoise.channel.core.errors import InvalidName, invalid_boundaries

HASH_MAX: Final = 0xFFFFFFFF

# The boundaries of a new namespace travel in one record of at most 1 MiB. At up to 13 bytes each
# ("0x%08x" in quotes and a comma) 65,537 take 851,981 bytes and leave 196,595 for policies and
# envelope.
BUNDLES_MAX: Final = 65_536

# A tenant, a namespace within its tenant, a broker id: each may become a file name or a metric
# label, usually limited to 255 bytes. A bundle's name is then at most 255 + 1 + 255 + 1 + 21 = 533
# bytes.
NAME_BYTES_MAX: Final = 255

# An HTTP lookup carries the topic in its request line, limited to about 8,190 bytes.
# Percent-encoding may treble it: 3 x 2,048 = 6,144 leaves room for the rest of the path and the
# query.
TOPIC_BYTES_MAX: Final = 2_048

ADMIN_PREFIX: Final = "admin:"

# How much of a name an error repeats: enough to recognise it, short enough for a log line.
_NAME_SHOWN_CHARACTERS_MAX: Final = 256

# Pulsar's "named entity" in ASCII, where characters are bytes. Use `fullmatch` only: `$` accepts a
# newline at the end. The ends of a range are compared as text: lower-case hexadecimal numbers of
# equal length sort like their values.
_ENTITY: Final = rf"[-=:.\w]{{1,{NAME_BYTES_MAX}}}"
_RANGE: Final = "0x([0-9a-f]{8})_0x([0-9a-f]{8})"
_match_namespace: Final = re.compile(f"{_ENTITY}/{_ENTITY}", re.ASCII).fullmatch
_match_range: Final = re.compile(_RANGE).fullmatch
_match_bundle: Final = re.compile(f"({_ENTITY}/{_ENTITY})/{_RANGE}", re.ASCII).fullmatch
_match_broker_id: Final = re.compile(rf"(?!{ADMIN_PREFIX})[!-.0-~]{{1,{NAME_BYTES_MAX}}}").fullmatch
_match_cluster: Final = re.compile(_ENTITY, re.ASCII).fullmatch
# The domain ignores case, as in Pulsar. ASCII excludes look-alikes from other alphabets.
_match_topic: Final = re.compile(
    rf"((?i:persistent|non-persistent))://({_ENTITY}/{_ENTITY})/([^/]+)", re.ASCII
).fullmatch

# HTTP clients remove these parts from a path, and file systems resolve them to another folder.
_RELATIVE: Final = frozenset({".", ".."})

_EXPECTED_CLUSTER: Final = f"1 to {NAME_BYTES_MAX} ASCII letters, digits, '_', '-', '=', ':' or '.'"
_EXPECTED_NAMESPACE: Final = (
    f"TENANT/NAMESPACE, each of {_EXPECTED_CLUSTER}, and neither of them '.' or '..'"
)
_EXPECTED_RANGE: Final = "0xLOW_0xHIGH, eight lower-case hexadecimal digits each, LOW below HIGH"
_EXPECTED_BROKER_ID: Final = (
    f"HOST:PORT, or 1 to {NAME_BYTES_MAX} printable ASCII characters without blank or '/', not"
    f" beginning with {ADMIN_PREFIX!r}"
)
_EXPECTED_TOPIC: Final = (
    "TOPIC, TENANT/NAMESPACE/TOPIC, or the latter with persistent:// or non-persistent:// before"
    f" it: {_EXPECTED_NAMESPACE}, a TOPIC that is not blank and has no '/', at most"
    f" {TOPIC_BYTES_MAX} bytes of UTF-8 in all"
)


class BundleName(NamedTuple):
    """A parsed bundle name: `namespace` is `tenant/namespace`, `low` and `high` are hash points."""

    namespace: str
    low: int
    high: int


class TopicName(NamedTuple):
    """A parsed topic name: `domain` is `persistent` or `non-persistent`, `namespace` is
    `tenant/namespace`.
    """

    domain: str
    namespace: str
    local: str

    @property
    def full(self) -> str:
        """The canonical name, which is hashed: `domain://tenant/namespace/local`."""
        return f"{self.domain}://{self.namespace}/{self.local}"


def key_hash(key: str) -> int:
    """Return the hash point of a user's key, from 0 to 2**32 - 1: the CRC-32 (zlib's) of its UTF-8
    bytes.

    Total: a lone surrogate, which UTF-8 cannot express, counts as `?`, as in Java.
    """
    return crc32(key.encode("utf-8", "replace"))


def topic_hash(topic: str) -> int:
    """Return the hash point of a topic, given its FULL name (`TopicName.full`) with domain and
    partition suffix.

    Source: Pulsar's NamespaceBundleFactory, which hashes the name with Guava's `Hashing.crc32()`.
    """
    return key_hash(topic)


def even_boundaries(count: int) -> tuple[int, ...]:
    """Return the `count + 1` rising boundaries, from 0 to `HASH_MAX`, of a new namespace with
    `count` bundles.

    All are `2**32 // count` apart, except the last, which takes the remainder (Pulsar's Policies).
    Raises `CallerError` unless `count` lies from 1 to `BUNDLES_MAX`.
    """
    if not 1 <= count <= BUNDLES_MAX:
        raise invalid_boundaries(
            subject=f"a namespace of {count} bundles",
            problem=f"a namespace starts with 1 to {BUNDLES_MAX} bundles",
        )
    segment = (HASH_MAX + 1) // count
    return (*range(0, segment * count, segment), HASH_MAX)


def bundle_name(namespace: str, low: int, high: int) -> str:
    """Return the canonical name of a namespace's bundle. The caller has checked all three parts."""
    return f"{namespace}/0x{low:08x}_0x{high:08x}"


def namespace_in(bundle: str) -> str:
    """Return the namespace in a trusted bundle name. Use `parse_bundle` for names from outside."""
    return bundle.rpartition("/")[0]


def is_bundle_name(name: str) -> bool:
    """Return whether a key of the channel is that of a bundle. Use `parse_bundle` for names from
    outside.
    """
    return _match_bundle(name) is not None


def tenant_in(name: str) -> str:
    """Return the tenant in a trusted name of a namespace or a bundle."""
    return name.partition("/")[0]


def parse_bundle(name: str) -> BundleName:
    """Parse a canonical bundle name. Raises `InvalidName` for any other form.

    Names are keys: two forms of one name would be two bundles.
    """
    match = _match_bundle(name)
    if match is None or match[2] >= match[3]:
        raise _invalid(
            what="bundle name",
            name=name,
            expected=f"{_EXPECTED_NAMESPACE}, then /{_EXPECTED_RANGE}",
        )
    return BundleName(match[1], int(match[2], 16), int(match[3], 16))


def parse_range(text: str) -> tuple[int, int]:
    """Parse a range as in a bundle name, `0x00000000_0x40000000`, to `(low, high)`. Raises
    `InvalidName`.
    """
    match = _match_range(text)
    if match is None or match[1] >= match[2]:
        raise _invalid(what="bundle range", name=text, expected=_EXPECTED_RANGE)
    return int(match[1], 16), int(match[2], 16)


def bundle_contains(low: int, high: int, point: int) -> bool:
    """Return whether the range holds `point`. `high` is excluded, unless it is `HASH_MAX`."""
    return low <= point < high or point == high == HASH_MAX


def check_namespace(name: str) -> str:
    """Return `name` if it is `tenant/namespace`, two Pulsar named entities other than `.` and `..`.
    Raises `InvalidName` otherwise.
    """
    if not _RELATIVE.isdisjoint(name.split("/")):
        raise _invalid(what="namespace", name=name, expected=_EXPECTED_NAMESPACE)
    return check_recorded_namespace(name)


def check_tenant(name: str) -> str:
    """Return `name` if it is the first part of a namespace's name. Raises `InvalidName`
    otherwise.
    """
    try:
        check_namespace(f"{name}/namespace")
    except InvalidName as error:
        raise _invalid(
            what="tenant", name=name, expected=f"the first part of {error.expected}"
        ) from None
    return name


def is_matched(pattern: str, namespace: str) -> bool:
    """Return whether a pattern matches a namespace. In it, `*` stands for any characters, also for
    none, and everything else for itself.

    This rule of the fold must not change. It takes linear time, also for a pattern that somebody
    wrote to cost much.
    """
    first, *middle = pattern.split("*")
    if not middle:
        return namespace == pattern
    last = middle.pop()
    place, end = len(first), len(namespace) - len(last)
    if place > end or not (namespace.startswith(first) and namespace.endswith(last)):
        return False
    for part in middle:
        found = namespace.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True


def check_recorded_namespace(name: str) -> str:
    """Return `name` if a record may create this namespace. Raises `InvalidName` otherwise.

    This rule of the fold must not change: older records may contain `.` and `..`, unlike new
    requests.
    """
    if _match_namespace(name) is None:
        raise _invalid(what="namespace", name=name, expected=_EXPECTED_NAMESPACE)
    return name


def check_broker_id(name: str) -> str:
    """Return `name` if it may be a broker's id, such as `host:port`. Raises `InvalidName`
    otherwise.

    The prefix `admin:` is refused: on the channel it marks a publisher that is not a broker.
    """
    if _match_broker_id(name) is None:
        raise _invalid(what="broker id", name=name, expected=_EXPECTED_BROKER_ID)
    return name


def check_cluster(name: str) -> str:
    """Return `name` if a new cluster may have it, as in Pulsar. Raises `InvalidName` otherwise."""
    if _match_cluster(name) is None:
        raise _invalid(what="cluster name", name=name, expected=_EXPECTED_CLUSTER)
    return name


def parse_topic(text: str) -> TopicName:
    """Parse a topic name in its full form or in one of Pulsar's short forms.

    * `topic` means `persistent://public/default/topic`, and `tenant/namespace/topic` means
      `persistent://` plus itself.
    * The local part is not blank and holds no `/`: Pulsar's old form with a cluster is not
      supported.

    Raises `InvalidName`, also for text that UTF-8 cannot express, and for full names longer than
    `TOPIC_BYTES_MAX`.
    """
    match = _match_topic(text if "://" in text else _spelled_out(text))
    if match is not None:
        domain, namespace, local = match.groups()
        topic = TopicName(domain.lower(), namespace, local)
        if (
            local.strip()
            and _is_sendable(topic.full)
            and _RELATIVE.isdisjoint(namespace.split("/"))
        ):
            return topic
    raise _invalid(what="topic name", name=text, expected=_EXPECTED_TOPIC)


def check_cuts(low: int, high: int, cuts: Sequence[int]) -> None:
    """Raise `CallerError` unless `cuts` rise strictly and lie strictly between `low` and `high`.

    No cuts are valid: a namespace of one bundle has none.
    """
    for before, after in pairwise((low, *cuts, high)):
        if not before < after:
            problem = (
                f"0x{after:08x} does not come after 0x{before:08x}; cuts rise strictly, and lie"
                " strictly inside"
            )
            raise invalid_boundaries(subject=f"the range 0x{low:08x}_0x{high:08x}", problem=problem)


def children(low: int, high: int, cuts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges that `cuts`, checked by `check_cuts`, make of the range from `low` to
    `high`.
    """
    return tuple(pairwise((low, *cuts, high)))


def _spelled_out(short: str) -> str:
    """Return the full form of a short topic name. Other text stays invalid.

    A single word loses stray `/` around it, as in Pulsar.
    """
    parts = [part for part in short.split("/") if part]
    return f"persistent://public/default/{parts[0]}" if len(parts) == 1 else f"persistent://{short}"


def _is_sendable(full_name: str) -> bool:
    """Return whether a topic's full name fits in UTF-8 and `TOPIC_BYTES_MAX`."""
    try:
        return len(full_name.encode()) <= TOPIC_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _invalid(*, what: str, name: str, expected: str) -> InvalidName:
    """Return the error, with a bounded part of the name."""
    shown = (
        name
        if len(name) <= _NAME_SHOWN_CHARACTERS_MAX
        else f"{name[:_NAME_SHOWN_CHARACTERS_MAX]}..."
    )
    return InvalidName(what=what, name=shown, expected=expected)
