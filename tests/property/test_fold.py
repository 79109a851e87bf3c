"""The fold over random walks: the invariants of docs/protocol.md after every record, and the slow
model's word on each verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import (
    DIGEST_MODULUS,
    BrokerChanged,
    BundleChanged,
    Change,
    LevelChanged,
    NamespaceChanged,
    PolicyChanged,
    broker_part,
    bundle_part,
    last_weight,
    scalars_part,
    sequence_weight,
    status_part,
    weight,
)
from equipoise.channel.core.lifecycle import TRANSITIONS
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.records import AnyRecord, Reason, Renewed, Unreadable
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.table import changes_between
from equipoise.channel.core.view import View, apply
from tests.channels.model import Model, facts, facts_of, judge
from tests.channels.walk import CUTS, STRANGE, Walk

ORDER = (LevelChanged, PolicyChanged, NamespaceChanged, BrokerChanged, BundleChanged)
# Points at and around every place where a walk cuts.
POINTS = sorted({0, 1, HASH_MAX, *(cut + nearby for cut in CUTS for nearby in (-1, 0, 1))})

walks = st.builds(Walk, st.integers(0, 2**32), levels=st.booleans())
lengths = st.integers(1, 160)


def dump(view: View) -> dict[str, str]:
    """All that a view holds but its offset and digest, indexes too, as text: so that nothing is
    compared with itself changed.
    """
    held = {name: repr(getattr(view, name)) for name in View.__slots__}
    del held["offset"], held["_digest"]
    # The order of these two is nobody's: who asks for what is in them gets it sorted.
    held["_held"] = repr(sorted((holder, sorted(names)) for holder, names in view._held.items()))  # noqa: SLF001
    held["_unsettled"] = repr(sorted(view._unsettled))  # noqa: SLF001
    # Slots are what lookups have made of these; that they tell the truth is seen by looking up.
    held["_ranges"] = repr(
        {name: (index.lows, index.names) for name, index in sorted(view._ranges.items())}  # noqa: SLF001
    )
    return held


def tokens(view: View) -> dict[tuple[str, int], int]:
    """The token of each point of each namespace."""
    found = {}
    for entry in view.bundles.values():
        for point in POINTS:
            if entry.contains(point):
                found[entry.namespace, point] = entry.token
    return found


def slow_digest(view: View) -> int:
    """The digest as the sum over all entries, taken anew."""
    total = sum(
        bundle_part(
            weight("bundle", entry.name),
            entry.phase,
            entry.owner,
            entry.source,
            entry.last,
            entry.token,
        )
        for entry in view.bundles.values()
    )
    for broker in view.brokers.values():
        named = broker.joined.namespaces
        key = weight(
            "broker",
            broker.broker,
            broker.joined.instance_id,
            str(broker.joined.supported_level),
            *(() if named is None else ("namespaces", *named)),
        )
        total += broker_part(key, broker.status, broker.incarnation)
        total += broker.last * last_weight(key) + broker.sequence * sequence_weight(key)
    total += sum(
        status_part(weight("namespace", entry.name), entry.status, entry.last)
        for entry in view.namespaces.values()
    )
    total += sum(
        status_part(weight("policy", entry.name), "policy", entry.last)
        for entry in view.policies.values()
    )
    if view.genesis is not None:
        total += scalars_part(
            cluster=view.cluster or "",
            base=view.base,
            genesis=view.genesis,
            level=view.level,
            level_last=view.level_last,
            removed_at=view.removed_at,
        )
    return total % DIGEST_MODULUS


def check_coverage(view: View) -> None:
    """Every point of a namespace lies in exactly one bundle, and the lookup finds that one."""
    assert set(view.namespaces) == {entry.namespace for entry in view.bundles.values()}
    for namespace in view.namespaces:
        bundles = sorted(
            (entry.low, entry.high, entry.name)
            for entry in view.bundles.values()
            if entry.namespace == namespace
        )
        assert [0, *(high for _, high, _ in bundles)] == [*(low for low, _, _ in bundles), HASH_MAX]
        assert [name for _, _, name in bundles] == [
            entry.name for entry in view.bundles_of(namespace)
        ]
        for point in POINTS:
            found = view.bundle_at(namespace, point)
            assert found is not None
            assert [found.name] == [
                entry.name for entry in view.bundles_of(namespace) if entry.contains(point)
            ]


def check_indexes(view: View) -> None:
    """Each index says what a search through all entries says, and holds nothing else."""
    bundles = sorted(view.bundles.values(), key=lambda entry: entry.name)
    holders = {
        holder for entry in bundles for holder in (entry.owner, entry.source) if holder is not None
    }
    assert {
        holder: [entry for entry in bundles if holder in (entry.owner, entry.source)]
        for holder in holders
    } == {
        holder: view.held_by(holder)
        for holder in view._held  # noqa: SLF001 - that nothing else is held can only be seen inside
    }
    assert [entry for entry in bundles if entry.phase != "owned"] == view.unsettled()
    assert {name: name for name in view.bundles} == {
        name: entry.name for name, entry in view.bundles.items()
    }
    live = {
        entry.incarnation: entry
        for entry in view.brokers.values()
        if entry.status in ("up", "draining")
    }
    assert sorted(live) == [entry.incarnation for entry in view.live_brokers()]
    assert live == view.live
    assert all(
        view.live[incarnation] is view.brokers[entry.broker] for incarnation, entry in live.items()
    )


def check_holders(view: View) -> None:
    """No bundle names an incarnation that is dead, or the same one twice, or one that does not
    serve it.
    """
    for entry in view.bundles.values():
        holders = [holder for holder in (entry.owner, entry.source) if holder is not None]
        assert len(holders) == len(set(holders))
        assert all(holder in view.live for holder in holders)
        assert all(view.live[holder].joined.serves(entry.namespace) for holder in holders)


def slow_changes(before: View, after: View) -> Counter[str]:
    """What a listener must be told, from the two views alone; brokers as status and incarnation."""
    told: Counter[str] = Counter()
    for name in {**before.bundles, **after.bundles}:
        if before.bundles.get(name) != after.bundles.get(name):
            told[repr((BundleChanged, before.bundles.get(name), after.bundles.get(name)))] += 1
    for name in {**before.brokers, **after.brokers}:
        was, now = before.brokers.get(name), after.brokers.get(name)
        if (was and (was.status, was.incarnation)) != (now and (now.status, now.incarnation)):
            dead = (
                was.incarnation if was and was.live and was.incarnation not in after.live else None
            )
            told[repr((BrokerChanged, name, was and was.status, now, dead))] += 1
    for name in {**before.namespaces, **after.namespaces}:
        if before.namespaces.get(name) != after.namespaces.get(name):
            told[
                repr((NamespaceChanged, before.namespaces.get(name), after.namespaces.get(name)))
            ] += 1
    for name in {**before.policies, **after.policies}:
        if before.policies.get(name) != after.policies.get(name):
            told[repr((PolicyChanged, before.policies.get(name), after.policies.get(name)))] += 1
    if before.level != after.level:
        told[repr((LevelChanged, before.level, after.level))] += 1
    return told


def told(changes: Iterable[Change]) -> Counter[str]:
    """Changes, spelled as `slow_changes` spells them."""
    found: Counter[str] = Counter()
    for change in changes:
        if isinstance(change, LevelChanged):
            found[repr((LevelChanged, change.before, change.after))] += 1
        elif isinstance(change, BrokerChanged):
            found[repr((BrokerChanged, change.name, change.before, change.after, change.dead))] += 1
        else:
            found[repr((type(change), change.before, change.after))] += 1
    return found


def place_of(change: Change) -> tuple[int, bool, str]:
    """Where a change comes among those between two views: bundles that are gone before others."""
    stays = isinstance(change, BundleChanged) and change.after is not None
    return ORDER.index(type(change)), stays, getattr(change, "name", "")


def steps(walk: Walk, length: int) -> Iterator[tuple[int, AnyRecord | Unreadable]]:
    """The first records of a walk with their offsets."""
    for _ in range(length):
        offset, data = walk.step()
        yield offset, decode(data)


@settings(max_examples=30, deadline=None)
@given(walk=walks, length=lengths)
def test_no_verdict_depends_on_who_asked(walk: Walk, length: int) -> None:
    """Readers that know the field and older ones, which ignore it, hold the same state."""
    plain, asked = View(), View()
    for offset, record in steps(walk, length):
        # Read again, because a view keeps the record `joined`, and so must not see the field in it.
        named = (
            record
            if isinstance(record, Unreadable)
            else decode(
                encode(replace(record, requested_by="admin:alice", traceparent="00-1-2-01"))
            )
        )
        verdict, other = apply(plain, offset, record), apply(asked, offset, named)
        assert (verdict.reason, verdict.problem, verdict.diverged) == (
            other.reason,
            other.problem,
            other.diverged,
        )
    assert to_bytes(plain) == to_bytes(asked)


@settings(max_examples=60, deadline=None)
@given(walk=walks, length=lengths)
def test_the_model_reaches_the_same_verdicts_and_the_same_state(walk: Walk, length: int) -> None:
    """A second fold, written from the tables of the protocol alone, agrees with the first after
    every record.
    """
    view, model = View(), Model()
    for offset, record in steps(walk, length):
        assert judge(model, offset, record) == apply(view, offset, record).reason
        assert facts(model) == facts_of(view)


@settings(max_examples=40, deadline=None)
@given(walk=walks, length=lengths)
def test_the_invariants_hold_after_every_record(walk: Walk, length: int) -> None:
    """The hash space is covered once, tokens never fall, indexes and digest are right, nobody dead
    holds anything.
    """
    view = View()
    highest: dict[tuple[str, int], int] = {}
    for offset, record in steps(walk, length):
        apply(view, offset, record)
        check_coverage(view)
        check_indexes(view)
        check_holders(view)
        assert slow_digest(view) == view.digest()
        for point, token in tokens(view).items():
            assert token >= highest.get(point, 0)
            highest[point] = token


@settings(max_examples=40, deadline=None)
@given(walk=walks, length=lengths)
def test_a_rejected_record_changes_nothing_but_its_publishers_sequence(
    walk: Walk, length: int
) -> None:
    """Of a rejected record nothing is left but the attempt that it settled; of an accepted one, all
    that it tells.
    """
    view = View()
    for offset, record in steps(walk, length):
        before = from_bytes(to_bytes(view))
        verdict = apply(view, offset, record)
        assert slow_changes(before, view) == told(verdict.changes)
        if not verdict.accepted:
            speaker = (
                before.live.get(record.incarnation) if record.incarnation is not None else None
            )
            settles = (
                speaker is not None
                and speaker.broker == record.publisher
                and (record.sequence or 0) > speaker.sequence
            )
            if speaker is not None and settles and before.genesis is not None:
                before.raise_sequence(speaker, record.sequence or 0)
            assert dump(before) == dump(view)


@settings(deadline=None)
@given(walk=walks, length=lengths, start=st.integers(0, 160))
def test_the_difference_of_two_views_is_what_lies_between(
    walk: Walk, length: int, start: int
) -> None:
    """Between any two views of a walk, in the order that the comparison promises."""
    view, before = View(), View()
    for place, (offset, record) in enumerate(steps(walk, length)):
        if place == start:
            before = from_bytes(to_bytes(view))
        apply(view, offset, record)
    changes = changes_between(before, view)
    assert slow_changes(before, view) == told(changes)
    assert sorted(changes, key=place_of) == list(changes)


@settings(max_examples=40, deadline=None)
@given(walk=walks, length=lengths, restarts=st.lists(st.integers(0, 160), max_size=4))
def test_a_fold_that_restarts_from_snapshots_comes_to_the_same(
    walk: Walk, length: int, restarts: list[int]
) -> None:
    """Wherever a reader restarted from a snapshot, each later verdict, and the view byte for byte,
    is the live one's.
    """
    live, restarted = View(), View()
    for place, (offset, record) in enumerate(steps(walk, length)):
        if place in restarts:
            restarted = from_bytes(to_bytes(restarted))
        assert apply(live, offset, record) == apply(restarted, offset, record)
    zero = View()
    for offset, data in walk.entries:
        apply(zero, offset, decode(data))
    assert to_bytes(live) == to_bytes(restarted) == to_bytes(zero)


@settings(max_examples=40, deadline=None)
@given(walk=walks, length=lengths)
def test_a_renewal_diverges_exactly_if_it_says_another_digest(walk: Walk, length: int) -> None:
    """What a renewal must say is the digest that the view had just after the last accepted record
    of its broker's key.
    """
    view = View()
    just_after: dict[str, int] = {}
    for offset, record in steps(walk, length):
        verdict = apply(view, offset, record)
        expected = (
            isinstance(record, Renewed)
            and verdict.accepted
            and record.digest != just_after[record.key]
        )
        assert expected == verdict.diverged
        for name, entry in view.brokers.items():
            if entry.last == offset:
                just_after[name] = slow_digest(view)


def test_the_walks_meet_every_reason_and_every_row() -> None:
    """The properties above would be worth little if the walks went past what they are about."""
    met, rows = Counter[str](), set[tuple[str, str]]()
    for seed in range(24):
        view = View()
        for offset, record in steps(Walk(seed, levels=seed % 2 == 0), 250):
            verdict = apply(view, offset, record)
            met[verdict.reason or "accepted"] += 1
            rows |= {
                (change.before.phase, change.after.phase)
                for change in verdict.changes
                if isinstance(change, BundleChanged) and change.before and change.after
            }
    unlikely = {Reason.NO_GENESIS, Reason.UNKNOWN_NAMESPACE}
    assert {"accepted", *Reason} - unlikely <= set(met)
    assert met["accepted"] > sum(met.values()) // 4
    assert {(row.before, row.after) for row in TRANSITIONS} <= rows


FIELDS = st.sampled_from(
    (
        "kind",
        "key",
        "expected_offset",
        "publisher",
        "incarnation",
        "sequence",
        "as_of",
        "level",
        "timestamp_ms",
        "state",
        "owner",
        "source",
        "requested_by",
        "traceparent",
        "positions",
        "status",
        "instance_id",
        "lease_ms",
        "digest",
        "right",
        "raises_to",
    )
)
VALUES = st.one_of(
    st.sampled_from(
        (
            *STRANGE,
            "bundle",
            "broker",
            "joined",
            "owned",
            "level",
            "genesis",
            "t/one/0x00000000_0xffffffff",
        )
    ),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-1, 2**64 - 1)
        | st.floats(allow_nan=False)
        | st.text(max_size=5),
        st.lists,
    ),
)


@settings(max_examples=100, deadline=None)
@given(data=st.one_of(st.binary(max_size=60), st.dictionaries(FIELDS, VALUES).map(orjson.dumps)))
def test_any_bytes_are_folded(data: bytes) -> None:
    """Whatever the bytes, a fold that knows brokers and bundles gives a verdict and stays whole."""
    view = from_bytes(BUSY)
    apply(view, view.offset + 1, decode(data))
    check_coverage(view)
    check_indexes(view)
    assert slow_digest(view) == view.digest()


def busy() -> bytes:
    """A view with brokers and bundles in it."""
    walk, view = Walk(5), View()
    for offset, record in steps(walk, 100):
        apply(view, offset, record)
    assert view.live
    assert view.bundles
    return to_bytes(view)


BUSY = busy()
