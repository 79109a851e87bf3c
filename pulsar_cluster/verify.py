"""Audit Pulsar's channel: what its brokers rejected, how long bundles had no owner, and what should
not have happened. Pure.

Pulsar keeps no epoch or offset in its records. So some findings are possible in a healthy cluster
for a moment, and each says what an operator can do.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import quantiles
from types import MappingProxyType
from typing import Final, NamedTuple

from equipoise.channel.core.ranges import BundleName, namespace_in, parse_bundle
from equipoise.pulsar_cluster.records import (
    ASSIGNING,
    DELETED,
    IN_FLIGHT,
    INIT,
    OWNED,
    RELEASING,
    SPLITTING,
    STATES,
    Message,
    StateRecord,
)
from equipoise.pulsar_cluster.story import Writers, state_of
from equipoise.pulsar_cluster.table import Rejection, StateChange, overlapping_pairs, server_of

FINDINGS_MAX: Final = 1_000
"""Findings kept. More are only counted."""

BOUNCE_MS: Final = 600_000
"""A bundle bounces if it was elsewhere, and comes back to a broker within ten minutes after it
left."""

RACE_MS: Final = 10_000
"""A rejected record is a lost race if its version had been written by another within ten seconds
before."""

_VERSIONS_KEPT: Final = 16
"""Versions of a bundle whose times are remembered."""

STUCK_MS: Final = 30_000
"""Pulsar's leader ends a move after 30 s
(`loadBalancerInFlightServiceUnitStateWaitingTimeInMillis`), when its monitor sees it."""

_TAKEN_FROM_GONE: Final = frozenset({OWNED, SPLITTING})

_SPANS_KEPT: Final = 100_000
"""The newest durations of a kind, for the quantiles."""


class Kind(StrEnum):
    """The kind of a finding. The value is the text for people."""

    OLD_VERSION = "old version"
    SECOND_OWNER = "second owner"
    GAP = "version gap"
    GONE_BROKER = "gone broker"
    UNREADABLE = "unreadable"
    UNKNOWN_STATE = "unknown state"
    STUCK = "stuck"
    OVERLAP = "overlap"
    LEFTOVER = "leftover"
    LOST_CHILD = "child without owner"
    NO_MEMBER = "owner is gone"


_UNLOAD: Final = "pulsar-admin namespaces unload --bundle {range} {namespace}"
_RESTART: Final = "pulsar-admin --admin-url http://BROKER brokers shutdown"
_ADVICE: Final[Mapping[Kind, str]] = {
    Kind.OLD_VERSION: (
        "its writer's table was behind: look for a long pause of that broker; after a tombstone,"
        f" {_UNLOAD}"
    ),
    Kind.SECOND_OWNER: f"two brokers may have served it: {_UNLOAD}",
    Kind.GAP: (
        "records are missing, unless a broker wrote past all rules: equipoise pulsar why {bundle}"
    ),
    Kind.GONE_BROKER: f"if it has no owner, {_UNLOAD}; else nothing is left to do",
    Kind.UNREADABLE: (
        "take the permission from who else writes there: pulsar-admin namespaces permissions"
        " pulsar/system"
    ),
    Kind.UNKNOWN_STATE: "the brokers are newer than this program: pip install --upgrade equipoise",
    Kind.STUCK: f"if it still has no owner, {_UNLOAD}",
    Kind.OVERLAP: (
        "one of both is a leftover: equipoise pulsar verify --admin URL says which, and how to"
        " remove it"
    ),
    Kind.LEFTOVER: (
        "make its namespace again with this bundle, while no client uses it: pulsar-admin"
        " namespaces delete {namespace}"
    ),
    Kind.LOST_CHILD: f"a client's next lookup gives it an owner; if not, {_UNLOAD}",
    Kind.NO_MEMBER: (
        "the leader takes it within two minutes; if not, stop the leader, so that another one"
        f" does: {_RESTART}"
    ),
}
"""What heals each kind of finding: the command at last."""


class Finding(NamedTuple):
    """What should not have happened, at the message with this offset."""

    kind: Kind
    offset: int
    bundle: str
    text: str
    around: str | None = None
    """The bundle in which a leftover lies."""

    @property
    def advice(self) -> str:
        """What an operator can do, with the command."""
        if self.around is not None:
            return _split_around(parse_bundle(self.bundle), parse_bundle(self.around))
        namespace, _, key_range = self.bundle.rpartition("/")
        return _ADVICE[self.kind].format(bundle=self.bundle, namespace=namespace, range=key_range)


class Known(NamedTuple):
    """What a cluster's admin API says now: its live brokers, and the bundles of its namespaces.
    None: not known, or no such namespace.
    """

    members: tuple[str, ...] | None = None
    namespaces: Mapping[str, frozenset[str] | None] = MappingProxyType({})


NOT_ASKED: Final = Known()


class Spans(NamedTuple):
    """Durations of one kind in ms: their number, the median, the 95th percentile, and the
    longest.
    """

    number: int
    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of an audit.

    * `messages`, `accepted`, `tombstones`, `rejected` (by cause): counts. `lost_races` are the
      rejections that are normal: another broker was first by less than `RACE_MS`.
    * `losses`: how often messages are missing, because Pulsar deleted them before they were
      recorded.
    * `without_owner`: how long bundles had none that were assigned to a broker; `unowned` those of
      them that have none now, with the Unix time since when.
    * `in_state`: how long bundles stayed in each state. `transfers`: from `Releasing` to `Owned`.
    * `bounced`: moves back within `BOUNCE_MS` by bundle. `splits`: finished splits. `forced`:
      records that the leader or a broker that shuts down forced.
    * `vanished`: bundles taken from brokers that were gone, by broker.
    * `findings`: at most `FINDINGS_MAX` of `findings_count`.
    """

    messages: int
    losses: int
    accepted: int
    tombstones: int
    rejected: Mapping[str, int]
    lost_races: int
    without_owner: Spans
    unowned: Mapping[str, int]
    in_state: Mapping[str, Spans]
    transfers: Spans
    bounced: Mapping[str, int]
    splits: int
    forced: int
    vanished: Mapping[str, int]
    findings_count: int
    findings: tuple[Finding, ...]

    @property
    def in_order(self) -> bool:
        """Whether nothing was found."""
        return not self.findings_count


@dataclass(slots=True)
class _Bundle:
    """What the audit remembers of a bundle: times in ms."""

    message: Message
    """Its newest accepted message."""
    unowned_since_ms: int | None = None
    releasing_since_ms: int | None = None
    server: str | None = None
    """The broker that served it last."""
    left: dict[str, int] = field(default_factory=dict)
    """When it left each broker, by a move or an unload."""
    reached: dict[int, int] = field(default_factory=dict)
    """When it reached its newest versions."""
    children: tuple[str, ...] = ()
    """What it is being split into."""


class _Gone(NamedTuple):
    """A broker that left the cluster with bundles: the first record by which the leader took one,
    and its producers until then.
    """

    offset: int
    producers: frozenset[str]


class Audit:
    """Sees each change of the channel in order, and counts. Its memory grows with the bundles, not
    with the messages.
    """

    def __init__(self) -> None:
        """Begin before the first message."""
        self._writers = Writers()
        self._counts = Counter[str]()
        self._rejected = Counter[Rejection]()
        self._spans: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_SPANS_KEPT))
        self._numbers = Counter[str]()
        self._bundles: dict[str, _Bundle] = {}
        self._bounced, self._vanished = Counter[str](), Counter[str]()
        self._gone: dict[str, _Gone] = {}
        self._split: dict[str, tuple[str, ...]] = {}
        self._splitting: dict[str, str] = {}
        """The parent of each child whose split has not ended."""
        self._forgotten: set[str] = set()
        self._findings: list[Finding] = []
        self._newest_ms = 0

    def see(self, change: StateChange) -> None:
        """Take the next change."""
        message, record = change.message, change.message.record
        self._counts["messages"] += 1
        self._newest_ms = max(self._newest_ms, message.published_ms)
        if message.begins_anew:
            self._counts["losses"] += 1
            for known in (self._bundles, self._split, self._splitting, self._forgotten, self._gone):
                known.clear()
        self._counts["tombstones"] += message.is_tombstone
        self._writers.learn(message)
        self._see_gone(change)
        if change.rejection is not None:
            self._see_rejected(change, change.rejection)
            return
        self._counts["accepted"] += 1
        self._counts["forced"] += record is not None and record.force
        self._check(change)
        self._measure(change)

    def result(self, *, now_ms: int = 0, known: Known = NOT_ASKED) -> Result:
        """Return what was found up to the last message. `now_ms` (Unix time) counts if it is later:
        what is stuck has no next message.
        """
        present = _present(
            [bundle.message for bundle in self._bundles.values()],
            max(now_ms, self._newest_ms),
            known,
        )
        return Result(
            messages=self._counts["messages"],
            losses=self._counts["losses"],
            accepted=self._counts["accepted"],
            tombstones=self._counts["tombstones"],
            rejected={cause.value: self._rejected[cause] for cause in sorted(self._rejected)},
            lost_races=self._counts["races"],
            without_owner=self._spans_of("without owner"),
            unowned={
                name: bundle.unowned_since_ms
                for name, bundle in self._bundles.items()
                if bundle.unowned_since_ms is not None
            },
            in_state={
                state: self._spans_of(state)
                for state in sorted(self._spans.keys() - {"without owner", "transfer"})
            },
            transfers=self._spans_of("transfer"),
            bounced=dict(self._bounced),
            splits=self._counts["splits"],
            forced=self._counts["forced"],
            vanished=dict(self._vanished),
            findings_count=self._counts["findings"] + len(present),
            findings=(*self._findings, *present)[:FINDINGS_MAX],
        )

    def _see_gone(self, change: StateChange) -> None:
        """Find records of brokers that were gone. One that takes what it was assigned since then
        has come back.
        """
        message, record = change.message, change.message.record
        taker = (
            record.destination
            if record is not None and record.state == OWNED and not record.force
            else None
        )
        gone = None if taker is None else self._gone.get(taker)
        if (
            taker is not None
            and gone is not None
            and self._was_assigned(change, taker, since=gone.offset)
        ):
            del self._gone[taker]
            return
        if message.producer:
            for broker, each in self._gone.items():
                if message.producer in each.producers:
                    self._find(
                        Kind.GONE_BROKER,
                        message,
                        f"{broker} wrote it, whose bundles the leader took at offset {each.offset}",
                    )
                    return
        if gone is not None:
            self._find(
                Kind.GONE_BROKER,
                message,
                f"{taker} owns it, whose bundles the leader took at offset {gone.offset}",
            )

    @staticmethod
    def _was_assigned(change: StateChange, taker: str, *, since: int) -> bool:
        """Return whether a broker takes a bundle that was assigned to it after the offset
        `since`.
        """
        before, held = change.before, change.held
        return (
            change.rejection is None
            and before is not None
            and before.offset > since
            and held is not None
            and held.state == ASSIGNING
            and held.destination == taker
        )

    def _see_rejected(self, change: StateChange, rejection: Rejection) -> None:
        self._rejected[rejection] += 1
        message, held, record = change.message, change.held, change.message.record
        if rejection is Rejection.UNREADABLE:
            self._find(Kind.UNREADABLE, message, message.problem)
            return
        if held is None or record is None:
            return
        if rejection is not Rejection.OLD_VERSION:
            if record.state == OWNED:
                # Its writer had read the newest record, so it did not just come late.
                self._find(
                    Kind.SECOND_OWNER,
                    message,
                    f"{record.destination} claims it, and it is {state_of(held)}",
                )
            return
        reached_ms = self._bundles[message.bundle].reached.get(record.version)
        if reached_ms is not None and message.published_ms - reached_ms <= RACE_MS:
            self._counts["races"] += 1
        else:
            text = (
                f"{record.state} with version {record.version}, when the bundle had long had"
                f" version {held.version}"
            )
            self._find(Kind.OLD_VERSION, message, text)

    def _check(self, change: StateChange) -> None:
        message, record = change.message, change.message.record
        if record is None:
            return
        if record.state not in STATES:
            self._find(Kind.UNKNOWN_STATE, message, f"the state {record.state} is unknown")
        held = change.held
        server, now = server_of(held), server_of(record)
        child = next(
            (child for child in self._split.get(message.bundle, ()) if self._is_served(child)), None
        )
        if child is not None:
            self._find(
                Kind.SECOND_OWNER,
                message,
                f"it was split, and is {record.state} again, although its child {child} is served",
            )
        elif (
            held is None
            and message.bundle in self._forgotten
            and record.state != ASSIGNING
            and record.version > 1
            and not record.force
        ):
            text = (
                f"{record.state} with version {record.version}, after a tombstone had ended the"
                " bundle's versions"
            )
            self._find(Kind.OLD_VERSION, message, text)
        self._check_splits(message, record, now)
        if record.force:
            # The leader takes an owned bundle only from a broker that left the cluster.
            if (
                held is not None
                and server is not None
                and server != record.destination
                and _takes_over(held, record)
            ):
                self._vanished[server] += 1
                self._gone.setdefault(
                    server, _Gone(message.offset, self._writers.producers_of(server))
                )
        elif server is not None and now is not None and server != now:
            text = (
                f"{now} owns it ({record.state}, version {record.version}), and {server} has not"
                " released it"
            )
            self._find(Kind.SECOND_OWNER, message, text)
        elif held is not None and record.version > held.version + 1:
            self._find(
                Kind.GAP, message, f"its version goes from {held.version} to {record.version}"
            )

    def _check_splits(self, message: Message, record: StateRecord, server: str | None) -> None:
        """Find children that a split left without an owner, and one that somebody else took."""
        split = self._bundles.get(message.bundle)
        if record.state == DELETED and not record.force and split is not None:
            for child in split.children:
                if not self._is_served(child):
                    self._find(
                        Kind.LOST_CHILD,
                        message._replace(bundle=child),
                        f"{message.bundle} was split into it, and no broker owned it",
                    )
        parent = self._splitting.get(message.bundle)
        splitter = None if parent is None else server_of(self._bundles[parent].message.record)
        if splitter is not None and server is not None and server != splitter and not record.force:
            self._find(
                Kind.SECOND_OWNER,
                message,
                f"{server} owns it, and {splitter} still splits {parent}",
            )

    def _is_served(self, name: str) -> bool:
        return name in self._bundles and server_of(self._bundles[name].message.record) is not None

    def _measure(self, change: StateChange) -> None:
        message, record, held = change.message, change.message.record, change.held
        bundle = self._bundles.get(message.bundle)
        if bundle is None:
            bundle = self._bundles[message.bundle] = _Bundle(message)
        else:
            self._measure_state(bundle, held, message)
        bundle.message = message
        for child in bundle.children:
            self._splitting.pop(child, None)
        self._measure_serving(bundle, server_of(held), message)
        if record is None:
            del self._bundles[message.bundle]
            self._forgotten.add(message.bundle)
            self._split.update({message.bundle: bundle.children} if bundle.children else {})
            return
        bundle.reached[record.version] = message.published_ms
        if len(bundle.reached) > _VERSIONS_KEPT:
            del bundle.reached[next(iter(bundle.reached))]
        if record.state == SPLITTING:
            bundle.children = tuple(
                f"{message.bundle.rpartition('/')[0]}/{child}" for child in record.children
            )
            self._splitting |= dict.fromkeys(bundle.children, message.bundle)
        elif record.state == RELEASING:
            bundle.releasing_since_ms = None if record.destination is None else message.published_ms
        elif record.state == OWNED:
            if bundle.releasing_since_ms is not None:
                self._span("transfer", message.published_ms - bundle.releasing_since_ms)
            bundle.releasing_since_ms = None
        elif record.state == DELETED:
            self._counts["splits"] += 1

    def _measure_serving(self, bundle: _Bundle, before: str | None, message: Message) -> None:
        """Measure for how long nobody served a bundle that somebody waits for: while it is
        assigned. No client waits for a free one.
        """
        record, at_ms = message.record, message.published_ms
        server = server_of(record)
        if server is not None and bundle.unowned_since_ms is not None:
            self._span("without owner", at_ms - bundle.unowned_since_ms)
        if record is None or record.state != ASSIGNING:
            bundle.unowned_since_ms = None
        elif bundle.unowned_since_ms is None:
            bundle.unowned_since_ms = at_ms
        if record is not None and record.state == OWNED:
            self._notice_bounce(bundle, message, record)
        if before is not None and server != before and record is not None and not record.force:
            bundle.left[before] = at_ms
        bundle.server = server or bundle.server

    def _measure_state(self, bundle: _Bundle, held: StateRecord | None, message: Message) -> None:
        state = INIT if held is None else held.state
        spent_ms = message.published_ms - bundle.message.published_ms
        self._span(state, spent_ms)
        if _is_stuck(held, spent_ms):
            self._find(Kind.STUCK, message, f"it was {state} for {_seconds(spent_ms)}")

    def _notice_bounce(self, bundle: _Bundle, message: Message, record: StateRecord) -> None:
        left_ms = None if record.destination is None else bundle.left.pop(record.destination, None)
        if (
            left_ms is not None
            and message.published_ms - left_ms <= BOUNCE_MS
            and bundle.server != record.destination
        ):
            self._bounced[message.bundle] += 1

    def _span(self, kind: str, span_ms: int) -> None:
        # The brokers' clocks differ, so a span can be negative.
        self._spans[kind].append(max(0, span_ms))
        self._numbers[kind] += 1

    def _spans_of(self, kind: str) -> Spans:
        return spans_of(self._spans.get(kind, ()), number=self._numbers[kind])

    def _find(self, kind: Kind, message: Message, text: str) -> None:
        self._counts["findings"] += 1
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(Finding(kind, message.offset, message.bundle, text))


def _is_stuck(record: StateRecord | None, spent_ms: int) -> bool:
    return record is not None and record.state in IN_FLIGHT and spent_ms > STUCK_MS


def _present(messages: Sequence[Message], now_ms: int, known: Known) -> list[Finding]:
    """Return what is wrong at the end of the channel, given the message of each bundle's record."""
    served = {
        message.bundle: message for message in messages if server_of(message.record) is not None
    }
    gone, leftovers = list[Finding](), list[Finding]()
    stuck = [
        Finding(
            Kind.STUCK,
            each.offset,
            each.bundle,
            f"it has been {state_of(each.record)} for {_seconds(now_ms - each.published_ms)}",
        )
        for each in messages
        if _is_stuck(each.record, now_ms - each.published_ms)
    ]
    for bundle, message in served.items():
        server, namespace = server_of(message.record), namespace_in(bundle)
        if known.members is not None and server not in known.members:
            gone.append(
                Finding(
                    Kind.NO_MEMBER,
                    message.offset,
                    bundle,
                    f"{server} owns it, and is no broker of the cluster any more",
                )
            )
        present = known.namespaces.get(namespace, frozenset((bundle,)))
        # A split changes the namespace a moment before or after the channel.
        if (present is None or bundle not in present) and now_ms - message.published_ms > RACE_MS:
            why = (
                "there is no such namespace"
                if present is None
                else "its namespace has other bundles"
            )
            around = next(
                (
                    each
                    for each in sorted(present or ())
                    if _is_within(parse_bundle(bundle), parse_bundle(each))
                ),
                None,
            )
            leftovers.append(
                Finding(
                    Kind.LEFTOVER, message.offset, bundle, f"{server} owns it, and {why}", around
                )
            )
    named = {finding.bundle for finding in leftovers}
    overlaps = [pair for pair in overlapping_pairs(served) if not named.intersection(pair)]
    return [
        *stuck,
        *gone,
        *leftovers,
        *(
            _overlap(served[one], served[other])
            for one, other in overlaps
            if _is_wrong(served, one, other, now_ms)
        ),
    ]


def _is_within(bundle: BundleName, around: BundleName) -> bool:
    return around.low <= bundle.low and bundle.high <= around.high


def _split_around(bundle: BundleName, around: BundleName) -> str:
    """Return how to end a leftover: Pulsar unloads no bundle that its namespace lacks, and hands it
    on when its owner stops.
    """
    cuts = ",".join(str(end) for end in (bundle.low, bundle.high) if around.low < end < around.high)
    ends = f"0x{around.low:08x}_0x{around.high:08x}"
    return (
        "make it a bundle of its namespace by a split, after which it has one owner: pulsar-admin"
        f" namespaces split-bundle --bundle {ends} --split-algorithm-name"
        f" specified_positions_divide --split-boundaries {cuts} {around.namespace}"
    )


def _is_wrong(served: Mapping[str, Message], one: str, other: str, now_ms: int) -> bool:
    """Return whether two served bundles that share points are no split under way. The end of a
    split may be read a moment later.
    """
    messages = served[one], served[other]
    splits = any(
        message.record is not None and message.record.state == SPLITTING for message in messages
    )
    is_at_one = server_of(messages[0].record) == server_of(messages[1].record)
    return (
        not (splits and is_at_one)
        and now_ms - max(message.published_ms for message in messages) > RACE_MS
    )


def _overlap(one: Message, other: Message) -> Finding:
    newest = max(one, other, key=lambda message: message.offset)
    text = (
        f"{server_of(one.record)} owns {one.bundle} and {server_of(other.record)} owns"
        f" {other.bundle}, which have topics in common"
    )
    return Finding(Kind.OVERLAP, newest.offset, newest.bundle, text)


def _seconds(spent_ms: int) -> str:
    return f"{spent_ms / 1_000:.0f} s"


def _takes_over(held: StateRecord, record: StateRecord) -> bool:
    """Return whether a forced record takes a served bundle away.

    With `Releasing` the broker gives it up itself, because it stops or the namespace is deleted.
    """
    return held.state in _TAKEN_FROM_GONE and record.state != RELEASING


def spans_of(spans_ms: Sequence[int] | deque[int], *, number: int | None = None) -> Spans:
    """Summarise durations. Without any, all figures are 0."""
    if not spans_ms:
        return Spans(0, 0, 0, 0)
    cuts = quantiles(
        [*spans_ms, spans_ms[-1]] if len(spans_ms) == 1 else spans_ms, n=100, method="inclusive"
    )
    return Spans(len(spans_ms) if number is None else number, cuts[49], cuts[94], max(spans_ms))
