"""State the rules of Pulsar's bundle state channel a second time, from its design documents, and
audit messages by them.

Nothing here imports `pulsar_cluster`, which folds the channel: an audit that asks the fold whether
the fold is right proves nothing. Pulsar's records carry no epoch and no author. So what can also
happen in a healthy cluster for a moment has a grace period here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Final, NamedTuple

import orjson

from equipoise.spark_jobs.rules.facts import subject
from equipoise.spark_jobs.rules.ranges import parse_bundle
from equipoise.spark_jobs.rules.rule import ACCEPTED, Finding, Rule, Severity

RACE_MS: Final = 10_000
"""A record loses a race if another took its version at most this long before. Brokers read the
channel within milliseconds."""

STUCK_MS: Final = 30_000
"""Default of `loadBalancerInFlightServiceUnitStateWaitingTimeInMillis`, after which Pulsar's leader
ends a step."""

REJECTED: Final = "rejected"

_INT64: Final = range(-(1 << 63), 1 << 63)
_MOVING: Final = ("Assigning", "Releasing")
_RESOLVER: Final = "ServiceUnitStateDataConflictResolver of Pulsar 4.0.8"

# --- rules ---


def _rule(
    name: str, severity: Severity, *, source: str, says: str, means: str, remedy: str
) -> Rule:
    return Rule(
        name=f"pulsar_{name}",
        subject="bundle",
        severity=severity,
        says=says,
        means=means,
        remedy=remedy,
        source=source,
    )


second_owner: Final = _rule(
    "second_owner",
    "alarm",
    source='PIP-192, "Bundle Transfer Example"; PIP-307, "High Level Design"',
    says="A broker takes a bundle only after its owner released it to this broker, or was gone.",
    means="Two brokers may have served the bundle at the same time.",
    remedy=(
        "Look for the bundle in the logs of both brokers, and unload it once: `pulsar-admin"
        " namespaces unload NAMESPACE -b RANGE`."
    ),
)
revived_parent: Final = _rule(
    "revived_parent",
    "alarm",
    source='PIP-192, "Bundle Split Example"',
    says="A bundle that was split does not come back beside its children.",
    means="Two brokers may serve the same topics, one by the parent and one by a child.",
    remedy=(
        "Compare `pulsar-admin namespaces bundles` with the channel, and restart the broker that"
        " took the parent."
    ),
)
gone_broker: Final = _rule(
    "gone_broker",
    "alarm",
    source='PIP-192, "When a broker is down"',
    says=(
        "A broker whose bundles the leader took writes no more, until it takes a bundle that it was"
        " assigned later."
    ),
    means=(
        "The leader thought that the broker was gone, but it ran on and may have served its"
        " bundles. A long pause does that."
    ),
    remedy=(
        "Look at that broker's log for pauses and lost ZooKeeper sessions. Restart it if it still"
        " runs with the old session."
    ),
)
old_version: Final = _rule(
    "old_version",
    "warning",
    source=f'PIP-192, "Conflict State Resolution"; {_RESOLVER}',
    says=(
        "A broker writes the version that follows the one it read. A record that loses a race is"
        " late by seconds."
    ),
    means=(
        "The table of the writer was far behind. Pulsar's brokers ignore the record, but not after"
        " a tombstone."
    ),
    remedy=(
        "Look for a long pause or a lost connection of the writing broker at that time. After a"
        " tombstone, unload the bundle once."
    ),
)
version_gap: Final = _rule(
    "version_gap",
    "warning",
    source=(
        f"{_RESOLVER}: a gap is accepted, because compaction may have removed the records between"
    ),
    says="The versions of a bundle rise by 1.",
    means=(
        "Records are missing, or a broker wrote past all rules: over a gap Pulsar checks neither"
        " the step nor the brokers."
    ),
    remedy=(
        "If the recording has a hole there, nothing is wrong. Else find out who writes to the"
        " channel besides the brokers."
    ),
)
stuck: Final = _rule(
    "stuck",
    "warning",
    source=(
        'PIP-192, "When a broker is down";'
        " `loadBalancerInFlightServiceUnitStateWaitingTimeInMillis`"
    ),
    says="A step of a bundle ends within 30 s. Later the leader ends it.",
    means="The bundle had no owner for so long, and its clients waited.",
    remedy=(
        "Look at the log of the broker that had to act. Unload the bundle if it still has no owner."
    ),
)
unreadable: Final = _rule(
    "unreadable",
    "warning",
    source='PIP-192, "Bundle State Channel"; ServiceUnitStateData of Pulsar 4.0.8',
    says="Each message is a record, or has no value.",
    means=(
        "Somebody else writes to the channel, or the brokers have versions that do not fit"
        " together."
    ),
    remedy="Find out who may produce to `pulsar/system`, and take this permission away.",
)
unknown_state: Final = _rule(
    "unknown_state",
    "notice",
    source='PIP-192, "Bundle State Lifecycles"; ServiceUnitState of Pulsar 4.0.8',
    says="Each record has one of the seven states of Pulsar 4.0.8.",
    means="The cluster has a newer Pulsar, whose rules are unknown here.",
    remedy="Install a newer Equipoise.",
)
verdict_differs: Final = _rule(
    "verdict_differs",
    "alarm",
    source=_RESOLVER,
    says="Equipoise's fold of the channel and the audit have the same verdict on each record.",
    means="One of the two is wrong, so other output about this bundle may be wrong too.",
    remedy="Keep the recording, and report the two verdicts as a bug of Equipoise.",
)


# --- the rule for conflicts ---


class State(NamedTuple):
    """A record: the fields that the rules need. A blank broker is None."""

    state: str
    dst: str | None
    src: str | None
    force: bool
    version: int
    children: tuple[str, ...] = ()


def _same_brokers(left: State, right: State) -> bool:
    return (left.dst, left.src) == (right.dst, right.src)


_STEPS: Final[Mapping[tuple[str, str], Callable[[State, State], bool]]] = {
    ("Free", "Assigning"): lambda _, right: right.dst is not None and right.src is None,
    ("Free", "Init"): lambda _left, _right: True,
    ("Assigning", "Owned"): _same_brokers,
    ("Owned", "Releasing"): lambda left, right: (
        right.src is not None and right.src == left.dst != right.dst
    ),
    ("Owned", "Splitting"): lambda left, right: right.dst is None and right.src == left.dst,
    ("Releasing", "Assigning"): lambda left, right: (
        right.dst is not None and _same_brokers(left, right)
    ),
    ("Releasing", "Free"): _same_brokers,
    ("Splitting", "Deleted"): _same_brokers,
    ("Deleted", "Init"): lambda _left, _right: True,
}
"""The steps of ServiceUnitState on a topic, and which brokers the right record must name. A bundle
in no state may take any step."""

STATES: Final = frozenset(state for step in _STEPS for state in step)


def keeps_left(left: State | None, right: State | None) -> bool:
    """Return whether Pulsar's brokers ignore `right`, given `left`:
    ServiceUnitStateDataConflictResolver.shouldKeepLeft on a topic.

    None is a tombstone, or no record. States of a newer Pulsar have no rules here, so they are let
    through.
    """
    if right is None:
        return False
    if left is not None and (left.version, right.version) != (_INT64[-1], _INT64[0]):
        ahead = right.version - left.version
        if ahead != 1:
            return ahead < 1
    if right.force:
        return False
    before = "Init" if left is None else left.state
    if not {before, right.state} <= STATES:
        return False
    if before == "Init":
        return right.state == "Init"
    allows = _STEPS.get((before, right.state))
    return allows is None or left is None or not allows(left, right)


def parse_state(value: bytes) -> State:
    """Parse the value of a message. Raise `ValueError` with the reason if it is not a record."""
    raw = orjson.loads(value)
    if not isinstance(raw, dict):
        # The caller asks whether it is a record.
        raise ValueError("it is not an object")  # noqa: TRY004
    state, version, children = (
        raw.get("state"),
        raw.get("versionId"),
        raw.get("splitServiceUnitToDestBroker") or {},
    )
    dst, src = raw.get("dstBroker"), raw.get("sourceBroker")
    names = all(name is None or isinstance(name, str) for name in (dst, src)) and isinstance(
        children, dict
    )
    if (
        not names
        or not isinstance(state, str)
        or not state
        or type(raw.get("timestamp", 0)) is not int
    ):
        raise ValueError("a field is missing or has another type")
    if type(version) is not int or version not in _INT64:
        raise ValueError("its versionId is not a 64-bit integer")
    return State(
        state, _named(dst), _named(src), raw.get("force") is True, version, tuple(children)
    )


def _named(broker: str | None) -> str | None:
    return broker if broker is not None and broker.strip() else None


# --- the audit of bundles ---


class Message(NamedTuple):
    """A message of a recording. `published_ms` is Unix time, `producer` the name of the writer's
    connection.
    """

    offset: int
    bundle: str
    published_ms: int
    producer: str
    value: bytes | None


class Sighting(NamedTuple):
    """What a message says about brokers, for `GoneBrokers`.

    * `owner`: the broker that wrote `Owned` without force, so that the producer is its own.
    * `assigned_at`: the offset at which the bundle was assigned to `owner`, if that then took it.
    * `taken_from`: the broker from which the leader took the bundle.
    """

    offset: int
    bundle: str
    published_ms: int
    producer: str
    owner: str | None = None
    assigned_at: int | None = None
    taken_from: str | None = None

    def to_bytes(self) -> bytes:
        """Return it as the body of a row of `Table.FACTS`."""
        return orjson.dumps(tuple(self))


@dataclass(slots=True)
class _Bundle:
    """The record of a bundle, when it came, and when each of its newest versions came."""

    held: State | None = None
    offset: int = 0
    since_ms: int = 0
    reached: dict[int, int] = field(default_factory=dict)


class BundleAudit:
    """Audits messages in the order of their offsets. All bundles of a namespace must come to the
    same audit.

    Call `end` after the last message.
    """

    def __init__(self) -> None:
        """Begin before the first message."""
        self._bundles: dict[str, _Bundle] = {}
        self._children: dict[str, tuple[str, ...]] = {}
        self._ended: set[str] = set()
        """Bundles that had a tombstone: their versions begin at 1 again."""

    def check(self, message: Message, verdict: str) -> tuple[list[Finding], Sighting]:
        """Return the findings of the next message, and what it says about brokers. `verdict` is the
        fold's, `ACCEPTED` or a reason.
        """
        bundle = self._bundles.get(message.bundle) or _Bundle()
        held, right = bundle.held, None
        sighting = Sighting(message.offset, message.bundle, message.published_ms, message.producer)
        try:
            right = parse_state(message.value) if message.value else None
        except ValueError as error:
            found = [_finding(unreadable, message, f"the value is not a record: {error}")]
            return found + _differing(message, verdict, REJECTED), sighting
        is_rejected = keeps_left(held, right)
        found = _differing(message, verdict, REJECTED if is_rejected else ACCEPTED)
        if right is not None and right.state == "Owned" and not right.force:
            is_assigned = (
                not is_rejected
                and held is not None
                and held.state == "Assigning"
                and held.dst == right.dst
            )
            sighting = sighting._replace(
                owner=right.dst, assigned_at=bundle.offset if is_assigned else None
            )
        if is_rejected and held is not None and right is not None:
            return found + list(_of_rejected(bundle, held, right, message)), sighting
        found += self._of_accepted(bundle, right, message)
        if right is not None and right.force and right.state != "Releasing" and held is not None:
            server = _server(held)
            sighting = sighting._replace(
                taken_from=server if held.state != "Releasing" and server != right.dst else None
            )
        self._take(bundle, right, message)
        return found, sighting

    def end(self, newest_ms: int) -> Iterator[Finding]:
        """Yield the findings of bundles that are stuck at `newest_ms`, the newest time of the
        recording (Unix time).
        """
        for name, bundle in self._bundles.items():
            step = _stuck_step(bundle, newest_ms)
            if step is not None:
                yield _finding(
                    stuck,
                    Sighting(bundle.offset, name, newest_ms, producer=""),
                    f"it has been {step}",
                )

    def _of_accepted(
        self, bundle: _Bundle, right: State | None, message: Message
    ) -> Iterator[Finding]:
        held = bundle.held
        step = _stuck_step(bundle, message.published_ms)
        if step is not None:
            yield _finding(stuck, message, f"it was {step}", bundle.offset)
        if right is None:
            return
        if right.state not in STATES:
            yield _finding(unknown_state, message, f"the state {right.state[:64]} is unknown")
        children = self._children.get(message.bundle, ())
        child = next((child for child in children if self._is_served(child)), None)
        if child is not None:
            yield _finding(
                revived_parent,
                message,
                f"it was split, and is {right.state} again beside its child {child}",
            )
        elif (
            held is None
            and message.bundle in self._ended
            and right.version > 1
            and right.state != "Assigning"
            and not right.force
        ):
            text = (
                f"{right.state} with version {right.version}, after a tombstone had ended the"
                " bundle's versions"
            )
            yield _finding(old_version, message, text)
        if right.force or held is None:
            return
        server, now = _server(held), _server(right)
        if server is not None and now is not None and server != now:
            text = (
                f"{now} owns it ({right.state}, version {right.version}), and {server} has not"
                " released it"
            )
            yield _finding(second_owner, message, text, bundle.offset)
        elif right.version > held.version + 1:
            yield _finding(
                version_gap,
                message,
                f"its version goes from {held.version} to {right.version}",
                bundle.offset,
            )

    def _is_served(self, name: str) -> bool:
        bundle = self._bundles.get(name)
        return bundle is not None and bundle.held is not None and _server(bundle.held) is not None

    def _take(self, bundle: _Bundle, right: State | None, message: Message) -> None:
        if right is None:
            self._bundles.pop(message.bundle, None)
            self._ended.add(message.bundle)
            return
        if right.state == "Deleted" and bundle.held is not None:
            namespace = message.bundle.rpartition("/")[0]
            self._children[message.bundle] = tuple(
                f"{namespace}/{child}" for child in bundle.held.children
            )
        bundle.held, bundle.offset, bundle.since_ms = right, message.offset, message.published_ms
        earliest_ms = message.published_ms - RACE_MS
        bundle.reached = {
            version: at_ms for version, at_ms in bundle.reached.items() if at_ms >= earliest_ms
        }
        bundle.reached[right.version] = message.published_ms
        self._bundles[message.bundle] = bundle


def _stuck_step(bundle: _Bundle, at_ms: int) -> str | None:
    """Return the state that a bundle has had for too long at `at_ms`, and for how long."""
    held, spent_ms = bundle.held, at_ms - bundle.since_ms
    if held is None or held.state not in _MOVING or spent_ms <= STUCK_MS:
        return None
    return f"{held.state} for {spent_ms / 1_000:.0f} s"


def _of_rejected(bundle: _Bundle, held: State, right: State, message: Message) -> Iterator[Finding]:
    if right.version <= held.version:
        reached_ms = bundle.reached.get(right.version)
        if reached_ms is None or message.published_ms - reached_ms > RACE_MS:
            text = (
                f"{right.state} with version {right.version}, when the bundle had long had version"
                f" {held.version}"
            )
            yield _finding(old_version, message, text, bundle.offset)
    elif right.state == "Owned":
        # Its writer had read the newest record, so this is no race.
        text = (
            f"{right.dst} claims it with version {right.version}, but it was {held.state} (by"
            f" {_server(held) or held.dst or 'nobody'})"
        )
        yield _finding(second_owner, message, text, bundle.offset)


def _server(state: State) -> str | None:
    """Return who serves a bundle: its owner, and until it has released or split the bundle, the
    source.
    """
    return {"Owned": state.dst, "Releasing": state.src, "Splitting": state.src}.get(state.state)


def _differing(message: Message, verdict: str, expected: str) -> list[Finding]:
    if (verdict == ACCEPTED) == (expected == ACCEPTED):
        return []
    return [_finding(verdict_differs, message, f"the fold says {verdict}, the audit {expected}")]


def _finding(
    rule: Rule, message: Message | Sighting, text: str, *earlier: int, publisher: str | None = None
) -> Finding:
    what = f"why {quote(message.bundle)}" if parse_bundle(message.bundle) is not None else "verify"
    return Finding(
        rule=rule.name,
        subject=subject("bundle", message.bundle),
        offsets=(*earlier, message.offset),
        at_ms=message.published_ms,
        text=text,
        command=f"equipoise pulsar {what} --source {{log}}",
        publisher=publisher,
    )


# --- brokers that were gone ---


class GoneBrokers:
    """Finds what brokers wrote after the leader had taken their bundles. It sees the sightings of
    all bundles, by offset.
    """

    def __init__(self) -> None:
        """Begin before the first message."""
        self._writers: dict[str, str] = {}
        """Producer -> broker."""
        self._gone: dict[str, tuple[int, frozenset[str]]] = {}
        """Broker -> the offset at which the leader took its first bundle, and its producers until
        then."""

    def check(self, sighting: Sighting) -> Iterator[Finding]:
        """Yield the findings of the next message."""
        owner, producer = sighting.owner, sighting.producer
        if owner is not None and producer:
            self._writers[producer] = owner
        if (
            owner in self._gone
            and sighting.assigned_at is not None
            and sighting.assigned_at > self._gone[owner][0]
        ):
            del self._gone[owner]  # It has come back.
        for broker, (offset, producers) in self._gone.items():
            if producer in producers:
                text = f"{broker} wrote it, whose bundles the leader took at offset {offset}"
                yield _finding(gone_broker, sighting, text, offset, publisher=broker)
                break
        else:
            if owner in self._gone:
                offset = self._gone[owner][0]
                text = f"{owner} owns it, whose bundles the leader took at offset {offset}"
                yield _finding(gone_broker, sighting, text, offset, publisher=owner)
        taken = sighting.taken_from
        if taken is not None and taken not in self._gone:
            producers = frozenset(
                producer for producer, broker in self._writers.items() if broker == taken
            )
            self._gone[taken] = sighting.offset, producers


def parse_sighting(body: bytes) -> Sighting:
    """Return the sighting from the output of `Sighting.to_bytes`."""
    fields: list[Any] = orjson.loads(body)
    return Sighting(*fields)
