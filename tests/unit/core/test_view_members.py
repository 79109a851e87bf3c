"""The fold's rules about brokers: joining in each of its three ways, leases, leaving, death, removal, and who may publish at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson
import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BrokerChanged, BrokerStatus
from equipoise.channel.core.propose import Author
from equipoise.channel.core.records import ADMIN_WINDOW_OFFSETS, BrokerRecord, Document, Reason
from tests.channels.folding import Channel, channel_in, channel_with, joined

POLICY: Document = {"limit": 3}

# --- joining ---


def test_a_new_broker_joins_and_its_offset_is_its_incarnation() -> None:
    """The offset of the accepted record is the incarnation, with no attempt settled yet."""
    channel = channel_with("a")
    verdict = channel.put(joined("b", channel.view, nonce="n"))
    entry = channel.view.brokers["b"]
    assert (channel.view.offset, "up", channel.view.offset, 0) == (entry.incarnation, entry.status, entry.last, entry.sequence)
    assert (BrokerChanged(name="b", before=None, after=entry),) == verdict.changes
    assert entry is channel.view.live[entry.incarnation]
    channel.check()


@pytest.mark.parametrize("status", ["left", "down"])
def test_a_broker_that_is_gone_joins_anew(status: BrokerStatus) -> None:
    """After `left` or `down` a plain `joined` is accepted, and begins a new incarnation that nobody had to declare dead."""
    channel = channel_with("a", "b")
    first = channel.incarnation("b")
    channel.accept(propose.left(channel.author("b"), channel.broker("b")) if status == "left" else down(channel, "a", "b"))
    verdict = channel.put(joined("b", channel.view, nonce="second"))
    assert (BrokerChanged(name="b", before=status, after=channel.view.brokers["b"]),) == verdict.changes
    assert first < channel.incarnation("b")
    channel.check()


@pytest.mark.parametrize("drains", [False, True])
def test_while_its_id_looks_alive_a_plain_join_is_still_alive(drains: bool) -> None:
    """Neither an up nor a draining broker is replaced without proof, whatever the attempt is based on."""
    channel = channel_with("a")
    if drains:
        channel.accept(propose.draining(channel.author("a"), channel.broker("a")))
    attempt = joined("a", channel.view, nonce="second")
    assert Reason.STILL_ALIVE == channel.put(attempt).reason
    assert Reason.STILL_ALIVE == channel.put(replace(attempt, based_on=0)).reason
    assert Reason.STILL_ALIVE == channel.put(replace(attempt, replaces="another's nonce")).reason


@dataclass(frozen=True, kw_only=True)
class Proof:
    id: str
    replaces: str | None
    after_silence: bool


PROOFS = (
    Proof(id="replaces", replaces="nonce of a", after_silence=False),
    Proof(id="after_silence", replaces=None, after_silence=True),
    Proof(id="after_silence with an older nonce", replaces="an older nonce", after_silence=True),
)


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.id)
def test_with_proof_a_join_ends_the_incarnation_that_looked_alive(proof: Proof) -> None:
    """The nonce of the live incarnation, or silence, replaces it; the change names the dead one."""
    channel = channel_with("a")
    dead = channel.incarnation("a")
    verdict = channel.put(joined("a", channel.view, nonce="second", replaces=proof.replaces, after_silence=proof.after_silence))
    assert (BrokerChanged(name="a", before="up", after=channel.view.brokers["a"], dead=dead),) == verdict.changes
    assert [channel.view.offset] == list(channel.view.live)
    channel.check()


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.id)
def test_a_join_loses_against_a_renewal_that_came_first(proof: Proof) -> None:
    """A proof made before the incarnation renewed is stale: somebody is alive after all."""
    channel = channel_with("a")
    attempt = joined("a", channel.view, nonce="second", replaces=proof.replaces, after_silence=proof.after_silence)
    channel.accept(propose.renewed(channel.author("a"), channel.broker("a")))
    assert Reason.STALE == channel.put(attempt).reason


def test_a_late_duplicate_of_a_join_revives_nothing() -> None:
    """Each `joined` is refused once its broker joined, left, was removed, or joined again."""
    channel = channel_with("a", "b")
    first = joined("c", channel.view, nonce="first")
    channel.accept(first)
    assert Reason.STILL_ALIVE == channel.put(first).reason
    channel.accept(propose.left(channel.author("c"), channel.broker("c")))
    assert Reason.STALE == channel.put(first).reason
    channel.accept(propose.remove_broker(channel.author("a"), channel.broker("c")))
    assert Reason.STALE == channel.put(first).reason
    channel.accept(joined("c", channel.view, nonce="second"))
    channel.accept(propose.left(channel.author("c"), channel.broker("c")))
    assert Reason.STALE == channel.put(first).reason
    channel.check()


@pytest.mark.parametrize("name", ["a b", "a/b", "a\n", "\u00e4:1"])
def test_an_id_that_is_none_does_not_join(name: str) -> None:
    """What may not be a broker's id is malformed."""
    channel = channel_with("a")
    assert Reason.MALFORMED == channel.put(joined(name, channel.view, nonce="n")).reason


# --- renewing, draining, leaving ---


def test_a_renewal_moves_last_and_digest_and_nothing_else() -> None:
    """The next renewal is based on this one, and says the digest that the view had just after it."""
    channel = channel_with("a", "b")
    before = channel.broker("a")
    verdict = channel.put(propose.renewed(channel.author("a"), before))
    after = channel.view.brokers["a"]
    assert (True, False, ()) == (verdict.accepted, verdict.diverged, verdict.changes)
    assert replace(before, last=channel.view.offset, sequence=1, digest_after=channel.view.digest()) == after
    channel.accept(propose.assign(channel.admin(), channel.bundle(), owner=after.incarnation))
    assert not channel.put(propose.renewed(channel.author("a"), channel.broker("a"))).diverged
    channel.check()


def test_a_renewal_with_another_digest_is_accepted_and_shown_as_divergence() -> None:
    """Two views that have parted are told apart, and the lease goes on."""
    channel = channel_with("a")
    verdict = channel.put(replace(propose.renewed(channel.author("a"), channel.broker("a")), digest=5))
    assert (True, True) == (verdict.accepted, verdict.diverged)
    channel.check()


def test_a_renewal_made_before_the_last_accepted_one_is_stale() -> None:
    """A renewal is based on the last accepted record of its key."""
    channel = channel_with("a")
    before = channel.broker("a")
    channel.accept(propose.renewed(channel.author("a"), before))
    assert Reason.STALE == channel.put(propose.renewed(channel.author("a"), before)).reason


def test_nobody_renews_for_another() -> None:
    """Another broker's, an admin's, and the renewal of a broker that is not there are refused."""
    channel = channel_with("a", "b")
    for author in channel.author("b"), channel.admin():
        assert Reason.NOT_THE_ACTOR == channel.put(propose.renewed(author, channel.broker("a"))).reason
    for author in channel.author("b"), channel.admin():
        record = replace(propose.renewed(author, channel.broker("a")), key="nobody", based_on=channel.view.removed_at)
        assert Reason.UNKNOWN_BROKER == channel.put(record).reason


def test_draining_counts_as_a_renewal_and_is_said_once() -> None:
    """A draining broker stays alive, renews as before, and does not drain twice."""
    channel = channel_with("a")
    verdict = channel.put(propose.draining(channel.author("a"), channel.broker("a")))
    entry = channel.view.brokers["a"]
    assert (BrokerChanged(name="a", before="up", after=entry),) == verdict.changes
    assert ("draining", True, channel.view.offset, 1) == (entry.status, entry.live, entry.last, entry.sequence)
    assert Reason.ILLEGAL_TRANSITION == channel.put(propose.draining(channel.author("a"), channel.broker("a"))).reason
    assert not channel.put(propose.renewed(channel.author("a"), channel.broker("a"))).diverged
    channel.check()


def test_a_broker_leaves_from_up_and_from_draining() -> None:
    """`left` ends the incarnation in either status."""
    channel = channel_with("a", "b")
    channel.accept(propose.draining(channel.author("b"), channel.broker("b")))
    for broker in ("a", "b"):
        dead, before = channel.incarnation(broker), channel.view.brokers[broker].status
        verdict = channel.put(propose.left(channel.author(broker), channel.broker(broker)))
        assert (BrokerChanged(name=broker, before=before, after=channel.view.brokers[broker], dead=dead),) == verdict.changes
    assert {} == channel.view.live
    channel.check()


@pytest.mark.parametrize("status", ["draining", "left"])
def test_nobody_drains_or_leaves_for_another(status: str) -> None:
    """Only a broker itself says that it drains or has left."""
    channel = channel_with("a", "b")
    for author in channel.author("b"), channel.admin():
        entry = channel.broker("a")
        record = propose.draining(author, entry) if status == "draining" else propose.left(author, entry)
        assert Reason.NOT_THE_ACTOR == channel.put(record).reason


# --- down and removed ---


def down(channel: Channel, accuser: str, accused: str) -> BrokerRecord:
    """An accusation made against the present view."""
    return propose.down(channel.author(accuser), channel.broker(accused))


def test_any_live_broker_may_say_that_another_is_down() -> None:
    """`down` ends the incarnation, and says which."""
    channel = channel_with("a", "b")
    dead = channel.incarnation("b")
    verdict = channel.put(down(channel, "a", "b"))
    assert (BrokerChanged(name="b", before="up", after=channel.view.brokers["b"], dead=dead),) == verdict.changes
    assert "down" == channel.view.brokers["b"].status
    channel.check()


def test_a_broker_does_not_accuse_itself() -> None:
    """A broker that speaks is alive; one that wants to end says `left`."""
    channel = channel_with("a")
    assert Reason.NOT_THE_ACTOR == channel.put(down(channel, "a", "a")).reason


def test_down_and_a_renewal_exclude_each_other() -> None:
    """Whichever is first on the log makes the other one fail."""
    channel = channel_with("a", "b", "c")
    accusation, renewal = down(channel, "a", "b"), propose.renewed(channel.author("b"), channel.broker("b"))
    channel.accept(renewal)
    assert Reason.STALE == channel.put(accusation).reason
    accusation, renewal = down(channel, "a", "c"), propose.renewed(channel.author("c"), channel.broker("c"))
    channel.accept(accusation)
    assert Reason.DEAD_PUBLISHER == channel.put(renewal).reason


def test_who_is_dead_is_not_put_down_again() -> None:
    """A broker that left or is down cannot be accused."""
    channel = channel_with("a", "b")
    channel.accept(down(channel, "a", "b"))
    assert Reason.ILLEGAL_TRANSITION == channel.put(down(channel, "a", "b")).reason


@pytest.mark.parametrize("nonce", [None, "another nonce", "nonce of b"])
def test_an_admin_needs_the_nonce_of_the_live_incarnation(nonce: str | None) -> None:
    """Without the nonce from the locked directory an admin's `down` is no proof."""
    channel = channel_with("a", "b")
    assert Reason.STILL_ALIVE == channel.put(propose.down(channel.admin(), channel.broker("a"), nonce=nonce)).reason
    assert channel.put(propose.down(channel.admin(), channel.broker("a"), nonce="nonce of a")).accepted
    channel.check()


def test_a_predecessors_nonce_buries_nobody() -> None:
    """The nonce must be that of the incarnation that lives now."""
    channel = channel_with("a")
    channel.accept(joined("a", channel.view, nonce="second", replaces="nonce of a"))
    assert Reason.STILL_ALIVE == channel.put(propose.down(channel.admin(), channel.broker("a"), nonce="nonce of a")).reason


def test_a_live_broker_removes_one_that_is_gone_and_removed_at_moves() -> None:
    """`removed` takes the id away; what is absent is based on that removal from then on."""
    channel = channel_with("a", "b")
    channel.accept(down(channel, "a", "b"))
    assert Reason.NOT_THE_ACTOR == channel.put(propose.remove_broker(channel.admin(), channel.broker("b"))).reason
    assert Reason.STILL_ALIVE == channel.put(propose.remove_broker(channel.author("a"), channel.broker("a"))).reason
    verdict = channel.put(propose.remove_broker(channel.author("a"), channel.broker("b")))
    assert (BrokerChanged(name="b", before="down", after=None),) == verdict.changes
    assert (["a"], channel.view.offset) == (list(channel.view.brokers), channel.view.removed_at)
    channel.check()


def test_a_broker_that_was_never_there_is_unknown() -> None:
    """Based on what absent keys are based on, the answer is that there is no such broker; otherwise it is stale."""
    channel = channel_with("a")
    stranger = replace(channel.broker("a"), broker="b", last=channel.view.removed_at)
    assert Reason.UNKNOWN_BROKER == channel.put(propose.down(channel.author("a"), stranger)).reason
    assert Reason.STALE == channel.put(propose.down(channel.author("a"), replace(stranger, last=0))).reason


# --- the envelope ---


def policy(author: Author, channel: Channel, name: str = "p") -> bytes:
    """A record that anybody may write."""
    return encode(propose.set_policy(author, channel.view, name=name, document=POLICY))


def test_everything_that_a_dead_incarnation_writes_is_rejected() -> None:
    """After its death, and after its broker joined anew, an incarnation is a dead publisher."""
    channel = channel_with("a", "b")
    author = channel.author("b")
    channel.accept(down(channel, "a", "b"))
    assert Reason.DEAD_PUBLISHER == channel.put_bytes(policy(author, channel)).reason
    channel.join("b")
    assert Reason.DEAD_PUBLISHER == channel.put_bytes(policy(author, channel)).reason
    assert 0 == channel.view.brokers["b"].sequence


def test_a_publisher_and_its_incarnation_belong_together() -> None:
    """A broker that writes in the name of another's incarnation, or under an id of its own, is a dead publisher."""
    channel = channel_with("a", "b")
    author = channel.author("a")
    for wrong in replace(author, publisher="b"), replace(author, incarnation=channel.incarnation("b")), replace(author, publisher="c"):
        assert Reason.DEAD_PUBLISHER == channel.put_bytes(policy(wrong, channel)).reason
    assert (0, 0) == (channel.view.brokers["a"].sequence, channel.view.brokers["b"].sequence)


def test_a_sequence_that_does_not_rise_is_late() -> None:
    """An attempt at or below the last one that was read is settled: it is never accepted."""
    channel = channel_with("a")
    author = channel.author("a")
    assert channel.put_bytes(policy(replace(author, sequence=5), channel)).accepted
    for sequence in (0, 4, 5):
        assert Reason.LATE == channel.put_bytes(policy(replace(author, sequence=sequence), channel)).reason
    assert channel.put_bytes(policy(replace(author, sequence=6), channel)).accepted
    channel.check()


def test_the_first_attempt_is_number_one() -> None:
    """An incarnation begins with sequence 0 settled."""
    channel = channel_with("a")
    author = channel.author("a")
    assert Reason.LATE == channel.put_bytes(policy(replace(author, sequence=0), channel)).reason
    assert channel.put_bytes(policy(replace(author, sequence=1), channel)).accepted


@dataclass(frozen=True, kw_only=True)
class Rejected:
    reason: Reason
    fields: dict[str, object]


REJECTED = (
    Rejected(reason=Reason.STALE, fields={"based_on": 0}),
    Rejected(reason=Reason.MALFORMED, fields={"document": 5}),
    Rejected(reason=Reason.MALFORMED, fields={"kind": "sorcery"}),
    Rejected(reason=Reason.MALFORMED, fields={"level": 0}),
    Rejected(reason=Reason.MALFORMED, fields={"as_of": "x"}),
    Rejected(reason=Reason.LEVEL, fields={"level": 2}),
    Rejected(reason=Reason.LEVEL, fields={"level": 2, "kind": "sorcery"}),
    Rejected(reason=Reason.LEVEL, fields={"level": 2, "key": None}),
    Rejected(reason=Reason.UNKNOWN_POLICY, fields={"status": "removed"}),
)


@pytest.mark.parametrize("case", REJECTED, ids=str)
def test_a_rejected_record_settles_its_attempt_and_changes_nothing_else(case: Rejected) -> None:
    """Whatever the verdict, the publisher's sequence rises, and with it the digest; nothing else moves."""
    channel = channel_with("a")
    before = replace(channel.view.brokers["a"], sequence=7)
    record = orjson.loads(policy(replace(channel.author("a"), sequence=7), channel)) | case.fields
    digest = channel.view.digest()
    assert case.reason == channel.put_bytes(orjson.dumps(record)).reason
    assert before == channel.view.brokers["a"]
    assert digest != channel.view.digest()
    assert {} == channel.view.policies
    channel.check()


def test_a_joined_that_is_refused_settles_nothing() -> None:
    """`joined` comes before there is an incarnation, so it has no sequence to raise."""
    channel = channel_with("a")
    digest = channel.view.digest()
    assert Reason.STILL_ALIVE == channel.put(joined("a", channel.view, nonce="second")).reason
    assert digest == channel.view.digest()


@dataclass(frozen=True, kw_only=True)
class Age:
    behind: int
    reason: Reason | None


AGES = (
    Age(behind=1, reason=None),
    Age(behind=ADMIN_WINDOW_OFFSETS, reason=None),
    Age(behind=ADMIN_WINDOW_OFFSETS + 1, reason=Reason.LATE),
    Age(behind=0, reason=Reason.MALFORMED),
    Age(behind=-1, reason=Reason.MALFORMED),
)


@pytest.mark.parametrize("age", AGES, ids=lambda age: str(age.behind))
def test_an_admins_record_dies_of_old_age(age: Age) -> None:
    """More than the window behind is late; a view of the future is none, or it would never grow old."""
    channel = channel_with("a")
    offset = channel.view.offset + 2 * ADMIN_WINDOW_OFFSETS
    record = propose.set_policy(Author(publisher="admin:ops", as_of=offset - age.behind), channel.view, name="p", document=POLICY)
    assert age.reason == channel.put(record, offset=offset).reason
    channel.check()


def test_a_merely_late_admin_is_late_before_it_is_anything_else() -> None:
    """An old record of an admin gets no finer answer than that it is old."""
    channel = channel_in("assigning")
    record = propose.opened(Author(publisher="admin:ops", as_of=0), channel.bundle())
    assert Reason.LATE == channel.put(record, offset=ADMIN_WINDOW_OFFSETS + 1).reason
