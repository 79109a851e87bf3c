"""Forged records. Each kind is a function of the scene that returns what to write now. It raises
`UnfitError` if the scene does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import orjson

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX, bundle_name, even_boundaries
from equipoise.channel.core.records import (
    ADMIN_WINDOW_OFFSETS,
    AnyRecord,
    BundleTransition,
    LevelRecord,
    Merge,
    Split,
)
from tests.injected.forging import (
    ADMIN,
    LEAP,
    LOG,
    Forged,
    Forgery,
    Scene,
    UnfitError,
    about_bundle,
    broker_subject,
    bundle_subject,
    inject,
    subjects_of,
)
from tests.injected.honest import BEGAN_MS
from tests.injected.injection import Kind

Maker = Callable[[Scene], Forged]

# Records of one publisher within one millisecond: far more than a race of honest brokers makes.
FLOOD_RECORDS: Final = 600

# Brokers that start together each write a genesis. Later each has read one.
_STARTERS_RACE_MS: Final = 11_000

# --- who writes what another alone may write ---


def _by_stranger(
    propose_it: Callable[..., AnyRecord], phase: str, *, party: str = "owner"
) -> Maker:
    """Return the maker of a proposal that only this party of a bundle in the phase may write, by
    another broker.
    """

    def make(scene: Scene) -> Forged:
        bundle = scene.in_flight(phase)
        stranger = scene.up(without=(getattr(bundle, party),))
        return about_bundle(bundle, propose_it(scene.as_broker(stranger), bundle))

    return make


def _by_admin(propose_it: Callable[..., AnyRecord], phase: str) -> Maker:
    """Return the maker of a proposal that only a broker may write about a bundle in the phase, by
    an admin.
    """

    def make(scene: Scene) -> Forged:
        bundle = scene.in_flight(phase)
        return about_bundle(bundle, propose_it(scene.as_admin(), bundle))

    return make


def _about_another(propose_it: Callable[..., AnyRecord]) -> Maker:
    """Return the maker of a proposal that a broker may write only about itself, about another
    one.
    """

    def make(scene: Scene) -> Forged:
        broker = scene.up()
        other = scene.up(without=(broker.incarnation,))
        return _about_broker(broker, propose_it(scene.as_broker(other), broker))

    return make


def _about_broker(broker: BrokerEntry, record: AnyRecord) -> Forged:
    """Return a record about a broker, which may be found under the broker or under its writer."""
    return Forged(
        data=(encode(record),),
        subjects=subjects_of(broker_subject(broker.broker), broker_subject(record.publisher)),
    )


def _split_in_two(author: Author, bundle: BundleEntry) -> Split:
    return propose.split(author, bundle, cuts=((bundle.low + bundle.high) // 2,))


def _admin_makes_it_leave(scene: Scene) -> Forged:
    broker = scene.up()
    return _about_broker(broker, propose.left(scene.as_admin(), broker))


def _based_on_the_future(scene: Scene) -> Forged:
    bundle = scene.owned()
    broker = scene.up()
    later = replace(bundle, last=scene.view.offset + 1_000_000)
    return about_bundle(bundle, propose.opened(scene.as_broker(broker), later))


# --- steps that no table has ---


def _cuts_outside(scene: Scene) -> Forged:
    bundle = scene.in_flight("splitting")
    owner = scene.one(
        broker for broker in scene.view.live_brokers() if broker.incarnation == bundle.owner
    )
    return about_bundle(
        bundle,
        Split(
            key=bundle.name,
            expected_offset=bundle.last,
            **scene.as_broker(owner).signature,
            positions=(bundle.low,),
        ),
    )


def _merges_strangers(scene: Scene) -> Forged:
    owned = [bundle for bundle in scene.view.bundles.values() if bundle.phase == "owned"]
    pair = scene.one(
        (left, right)
        for left in owned
        for right in owned
        if left.namespace == right.namespace and left.high < right.low and left.owner == right.owner
    )
    author = scene.up()
    left, right = pair
    record = Merge(
        key=left.name,
        expected_offset=left.last,
        **scene.as_broker(author).signature,
        right=right.name,
        expected_offset_right=right.last,
    )
    forged = about_bundle(left, record)
    return replace(
        forged,
        subjects=forged.subjects
        | subjects_of(bundle_subject(right.name), f"namespace:{left.namespace}"),
    )


def _target_that_never_was(scene: Scene) -> Forged:
    bundle, author = scene.owned(), scene.up()
    # Just below the end of the log: an offset, but not that of a `joined` record.
    nobody = next(
        offset for offset in range(scene.view.offset, 0, -1) if offset not in scene.view.live
    )
    return about_bundle(
        bundle, propose.transfer(scene.as_broker(author), bundle, destination=nobody)
    )


def _takes(scene: Scene, bundle: BundleEntry, thief: BrokerEntry) -> Forged:
    """Return a record by which a broker owns a bundle at once."""
    signature = scene.as_broker(thief).signature
    return about_bundle(
        bundle,
        BundleTransition(
            key=bundle.name,
            expected_offset=bundle.last,
            **signature,
            state="owned",
            owner=thief.incarnation,
        ),
    )


def _opens_what_is_free(scene: Scene) -> Forged:
    return _takes(scene, scene.in_flight("free"), scene.up())


def _skips_the_handover(scene: Scene) -> Forged:
    bundle = scene.owned()
    return _takes(scene, bundle, scene.up(without=(bundle.owner,)))


def _unloads_by_nobody(scene: Scene) -> Forged:
    bundle = scene.owned()
    nobody = Author(
        publisher="broker-99",
        incarnation=max(scene.view.offset - 1, 1),
        sequence=1,
        timestamp_ms=scene.now_ms,
    )
    return about_bundle(bundle, propose.unload(nobody, bundle))


# --- lies about brokers ---


def _pair(scene: Scene) -> tuple[BrokerEntry, BrokerEntry]:
    """Return a broker that has just written, and another one."""
    fresh = scene.view.offset
    victim = scene.one(
        broker
        for broker in scene.view.live_brokers()
        if broker.status == "up" and broker.last == fresh
    )
    return victim, scene.up(without=(victim.incarnation,))


def _down_before_silence(scene: Scene) -> Forged:
    victim, accuser = _pair(scene)
    return _about_broker(
        victim, propose.down(scene.as_broker(accuser), victim, reason="silent for too long")
    )


def _down_with_a_guessed_instance_id(scene: Scene) -> Forged:
    victim = scene.up()
    return _about_broker(
        victim,
        propose.down(
            scene.as_admin(), victim, instance_id="guessed", reason="its process has ended"
        ),
    )


def _joins_after_no_silence(scene: Scene) -> Forged:
    victim, _ = _pair(scene)
    record = replace(
        victim.joined,
        expected_offset=victim.last,
        instance_id=f"forged:{scene.rng.random()}",
        replaces=None,
        after_silence=True,
        timestamp_ms=scene.now_ms,
    )
    return Forged(data=(encode(record),), subjects=subjects_of(broker_subject(victim.broker)))


def _removes_the_living(scene: Scene) -> Forged:
    victim, accuser = _pair(scene)
    return _about_broker(victim, propose.remove_broker(scene.as_broker(accuser), victim))


def _says_another_digest(scene: Scene) -> Forged:
    broker = scene.up()
    record = propose.renewed(
        scene.as_broker(broker), replace(broker, digest_after=broker.digest_after ^ 1)
    )
    return Forged(data=(encode(record),), subjects=subjects_of(broker_subject(broker.broker)))


# --- sequences ---


def _impersonates(scene: Scene, *, ahead: int = LEAP) -> Forged:
    bundle, broker = scene.owned(), scene.up()
    if broker.sequence + ahead < 1:
        raise UnfitError
    record = propose.unload(scene.as_broker(broker, ahead=ahead), bundle, reason="forged")
    return Forged(data=(encode(record),), subjects=subjects_of(broker_subject(broker.broker)))


# --- the log itself ---


def _garbage(scene: Scene) -> Forged:
    return Forged(
        data=(bytes(scene.rng.randrange(256) for _ in range(scene.rng.randrange(1, 200))),),
        subjects=subjects_of(LOG),
    )


def _not_an_object(scene: Scene) -> Forged:
    return Forged(
        data=(scene.rng.choice((b"null", b"[]", b"7", b'"bundle"', b"[" * 200)),),
        subjects=subjects_of(LOG),
    )


def _unknown_kind(scene: Scene) -> Forged:
    document = {
        "kind": "coup",
        "key": "level",
        "expected_offset": 1,
        "publisher": ADMIN,
        "as_of": scene.view.offset,
    }
    return Forged(data=(orjson.dumps(document),), subjects=subjects_of(LOG, broker_subject(ADMIN)))


def _broken_field(scene: Scene) -> Forged:
    bundle, broker = scene.owned(), scene.up()
    raw = orjson.loads(encode(propose.unload(scene.as_broker(broker), bundle)))
    raw["source"] = -1
    return Forged(
        data=(orjson.dumps(raw),),
        subjects=subjects_of(LOG, broker_subject(broker.broker), bundle_subject(bundle.name)),
    )


def _above_level(scene: Scene) -> Forged:
    bundle, broker = scene.owned(), scene.up()
    forged = about_bundle(bundle, replace(propose.unload(scene.as_broker(broker), bundle), level=9))
    return replace(forged, subjects=forged.subjects | subjects_of(LOG))


def _raises_the_level(scene: Scene) -> Forged:
    record = LevelRecord(
        key="level",
        expected_offset=scene.view.level_last,
        **scene.as_admin().signature,
        raises_to=2,
    )
    return Forged(data=(encode(record),), subjects=subjects_of(LOG, broker_subject(ADMIN)))


def _second_genesis(scene: Scene) -> Forged:
    if scene.now_ms < BEGAN_MS + _STARTERS_RACE_MS:
        raise UnfitError
    record = propose.genesis(Author(publisher=ADMIN), cluster=scene.view.cluster or "")
    return Forged(data=(encode(record),), subjects=subjects_of(LOG, broker_subject(ADMIN)))


def _foreign_genesis(_scene: Scene) -> Forged:
    record = propose.genesis(Author(publisher=ADMIN), cluster="another")
    return Forged(data=(encode(record),), subjects=subjects_of(LOG, broker_subject(ADMIN)))


def _flood_of_an_admin(scene: Scene) -> Forged:
    return Forged(
        data=(encode(_unload_of_nothing(scene.as_admin())),) * FLOOD_RECORDS,
        subjects=subjects_of(broker_subject(ADMIN)),
    )


def _flood_of_a_broker(scene: Scene) -> Forged:
    broker = scene.up()
    authors = (scene.as_broker(broker, ahead=LEAP + number) for number in range(FLOOD_RECORDS))
    return Forged(
        data=tuple(encode(_unload_of_nothing(author)) for author in authors),
        subjects=subjects_of(broker_subject(broker.broker)),
    )


def _unload_of_nothing(author: Author) -> BundleTransition:
    return BundleTransition(
        key=bundle_name("tenant/nothing", 0, HASH_MAX),
        expected_offset=1,
        **author.signature,
        state="releasing",
        source=1,
    )


def _ahead_of_its_time(scene: Scene) -> Forged:
    bundle = scene.owned()
    author = replace(scene.as_admin(), as_of=scene.view.offset + ADMIN_WINDOW_OFFSETS)
    return about_bundle(bundle, propose.unload(author, bundle))


def _bad_boundaries(scene: Scene) -> Forged:
    boundaries = (*even_boundaries(4)[:-1], 0xF000_0000)
    record = propose.create_namespace(
        scene.as_admin(), scene.view, name="tenant/forged", boundaries=boundaries
    )
    return Forged(
        data=(encode(record),),
        subjects=subjects_of("namespace:tenant/forged", broker_subject(ADMIN)),
    )


def _deletes_what_is_in_use(scene: Scene) -> Forged:
    bundle = scene.owned()
    record = propose.delete_namespace(scene.as_admin(), scene.view, name=bundle.namespace)
    return Forged(
        data=(encode(record),),
        subjects=subjects_of(f"namespace:{bundle.namespace}", broker_subject(ADMIN)),
    )


_NOT_ALLOWED: Final = frozenset({"wrong_actor", "writes_what_it_may_not"})
_NO_STEP: Final = frozenset({"illegal_step", "writes_what_it_may_not"})

FORGERIES: Final = (
    Forgery(
        name="stranger_hands_over",
        make=_by_stranger(propose.hand_over, "handing_over", party="source"),
        rules=_NOT_ALLOWED,
    ),
    Forgery(
        name="stranger_opens", make=_by_stranger(propose.opened, "assigning"), rules=_NOT_ALLOWED
    ),
    Forgery(
        name="stranger_lets_go",
        make=_by_stranger(propose.prepared, "transferring"),
        rules=_NOT_ALLOWED,
    ),
    Forgery(
        name="stranger_releases",
        make=_by_stranger(propose.released, "unloading", party="source"),
        rules=_NOT_ALLOWED,
    ),
    Forgery(
        name="stranger_splits", make=_by_stranger(_split_in_two, "splitting"), rules=_NOT_ALLOWED
    ),
    Forgery(name="admin_opens", make=_by_admin(propose.opened, "assigning"), rules=_NOT_ALLOWED),
    Forgery(
        name="admin_hands_over",
        make=_by_admin(propose.hand_over, "handing_over"),
        rules=_NOT_ALLOWED,
    ),
    Forgery(name="admin_makes_it_leave", make=_admin_makes_it_leave, rules=_NOT_ALLOWED),
    Forgery(
        name="stranger_drains_another", make=_about_another(propose.draining), rules=_NOT_ALLOWED
    ),
    Forgery(name="renews_another", make=_about_another(propose.renewed), rules=_NOT_ALLOWED),
    Forgery(name="based_on_the_future", make=_based_on_the_future, rules=frozenset({"baseless"})),
    Forgery(name="cuts_outside", make=_cuts_outside, rules=_NO_STEP),
    Forgery(name="merges_strangers", make=_merges_strangers, rules=_NO_STEP),
    Forgery(
        name="target_that_never_was",
        make=_target_that_never_was,
        rules=frozenset({"unfit_target", "baseless", *_NO_STEP}),
    ),
    Forgery(name="opens_what_is_free", make=_opens_what_is_free, rules=_NO_STEP),
    Forgery(name="skips_the_handover", make=_skips_the_handover, rules=_NO_STEP),
    Forgery(
        name="unloads_by_nobody",
        make=_unloads_by_nobody,
        rules=frozenset({"baseless", *_NOT_ALLOWED}),
    ),
    Forgery(
        name="down_before_silence", make=_down_before_silence, rules=frozenset({"premature_down"})
    ),
    Forgery(
        name="down_with_a_guessed_instance_id",
        make=_down_with_a_guessed_instance_id,
        rules=frozenset({"false_proof"}),
    ),
    Forgery(
        name="joins_after_no_silence",
        make=_joins_after_no_silence,
        rules=frozenset({"premature_join"}),
    ),
    Forgery(name="removes_the_living", make=_removes_the_living, rules=_NO_STEP),
    Forgery(
        name="says_another_digest", make=_says_another_digest, rules=frozenset({"digest_differs"})
    ),
    Forgery(
        name="impersonates", make=_impersonates, rules=frozenset({"sequence_reused"}), echoes=True
    ),
    Forgery(
        name="uses_a_number_again",
        make=partial(_impersonates, ahead=0),
        rules=frozenset({"sequence_reused"}),
    ),
    Forgery(name="garbage", make=_garbage, rules=frozenset({"malformed"})),
    Forgery(name="not_an_object", make=_not_an_object, rules=frozenset({"malformed"})),
    Forgery(name="unknown_kind", make=_unknown_kind, rules=frozenset({"malformed"})),
    Forgery(name="broken_field", make=_broken_field, rules=frozenset({"malformed"})),
    Forgery(name="above_level", make=_above_level, rules=frozenset({"above_level"})),
    Forgery(
        name="raises_the_level", make=_raises_the_level, rules=frozenset({"level_raised_early"})
    ),
    Forgery(name="second_genesis", make=_second_genesis, rules=frozenset({"genesis_twice"})),
    Forgery(name="foreign_genesis", make=_foreign_genesis, rules=frozenset({"foreign_genesis"})),
    Forgery(
        name="flood_of_an_admin", make=_flood_of_an_admin, rules=frozenset({"too_many_rejections"})
    ),
    Forgery(
        name="flood_of_a_broker", make=_flood_of_a_broker, rules=frozenset({"too_many_rejections"})
    ),
    Forgery(
        name="ahead_of_its_time",
        make=_ahead_of_its_time,
        rules=frozenset({"malformed", "baseless", "writes_what_it_may_not"}),
    ),
    Forgery(name="bad_boundaries", make=_bad_boundaries, rules=frozenset({"hole", *_NO_STEP})),
    Forgery(name="deletes_what_is_in_use", make=_deletes_what_is_in_use, rules=_NO_STEP),
)

FORGED_KINDS: Final = tuple(
    Kind(name=forgery.name, inject=partial(inject, forgery)) for forgery in FORGERIES
)
