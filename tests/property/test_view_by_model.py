"""Every record that anybody can write about a small cluster: the fold judges it as the model does,
and comes to the same state.

The model (tests/channels/model.py) is written from the tables of docs/protocol.md alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode
from equipoise.channel.core.difference import changes_between
from equipoise.channel.core.entries import BundleChanged, Verdict
from equipoise.channel.core.lifecycle import PHASE_OF_SHAPE, TRANSITIONS, Phase
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.records import (
    AnyRecord,
    BrokerChange,
    BrokerRecord,
    BundleTransition,
    Genesis,
    Joined,
    LevelRecord,
    NamespaceRecord,
    NamespaceStatus,
    PolicyChange,
    PolicyRecord,
    Reason,
    Renewed,
    Split,
)
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.view import apply
from tests.channels.folding import (
    CLUSTER,
    MIDDLE,
    NAMESPACE,
    Channel,
    channel_in,
    channel_with,
    joined,
)
from tests.channels.model import Model, facts, facts_of, judge

PHASES: tuple[Phase, ...] = get_args(Phase)
BROKERS = ("owner", "source", "other", "drained")
STRANGER = 10**6
"""An incarnation that nobody has, above all offsets here."""


def judged(channel: Channel, records: Iterable[AnyRecord]) -> list[tuple[AnyRecord, Verdict]]:
    """Let fold and model judge each record as the next one on the channel, and compare them. Return
    the verdicts.
    """
    before, offset, model = to_bytes(channel.view), channel.view.offset + 1, Model()
    for place, data in channel.entries:
        judge(model, place, decode(data))
    verdicts = []
    for record in records:
        view, dumb, was = from_bytes(before), deepcopy(model), from_bytes(before)
        verdict = apply(view, offset, record)
        verdicts.append((record, verdict))
        assert judge(dumb, offset, record) == verdict.reason, record
        assert facts(dumb) == facts_of(view), record
        assert tuple(changes_between(was, view)) == verdict.changes, record
    return verdicts


def reasons(verdicts: list[tuple[AnyRecord, Verdict]]) -> set[Reason | None]:
    """The reasons that were met; None for records that were accepted."""
    return {verdict.reason for _, verdict in verdicts}


def channel_of_six(phase: Phase) -> Channel:
    """A channel whose bundle is in a phase, with a broker that drains, one that has died and one
    that has left.
    """
    channel = channel_in(phase, "other", "drained", "dead", "left")
    channel.accept(propose.draining(channel.author("drained"), channel.broker("drained")))
    channel.die("dead")
    channel.accept(propose.left(channel.author("left"), channel.broker("left")))
    return channel


def authors(channel: Channel) -> list[Author]:
    """All live brokers, one that is dead, one that signs for another, and an admin."""
    live = [channel.author(broker) for broker in BROKERS]
    return [*live, channel.author("dead"), replace(live[0], publisher="other"), channel.admin()]


def transitions(channel: Channel) -> Iterator[BundleTransition]:
    """Every well-formed transition of the bundle, by everybody, naming anybody, against its state
    or another one.
    """
    bundle, incarnations = (
        channel.bundle(),
        [channel.incarnation(broker) for broker in (*BROKERS, "dead")],
    )
    for (state, has_owner, has_source), author in product(PHASE_OF_SHAPE, authors(channel)):
        owners, sources = (
            [*incarnations, STRANGER] if has_owner else [None],
            incarnations[:3] if has_source else [None],
        )
        record = BundleTransition(
            key=bundle.name,
            expected_offset=bundle.last,
            **author.signature,
            state=state,
            owner=owners[0],
            source=sources[0],
            positions=(1,),
        )
        for owner, source in product(owners, sources):
            yield replace(record, owner=owner, source=source)
        yield replace(record, expected_offset=bundle.last - 1)
        yield replace(record, expected_offset=bundle.last + 1)
        yield replace(record, key=f"{bundle.name}0")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("is_deleting", [False, True], ids=["created", "deleting"])
def test_transitions_of_a_bundle(phase: Phase, *, is_deleting: bool) -> None:
    """Each row of the table is met from its phase, and what is no row is refused with the model's
    reason.
    """
    channel = channel_of_six(phase)
    if is_deleting:
        channel.accept(
            propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE)
        )
    verdicts = judged(channel, transitions(channel))
    changes = [change for _, verdict in verdicts for change in verdict.changes]
    met = {
        change.after.phase
        for change in changes
        if isinstance(change, BundleChanged) and change.after is not None
    }
    rows = [row for row in TRANSITIONS if row.before == phase]
    assert {row.after for row in rows if not (is_deleting and row.refused_while_deleting)} == met
    assert {
        Reason.STALE,
        Reason.UNKNOWN_BUNDLE,
        Reason.ILLEGAL_TRANSITION,
        Reason.DEAD_PUBLISHER,
    } <= reasons(verdicts)


def about_brokers(channel: Channel) -> Iterator[AnyRecord]:
    """Every record about every broker, and about one that was never there, by everybody, against
    its state or another one.
    """
    view = channel.view
    changes: tuple[BrokerChange, ...] = get_args(BrokerChange)
    for broker in (*view.brokers, "never there"):
        entry = view.brokers.get(broker)
        instance_ids = [
            None,
            "another instance_id",
            *([] if entry is None else [entry.joined.instance_id]),
        ]
        for expected_offset in (view.last_of_broker(broker), view.last_of_broker(broker) - 1):
            for author in authors(channel):
                yield Renewed(
                    key=broker, expected_offset=expected_offset, **author.signature, digest=0
                )
                for status, instance_id in product(changes, instance_ids):
                    yield BrokerRecord(
                        key=broker,
                        expected_offset=expected_offset,
                        **author.signature,
                        status=status,
                        instance_id=instance_id,
                    )
            for replaces, after_silence in product(instance_ids, (False, True)):
                record = joined(
                    broker, view, instance_id="new", replaces=replaces, after_silence=after_silence
                )
                yield replace(record, expected_offset=expected_offset)
                yield replace(record, expected_offset=expected_offset, level=2)
    yield joined("a b", view, instance_id="new")


@pytest.mark.parametrize("phase", PHASES)
def test_records_about_brokers(phase: Phase) -> None:
    """Joining, renewing, draining, leaving, death in each of its ways, and removal: with what
    becomes of the bundle in this phase.
    """
    verdicts = judged(channel_of_six(phase), about_brokers(channel_of_six(phase)))
    expected = {
        None,
        Reason.STALE,
        Reason.UNKNOWN_BROKER,
        Reason.NOT_THE_ACTOR,
        Reason.STILL_ALIVE,
        Reason.ILLEGAL_TRANSITION,
    }
    assert expected | {Reason.LEVEL, Reason.MALFORMED, Reason.DEAD_PUBLISHER} == reasons(verdicts)
    changed = [
        record
        for record, verdict in verdicts
        if any(isinstance(change, BundleChanged) for change in verdict.changes)
    ]
    assert {Joined, BrokerRecord} == {type(record) for record in changed} or phase == "free"


CUTS: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (1, MIDDLE),
    (2, 1),
    (1, 1),
    (HASH_MAX,),
    (1, HASH_MAX + 5),
)


@pytest.mark.parametrize("phase", PHASES)
def test_splits(phase: Phase) -> None:
    """Only the owner splits its splitting bundle, at points that rise strictly inside it."""
    channel = channel_of_six(phase)
    bundle = channel.bundle()
    records = [
        Split(key=key, expected_offset=expected_offset, **author.signature, positions=cuts)
        for author, cuts, expected_offset in product(
            authors(channel), CUTS, (bundle.last, bundle.last - 1)
        )
        for key in (bundle.name, f"{bundle.name}0")
    ]
    refused = {Reason.STALE, Reason.UNKNOWN_BUNDLE, Reason.DEAD_PUBLISHER}
    here = (
        {None, Reason.NOT_THE_ACTOR, Reason.BAD_BOUNDARY}
        if phase == "splitting"
        else {Reason.ILLEGAL_TRANSITION}
    )
    assert refused | here == reasons(judged(channel, records))


def test_merges() -> None:
    """Two owned neighbours of one owner become one bundle, by anybody."""
    channel = channel_with(*BROKERS, "dead", bundles=6)
    channel.accept(propose.draining(channel.author("drained"), channel.broker("drained")))
    channel.create((0, MIDDLE, HASH_MAX), namespace="tenant/other")
    for place, bundle in enumerate(channel.view.bundles_of(NAMESPACE)[:5]):
        channel.own("owner" if place < 3 else "other", bundle.low)
    moving = channel.view.bundles_of(NAMESPACE)[1]
    channel.accept(
        propose.transfer(channel.admin(), moving, destination=channel.incarnation("other"))
    )
    channel.die("dead")
    bundles = list(channel.view.bundles.values())
    records = [
        replace(
            propose.merge(author, left, right),
            expected_offset=left.last - late,
            expected_offset_right=right.last - later,
        )
        for author, left, right in product(authors(channel)[3:], bundles, bundles)
        for late, later in ((0, 0), (1, 0), (0, 1))
    ]
    unknown = [replace(records[0], key="x"), replace(records[0], right="x")]
    verdicts = judged(channel, [*records, *unknown])
    refused = {
        Reason.STALE,
        Reason.NOT_ADJACENT,
        Reason.ILLEGAL_TRANSITION,
        Reason.UNKNOWN_BUNDLE,
        Reason.DEAD_PUBLISHER,
    }
    assert {None, *refused} == reasons(verdicts)


BOUNDARIES: tuple[tuple[int, ...] | None, ...] = (
    *(None, (), (0,), (0, HASH_MAX), (0, 1, MIDDLE, HASH_MAX), (HASH_MAX,), (0, 5), (1, HASH_MAX)),
    *((0, 5, 5, HASH_MAX), (0, 6, 5, HASH_MAX), (0, HASH_MAX + 1)),
)


@pytest.mark.parametrize("phase", ["free", "owned", "unloading"])
@pytest.mark.parametrize("is_deleting", [False, True], ids=["created", "deleting"])
def test_records_about_namespaces(phase: Phase, *, is_deleting: bool) -> None:
    """Creation, policies, and deletion in two steps; of one that is there, one that was deleted,
    and names that are none.
    """
    channel = channel_of_six(phase)
    channel.create(namespace="tenant/gone")
    channel.accept(
        propose.start_deleting_namespace(channel.admin(), channel.view, name="tenant/gone")
    )
    channel.accept(propose.delete_namespace(channel.admin(), channel.view, name="tenant/gone"))
    if is_deleting:
        channel.accept(
            propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE)
        )
    statuses: tuple[NamespaceStatus, ...] = get_args(NamespaceStatus)
    present, removed_at = channel.view.namespaces[NAMESPACE].last, channel.view.removed_at
    keys = (
        (NAMESPACE, present),
        ("tenant/gone", removed_at),
        *((name, removed_at) for name in ("t", "t/", "/n", "t/n/x", "t/n ", "t/..")),
    )
    records = [
        NamespaceRecord(
            key=key,
            expected_offset=expected_offset - late,
            **author.signature,
            status=status,
            boundaries=boundaries,
            policies=policies,
        )
        for author, (key, expected_offset), status, late, policies in product(
            authors(channel)[4:], keys, statuses, (0, 1), ({"a": 1}, None)
        )
        for boundaries in (BOUNDARIES if status == "created" else (None,))
    ]
    met = reasons(judged(channel, records))
    assert {
        None,
        Reason.STALE,
        Reason.UNKNOWN_NAMESPACE,
        Reason.ILLEGAL_TRANSITION,
        Reason.BAD_BOUNDARY,
        Reason.MALFORMED,
    } <= met
    assert (Reason.BUNDLES_IN_USE in met) == (is_deleting and phase != "free")


def test_records_about_policies_and_the_cluster() -> None:
    """Policies are set and removed, the format version rises once all who live support it, and no
    second genesis is accepted.
    """
    channel = channel_with("owner")
    for broker, supports in (("source", 2), ("other", 3), ("drained", 9), ("dead", 1)):
        channel.accept(
            joined(broker, channel.view, instance_id=f"instance_id of {broker}", supports=supports)
        )
    channel.die("owner")
    channel.accept(
        propose.set_policy(channel.admin(), channel.view, name="there", document={"a": 1})
    )
    channel.accept(propose.set_policy(channel.admin(), channel.view, name="gone", document={}))
    channel.accept(propose.remove_policy(channel.admin(), channel.view, name="gone"))
    changes: tuple[PolicyChange, ...] = get_args(PolicyChange)
    records: list[AnyRecord] = []
    for author, late in product(authors(channel)[1:], (0, 1)):
        for key, status, document in product(("there", "gone"), changes, (None, {}, {"a": 2})):
            before = channel.view.policies.get(key)
            expected_offset = channel.view.removed_at if before is None else before.last
            records.append(
                PolicyRecord(
                    key=key,
                    expected_offset=expected_offset - late,
                    **author.signature,
                    status=status,
                    document=document,
                )
            )
        for level in (0, 1, 2, 3):
            expected_offset = channel.view.level_last - late
            records.append(
                LevelRecord(
                    key="level",
                    expected_offset=expected_offset,
                    **author.signature,
                    raises_to=level,
                )
            )
        records.append(replace(records[-1], level=2))
    records += [
        Genesis(
            key="genesis", expected_offset=0, publisher="x", cluster=cluster, base=base, level=level
        )
        for cluster, base, level in product((CLUSTER, "another"), (0, 7), (1, 2))
    ]
    met = reasons(judged(channel, records))
    refused = {
        Reason.STALE,
        Reason.UNKNOWN_POLICY,
        Reason.ILLEGAL_TRANSITION,
        Reason.LEVEL,
        Reason.FOREIGN_GENESIS,
        Reason.DEAD_PUBLISHER,
    }
    assert {None, *refused} == met
    channel.die("dead")
    raised = LevelRecord(
        key="level",
        expected_offset=channel.view.level_last,
        **channel.admin().signature,
        raises_to=2,
    )
    assert {None} == reasons(judged(channel, [raised]))
