"""Define the records of the channel, their rejection reasons and their bounds.

Offsets, incarnations and tokens are logical offsets of the log, from 0 to `INTEGER_MAX`. An
incarnation is the offset of the `joined` record that made it; `owner` and `source` are
incarnations. `None` means absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeVar, dataclass_transform

from equipoise.channel.core.ranges import is_matched

T = TypeVar("T")

blank: Final = object.__new__


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=True)
def hot_frozen(cls: type[T]) -> type[T]:
    """Return `cls` as a slotted, keyword-only, comparable, hashable dataclass. The type checker
    rejects assignments to its fields.

    * It is for values made per log record. A frozen dataclass pays one `object.__setattr__` per
      field: 1.5 microseconds for nine fields, against 0.3 unfrozen. Measure the fold with `python
      -m tests.benchmarks.fold`. Everything else uses `dataclass(frozen=True, slots=True,
      kw_only=True)`.
    * The few lines that every record passes make a value in two steps: `blank(Class)`, then the
      class' own `__init__`, called as a plain function. `Class(...)` does the same through the
      type, which packs all arguments into a dict and costs three times as much.
    """
    return dataclass(slots=True, kw_only=True, eq=True, unsafe_hash=True)(cls)


INTEGER_MAX: Final = 2**63 - 1

# The highest format version that this code reads.
LEVEL_SUPPORTED: Final = 1

# A format version that no code will ever support. A log whose channel was copied is raised to it.
# This closes the log for good, also for older code that does not know copies.
LEVEL_CLOSED: Final = INTEGER_MAX

# How far an admin's view may lag when its record arrives (`as_of`): fixed in format version 1, not
# a setting.
ADMIN_WINDOW_OFFSETS: Final = 10_000

# A new namespace has at most 65,536 bundles, and one boundary more.
BOUNDARIES_MAX: Final = 65_537

# At most 64 children: enough for any algorithm, and the record fits in one page of the log.
CUTS_MAX: Final = 63

HANDOVER_BYTES_MAX: Final = 16 * 1024
TEXT_CHARACTERS_MAX: Final = 1_024
KEY_CHARACTERS_MAX: Final = 600  # tenant + namespace + range: 255 + 255 + 23, and room
DOCUMENT_ENTRIES_MAX: Final = 256
PATTERNS_MAX: Final = 256  # Of the namespaces that one program serves: one record carries them all.

State = Literal["free", "assigning", "owned", "releasing", "splitting"]
NamespaceStatus = Literal["created", "policies", "deleting", "deleted"]
BrokerChange = Literal["draining", "left", "down", "removed"]
PolicyChange = Literal["set", "removed"]
Scalar = str | int | bool
Document = Mapping[str, Scalar]


class Reason(StrEnum):
    """Why a record was rejected. `STALE` and `LATE` are lost races and normal; the operator sees
    all others.
    """

    MALFORMED = "malformed"
    STALE = "stale"
    LATE = "late"
    ILLEGAL_TRANSITION = "illegal_transition"
    NOT_THE_ACTOR = "not_the_actor"
    DEAD_PUBLISHER = "dead_publisher"
    DEAD_TARGET = "dead_target"
    DRAINING_TARGET = "draining_target"
    NOT_SERVED = "not_served"
    UNKNOWN_BUNDLE = "unknown_bundle"
    UNKNOWN_BROKER = "unknown_broker"
    UNKNOWN_NAMESPACE = "unknown_namespace"
    UNKNOWN_POLICY = "unknown_policy"
    NAMESPACE_DELETING = "namespace_deleting"
    BUNDLES_IN_USE = "bundles_in_use"
    NOT_ADJACENT = "not_adjacent"
    BAD_BOUNDARY = "bad_boundary"
    STILL_ALIVE = "still_alive"
    LEVEL = "level"
    NO_GENESIS = "no_genesis"
    FOREIGN_GENESIS = "foreign_genesis"


QUIET_REASONS: Final = frozenset({Reason.STALE, Reason.LATE})


@hot_frozen
class Record:
    """The fields of every record.

    * `key` is what it changes, `expected_offset` the last accepted offset of that key that its
      author knew.
    * `publisher` is a broker id, or `admin:NAME`.
    * A broker sets its `incarnation` and `sequence`, the rising number of the attempt. An admin
      sets `as_of`, the offset of its view.
    * `level` is the format version that it needs.
    * `timestamp_ms` (Unix time) is for people and audits; the fold never reads it.
    * `requested_by` (`admin:NAME`) is who asked a broker for this record, also only for people and
      audits. `requester` is the name to show.
    * `traceparent` (W3C Trace Context) is the span in which the record was proposed. It joins the
      spans of a move, whichever broker makes them, and the fold never reads it.
    """

    key: str
    expected_offset: int
    publisher: str
    incarnation: int | None = None
    sequence: int | None = None
    as_of: int | None = None
    level: int = 1
    timestamp_ms: int = 0
    requested_by: str | None = None
    traceparent: str | None = None

    @property
    def requester(self) -> str:
        """Who wanted this record: the admin for whom a broker wrote it, or else its publisher."""
        return self.requested_by or self.publisher


@hot_frozen
class Genesis(Record):
    """The first record of a log: its cluster, and the base of its logical offsets."""

    cluster: str
    base: int = 0


@hot_frozen
class BundleTransition(Record):
    """One transition of one bundle. `handover` is the source's state for the next owner, at most 16
    KiB.
    """

    state: State
    owner: int | None = None
    source: int | None = None
    reason: str | None = None
    algorithm: str | None = None
    positions: tuple[int, ...] | None = None
    handover: bytes | None = None


@hot_frozen
class Split(Record):
    """The owner of `key` split it at `positions` (hash points strictly inside it) and keeps the
    children.
    """

    positions: tuple[int, ...]
    reason: str | None = None


@hot_frozen
class Merge(Record):
    """`key` and its right neighbour `right`, both owned by one broker, become one bundle."""

    right: str
    expected_offset_right: int
    reason: str | None = None


@hot_frozen
class NamespaceRecord(Record):
    """A namespace is created (with all its boundaries, 0 and `HASH_MAX` included), changed, set to
    deleting, or deleted.
    """

    status: NamespaceStatus
    boundaries: tuple[int, ...] | None = None
    policies: Document | None = None


@hot_frozen
class Joined(Record):
    """A broker process begins a new incarnation and declares its lease and grace period.

    * `instance_id`: the instance id. `grace_ms`: the grace period.
    * `extend_ms`: how long after its last renewal it may serve by the assurances of all others.
      With no more than `lease_ms` it never outlasts its lease.
    * `addresses`: protocol to client address.
    * `capacity`: in percent of a core; 200 means twice the load of 100.
    * `namespaces`: patterns of the namespaces that the program serves; None: all.
    * `replaces`: the instance id of the live incarnation, from the locked data directory.
    * `after_silence`: this process has seen no record of that incarnation for `unheard_ms`.
    * `lock`: the lock that the process holds until it ends, for brokers of the same machine:
      `BOOT_ID:DEVICE:INODE:PATH`. None: they cannot see it.
    """

    instance_id: str
    lease_ms: int
    grace_ms: int
    renew_ms: int
    extend_ms: int = 0
    addresses: Mapping[str, str]
    capacity: int = 100
    failure_domain: str | None = None
    labels: Mapping[str, str]
    namespaces: tuple[str, ...] | None = None
    version: str = ""
    supported_level: int = 1
    replaces: str | None = None
    after_silence: bool = False
    lock: str | None = None

    @property
    def unheard_ms(self) -> int:
        """How long a process waits that this broker may not know: the longest time that it may
        serve, and the grace period in proportion.
        """
        longest_ms = max(self.lease_ms, self.extend_ms)
        return -(-longest_ms * (self.lease_ms + self.grace_ms) // self.lease_ms)

    def serves(self, namespace: str) -> bool:
        """Return whether the program of this broker serves a namespace."""
        return self.namespaces is None or any(
            is_matched(pattern, namespace) for pattern in self.namespaces
        )


@hot_frozen
class Renewed(Record):
    """A broker renews its lease, with the digest of its view just after the last accepted record of
    its key.
    """

    digest: int


@hot_frozen
class BrokerRecord(Record):
    """A broker drains, leaves, is declared dead, or is removed.

    Only the broker itself drains or leaves. Another live broker declares it dead after silence, or
    anybody with its instance id (`instance_id`), which proves that its process has ended.
    """

    status: BrokerChange
    instance_id: str | None = None
    reason: str | None = None


@hot_frozen
class PolicyRecord(Record):
    """A cluster-wide document (isolation policies, anti-affinity groups, settings) is set or
    removed.
    """

    status: PolicyChange
    document: Document | None = None


@hot_frozen
class LevelRecord(Record):
    """Raises the format version, once every live broker supports it.

    A record that closes a log also names the log of the copy: its URL as given, for people, and its
    identity.
    """

    raises_to: int
    copied_to: str | None = None
    copied_to_identity: str | None = None


@hot_frozen
class Unreadable:
    """Bytes that are not a record. The readable part of the envelope still settles its publisher's
    attempt.
    """

    problem: str
    publisher: str | None = None
    incarnation: int | None = None
    sequence: int | None = None
    level: int = 1


AnyRecord = (
    Genesis
    | BundleTransition
    | Split
    | Merge
    | NamespaceRecord
    | Joined
    | Renewed
    | BrokerRecord
    | PolicyRecord
    | LevelRecord
)
