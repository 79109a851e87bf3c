"""The audit of a channel: each kind of finding, and what it points at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import (
    BrokerChanged,
    BundleChanged,
    BundleEntry,
    Change,
    NamespaceChanged,
    NamespaceEntry,
    bundle_entry,
)
from equipoise.channel.core.errors import LogDamaged, LogUnavailable
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import LevelRecord, Reason
from equipoise.channel.core.view import View
from equipoise.channel.inspect import verify
from equipoise.channel.inspect.verify import (
    Audit,
    Finding,
    Findings,
    Kind,
    problems_of,
    problems_of_view,
)
from equipoise.channel.log.memory_log import MemoryLog
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with
from tests.channels.troubled_log import TroubledLog


def audit_of(channel: Channel, *, cluster: str | None = None) -> Findings:
    """What is found in a channel."""
    audit = Audit(Reader(log="memory:test", cluster=cluster))
    for offset, data in channel.entries:
        audit.feed(Entry(offset - channel.view.base, data))
    return audit.findings()


def kinds(findings: Findings) -> list[tuple[Kind, int, int, tuple[int, ...]]]:
    """What is found, without the words."""
    return [
        (finding.kind, finding.first, finding.last, finding.suspects)
        for finding in findings.findings
    ]


def renew(channel: Channel, broker: str, **changes: int) -> None:
    """Let a broker renew its lease, with some fields changed."""
    # Integers all.
    channel.put(replace(propose.renewed(channel.author(broker), channel.broker(broker)), **changes))  # type: ignore[arg-type]


def test_what_is_in_order_is_counted() -> None:
    """Of a channel in order the audit tells how much it has read, how it was judged, and how often
    views were compared.
    """
    channel = channel_in("owned")
    renew(channel, "owner")
    channel.put(propose.opened(channel.author("owner"), channel.bundle()))
    expected = Findings(
        folded_to=8,
        records=8,
        accepted=7,
        rejected={Reason.ILLEGAL_TRANSITION: 1},
        agreements=1,
        findings_count=0,
        findings=(),
    )
    assert expected == audit_of(channel)
    assert expected.in_order


def test_garbage_is_named() -> None:
    """Bytes that are no record are a finding with their offset and what is wrong with them, and
    nothing else is.
    """
    channel = channel_with("a:1")
    channel.put_bytes(b"garbage")
    [finding] = audit_of(channel).findings
    assert (Kind.MALFORMED, 4, 4) == (finding.kind, finding.first, finding.last)
    assert "not JSON" in finding.text
    assert finding.names(4)
    assert not finding.names(3)


def test_a_malformed_record_is_named() -> None:
    """A record that is readable and says what cannot be is a finding too."""
    channel = channel_with("a:1")
    channel.put(
        propose.set_policy(
            Author(publisher="admin:ops", as_of=99), channel.view, name="limit", document={}
        )
    )
    findings = audit_of(channel)
    assert [(Kind.MALFORMED, 4, 4, ())] == kinds(findings)
    assert "as_of is above" in findings.findings[0].text


def test_records_of_another_log_are_named() -> None:
    """What stands before the genesis, and the genesis of another cluster, do not belong to this
    log.
    """
    channel = Channel()
    channel.put(
        propose.set_policy(
            Author(publisher="admin:ops", as_of=0), channel.view, name="limit", document={}
        )
    )
    channel.genesis()
    channel.put(propose.genesis(Author(publisher="admin:ops"), cluster="another"))
    assert [(Kind.FOREIGN, 1, 1, ()), (Kind.FOREIGN, 3, 3, ())] == kinds(audit_of(channel))


def test_the_log_of_another_cluster_is_not_folded() -> None:
    """Where the operator names the cluster, the log of another ends the audit at its genesis."""
    findings = audit_of(channel_with("a:1"), cluster="mine")
    assert [(Kind.FOREIGN, 1, 1, ())] == kinds(findings)
    assert 0 == findings.records
    assert "belongs to cluster 'test'" in findings.findings[0].text


def test_a_level_above_ours_ends_the_audit() -> None:
    """What follows the raise of the level to one that this version does not know cannot be judged,
    and is not.
    """
    channel = channel_with()
    channel.put(
        LevelRecord(key="level", expected_offset=1, publisher="admin:ops", as_of=2, raises_to=9)
    )
    channel.put_bytes(b"garbage")
    findings = audit_of(channel)
    assert [(Kind.FOREIGN, 3, 3, ())] == kinds(findings)
    assert "upgrade" in findings.findings[0].text


def test_who_builds_on_what_was_rejected_is_named_with_it() -> None:
    """A record based on one that is rejected here shows that one of the two is not what was
    written.
    """
    channel = channel_in("owned")
    before = channel.bundle()
    target = channel.incarnation("source")
    channel.put(
        replace(propose.transfer(channel.admin(), before, destination=target), expected_offset=1)
    )
    rejected = channel.view.offset
    channel.put(
        replace(
            propose.prepared(channel.author("source"), before),
            expected_offset=rejected,
            owner=target,
            source=before.owner,
        )
    )
    assert [(Kind.BASELESS, rejected + 1, rejected + 1, (rejected,))] == kinds(audit_of(channel))


def test_who_refers_to_what_is_still_to_come_is_named_alone() -> None:
    """A record cannot be based on what stands behind it, so there is no other suspect."""
    channel = channel_in("owned")
    channel.put(replace(propose.unload(channel.admin(), channel.bundle()), expected_offset=99))
    offset = channel.view.offset
    assert [(Kind.BASELESS, offset, offset, ())] == kinds(audit_of(channel))


def test_who_signs_for_another_is_named() -> None:
    """A record of an incarnation that is another broker's points at itself, and at the record by
    which that one joined.
    """
    channel = channel_in("owned")
    stranger = replace(channel.author("owner"), publisher="stranger")
    channel.put(propose.unload(stranger, channel.bundle()))
    offset = channel.view.offset
    assert [(Kind.BASELESS, offset, offset, (channel.incarnation("owner"),))] == kinds(
        audit_of(channel)
    )


def test_views_that_part_are_found_between_two_digests() -> None:
    """The divergence lies after the last digest that agreed, and not after what the first one that
    does not is of.
    """
    channel = channel_with("a:1", "b:1")
    for broker in ("a:1", "b:1", "a:1", "b:1"):
        renew(channel, broker)
    agreed, damaged = channel.broker("a:1").last, len(channel.entries)
    channel.put(propose.set_policy(channel.admin(), channel.view, name="limit", document={}))
    for _ in range(2):
        for broker in ("a:1", "b:1"):
            renew(channel, broker)
    offset, data = channel.entries[damaged]
    channel.entries[damaged] = (offset, data.replace(b'"limit"', b'"Limit"'))
    [finding] = audit_of(channel).findings
    assert Kind.DIVERGED is finding.kind
    assert agreed < finding.first <= offset <= finding.last
    assert "never agree again" in finding.text


def test_an_odd_record_is_the_first_suspect() -> None:
    """Among the records between two digests, the one that is not spelled as a writer of ours spells
    it is named.
    """
    channel = channel_with("a:1")
    renew(channel, "a:1")
    renew(channel, "a:1")
    channel.put(propose.set_policy(channel.admin(), channel.view, name="limit", document={}))
    suspect = channel.view.offset
    channel.put(propose.set_policy(channel.admin(), channel.view, name="other", document={}))
    renew(channel, "a:1")
    renew(channel, "a:1")
    channel.entries[suspect - 1] = (
        suspect,
        channel.entries[suspect - 1][1].replace(b'"limit"', b' "Limit"'),
    )
    [finding] = audit_of(channel).findings
    assert suspect == finding.suspects[0]


def test_a_digest_that_is_wrong_by_itself_is_named() -> None:
    """Where others confirm the very view that a renewal denies, the renewal is wrong; where not,
    what lies between may be too.
    """
    channel = channel_with("a:1", "b:1")
    for broker in ("a:1", "b:1", "a:1", "b:1"):
        renew(channel, broker)
    at = channel.broker("a:1").last
    renew(channel, "a:1", digest=7)
    wrong = channel.view.offset
    for broker in ("b:1", "a:1"):
        renew(channel, broker)
    [finding] = audit_of(channel).findings
    assert (Kind.DIVERGED, (wrong,)) == (finding.kind, finding.suspects)
    assert finding.last == at
    assert "agree again later" in finding.text


def test_a_digest_that_others_confirm_otherwise_is_wrong_for_certain() -> None:
    """Two renewals that are based on one record, of which one is read again, cannot both be
    right.
    """
    channel = channel_with("a:1")
    # No channel that is folded once has two renewals of one view.
    digests = verify._Digests()  # noqa: SLF001
    record = propose.renewed(channel.author("a:1"), channel.broker("a:1"))
    assert None is digests.compare(4, record, agrees=True)
    finding = digests.compare(5, record, agrees=False)
    assert finding is not None
    assert (5, 5, ()) == (finding.first, finding.last, finding.suspects)


def test_offsets_are_logical() -> None:
    """On a log that goes on above another one, findings name the offsets that records and tokens
    name.
    """
    channel = channel_with("a:1")
    view = channel.view
    stale = replace(
        propose.set_policy(channel.admin(), view, name="limit", document={}), expected_offset=500
    )
    view.go_on_above(1_000, level=view.level, level_last=view.level_last)
    audit = Audit(Reader(log="memory:test", view=view))
    genesis = propose.genesis(
        Author(publisher="admin:ops"), cluster="test", base=1_000, level=view.level
    )
    for offset, data in enumerate((encode(genesis), encode(stale), b"garbage"), 1):
        audit.feed(Entry(offset, data))
    assert [(Kind.MALFORMED, 1_003, 1_003, ())] == kinds(audit.findings())


# --- logs ---


def log_of(channel: Channel) -> TroubledLog:
    """A log in memory with the records of a channel."""
    log = TroubledLog(name=f"memory:verify-{id(channel)}")
    log.append([data for _, data in channel.entries], timeout_ms=0)
    return log


class Rotten(TroubledLog):
    """A log that cannot give the entry at `rotten`, and may or may not say which one it is."""

    rotten = 5
    says_which = True

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        entries = super().read(position, limit=limit)
        if any(entry.offset == self.rotten for entry in entries):
            raise LogDamaged(
                log=self.name, problem="rust", offset=self.rotten if self.says_which else None
            )
        return entries


@pytest.mark.parametrize(("says_which", "last"), [(True, 5), (False, 8)])
def test_what_lies_before_damage_is_audited(*, says_which: bool, last: int) -> None:
    """Entries before the damage are folded; the damage is named, or all from where it begins if the
    log does not say which.
    """
    log = Rotten(name="memory:rotten")
    log.says_which = says_which
    log.append(
        [data for _, data in channel_with("a:1", "b:1").entries] + [b"garbage"] * 4, timeout_ms=0
    )
    findings = verify.verify(log)
    assert (Kind.DAMAGED, 5, last, ()) == kinds(findings)[0]
    assert (4, 4) == (findings.folded_to, findings.records)
    assert 1 == findings.findings_count


class Contradicting(TroubledLog):
    """A log whose storage contradicts itself, and that leaves out the offsets in `missing`."""

    missing: Sequence[int] = ()

    def check_storage(self) -> None:
        raise LogDamaged(log=self.name, problem="page 3 is torn")

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        return [
            entry
            for entry in super().read(position, limit=limit)
            if entry.offset not in self.missing
        ]


@dataclass(frozen=True, kw_only=True)
class Omission:
    """Offsets that are left out of six, and where the damage then lies."""

    id: str
    missing: tuple[int, ...]
    first: int
    last: int


OMISSIONS = (
    Omission(id="none", missing=(), first=1, last=6),
    Omission(id="one", missing=(5,), first=5, last=5),
    Omission(id="two runs", missing=(2, 4, 5), first=2, last=5),
    Omission(id="the end", missing=(5, 6), first=5, last=6),
)


@pytest.mark.parametrize("omission", OMISSIONS, ids=lambda omission: omission.id)
def test_damage_beside_the_records_is_found_where_records_are_missing(omission: Omission) -> None:
    """Storage that contradicts itself is a finding, first of all, and points at the offsets that
    were not read.
    """
    log = Contradicting(name="memory:contradicting")
    log.missing = omission.missing
    channel = channel_with("a:1", "b:1")
    for number in range(2):
        channel.put(
            propose.set_policy(channel.admin(), channel.view, name=f"p{number}", document={})
        )
    log.append([data for _, data in channel.entries], timeout_ms=0)
    findings = verify.verify(log)
    assert (Kind.DAMAGED, omission.first, omission.last, ()) == kinds(findings)[0]
    assert "page 3 is torn" in findings.findings[0].text


def test_entries_that_come_twice_end_the_audit() -> None:
    """A log that gives what it gave before is damaged where it does."""
    audit = Audit(Reader(log="memory:test"))
    entries = [Entry(offset, data) for offset, data in channel_with("a:1", "b:1").entries]
    for entry in (*entries[:3], entries[1], entries[3]):
        audit.feed(entry)
    findings = audit.findings()
    assert [(Kind.DAMAGED, 2, 2, ())] == kinds(findings)
    assert not audit.goes_on
    assert 3 == findings.records


def test_the_whole_log_is_audited() -> None:
    """The audit reads a log to its end, in as many reads as it takes, and stops there. It keeps a
    bounded number of findings, and counts all.
    """
    channel = channel_with("a:1")
    log = log_of(channel)
    for _ in range(3):
        log.append([b"garbage"] * 4_000, timeout_ms=0)
    findings = verify.verify(log)
    assert (12_003, 12_003, 12_000) == (
        findings.records,
        findings.folded_to,
        findings.findings_count,
    )
    assert ({Reason.MALFORMED: 12_000}, verify.FINDINGS_MAX) == (
        findings.rejected,
        len(findings.findings),
    )


def test_an_end_in_a_gap_is_an_end() -> None:
    """A log that ends in a gap, as after a restart of the machine, is in order."""

    class Skipping(MemoryLog):
        def end(self) -> int:
            return super().end() + 1_000_000

    log = Skipping(name="memory:verify-gap")
    log.append([data for _, data in channel_with("a:1").entries], timeout_ms=0)
    assert verify.verify(log).in_order


def test_what_is_not_damage_is_raised() -> None:
    """A log that is away cannot be audited, and says why."""
    log = log_of(channel_with("a:1"))
    log.read_error = LogUnavailable(log=log.name, problem="away")
    with pytest.raises(LogUnavailable):
        verify.verify(log)


# --- invariants ---


def bundle(
    low: int, high: int, *, owner: int | None = 2, token: int = 7, namespace: str = NAMESPACE
) -> BundleEntry:
    """An owned bundle, or a free one."""
    phase = "free" if owner is None else "owned"
    # A phase.
    return bundle_entry(namespace, low, high, phase, owner=owner, source=None, last=9, token=token)  # type: ignore[arg-type]


def changed(before: BundleEntry | None, after: BundleEntry | None) -> BundleChanged:
    """A change from one entry to another."""
    either = before or after
    assert either is not None
    return BundleChanged(name=either.name, before=before, after=after)


NAMESPACE_ENTRY = NamespaceEntry(name=NAMESPACE, status="created", last=9, created=9, policies={})
CREATED = NamespaceChanged(name=NAMESPACE, before=None, after=NAMESPACE_ENTRY)
DELETED = NamespaceChanged(name=NAMESPACE, before=NAMESPACE_ENTRY, after=None)


@dataclass(frozen=True, kw_only=True)
class Breach:
    """Changes of one record, in a view where incarnations 2 and 3 are alive, and what they
    break.
    """

    id: str
    changes: tuple[Change, ...]
    kinds: tuple[Kind, ...]


LEFT, RIGHT, WHOLE = bundle(0, MIDDLE), bundle(MIDDLE, HASH_MAX), bundle(0, HASH_MAX)
BREACHES = (
    Breach(
        id="a split",
        changes=(changed(WHOLE, None), changed(None, LEFT), changed(None, RIGHT)),
        kinds=(),
    ),
    Breach(
        id="a merge",
        changes=(changed(LEFT, None), changed(RIGHT, None), changed(None, WHOLE)),
        kinds=(),
    ),
    Breach(
        id="a split with a hole",
        changes=(changed(WHOLE, None), changed(None, LEFT)),
        kinds=(Kind.NOT_COVERED,),
    ),
    Breach(
        id="a split that covers twice",
        changes=(
            changed(WHOLE, None),
            changed(None, LEFT),
            changed(None, RIGHT),
            changed(None, bundle(0, 1)),
        ),
        kinds=(Kind.NOT_COVERED,),
    ),
    Breach(
        id="a creation", changes=(CREATED, changed(None, bundle(0, HASH_MAX, owner=None))), kinds=()
    ),
    Breach(
        id="a creation with a hole",
        changes=(CREATED, changed(None, bundle(0, MIDDLE, owner=None))),
        kinds=(Kind.NOT_COVERED,),
    ),
    Breach(
        id="a deletion", changes=(DELETED, changed(bundle(0, HASH_MAX, owner=None), None)), kinds=()
    ),
    Breach(
        id="a deletion of a part",
        changes=(DELETED, changed(bundle(0, MIDDLE, owner=None), None)),
        kinds=(Kind.NOT_COVERED,),
    ),
    Breach(
        id="a new owner", changes=(changed(LEFT, bundle(0, MIDDLE, owner=3, token=8)),), kinds=()
    ),
    Breach(
        id="a new owner with the old token",
        changes=(changed(LEFT, bundle(0, MIDDLE, owner=3)),),
        kinds=(Kind.TOKEN_FELL,),
    ),
    Breach(
        id="a token that falls",
        changes=(changed(LEFT, bundle(0, MIDDLE, token=6)),),
        kinds=(Kind.TOKEN_FELL,),
    ),
    Breach(
        id="a merge that takes the lower token",
        changes=(
            changed(LEFT, None),
            changed(bundle(MIDDLE, HASH_MAX, token=8), None),
            changed(None, WHOLE),
        ),
        kinds=(Kind.TOKEN_FELL,),
    ),
    Breach(
        id="a dead owner",
        changes=(changed(bundle(0, MIDDLE, owner=None), bundle(0, MIDDLE, owner=9, token=8)),),
        kinds=(Kind.DEAD_HOLDER,),
    ),
    Breach(
        id="an owner that does not serve it",
        changes=(changed(bundle(0, MIDDLE, owner=None), bundle(0, MIDDLE, owner=5, token=8)),),
        kinds=(Kind.NOT_SERVED,),
    ),
)


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.id)
def test_broken_invariants_are_found(breach: Breach) -> None:
    """Changes that leave a hole, let a token fall, or name the dead are found, and those that are
    in order are not.
    """
    channel = channel_with("a:1", "b:1")
    channel.join("c:1", serves=["other/*"])
    view = channel.view
    assert breach.kinds == tuple(kind for kind, _ in problems_of(breach.changes, view))


def test_a_death_that_forgets_a_bundle_is_found() -> None:
    """A record that ends an incarnation must leave no bundle that names it."""
    view = channel_in("owned").view
    dead = view.brokers["owner"].incarnation
    [(kind, text)] = problems_of(
        [BrokerChanged(name="owner", before="up", after=None, dead=dead)], view
    )
    assert Kind.DEAD_HOLDER is kind
    assert f"{NAMESPACE}/0x00000000_0xffffffff still names it" in text


def test_a_broken_view_is_found_at_the_end() -> None:
    """Whatever brought it there, a view with a hole, or with a bundle of the dead, is found."""
    channel = channel_in("owned")
    assert [] == list(problems_of_view(channel.view))
    view: View = channel.view
    before = channel.bundle()
    view.remove_bundle(before)
    view.insert_bundle(bundle(0, MIDDLE, owner=99))
    assert [Kind.NOT_COVERED, Kind.DEAD_HOLDER] == [kind for kind, _ in problems_of_view(view)]


def test_a_fold_that_breaks_an_invariant_is_found_where_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The audit asks about the invariants after every accepted record, and names the record."""
    channel = channel_in("owned")
    monkeypatch.setattr(
        verify,
        "problems_of",
        lambda changes, _: [(Kind.TOKEN_FELL, "so")] if len(changes) == 1 else [],
    )
    monkeypatch.setattr(verify, "problems_of_view", lambda _: [(Kind.NOT_COVERED, "so")])
    findings = audit_of(channel).findings
    assert Finding(kind=Kind.NOT_COVERED, first=6, last=6, text="so") in findings
    assert [1, 2, 3, 5, 6] == [
        finding.first for finding in findings if finding.kind is Kind.TOKEN_FELL
    ]
