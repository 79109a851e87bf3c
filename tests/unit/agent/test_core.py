"""The core: attempts, how they are settled, and how many there may be.

May live here: `brokers.agent.core.Core` with a log that tests write by hand.
"""

from __future__ import annotations

from functools import partial

import pytest

from brokers.agent import core as cores
from brokers.agent.core import Core, Profile
from brokers.agent.effects import Answered, Append
from brokers.agent.events import Instant
from brokers.agent.timing import Timing
from channel import propose
from channel.codec import decode, encode
from channel.entries import BundleEntry
from channel.log import Entry
from channel.propose import Author
from channel.reader import Reader
from channel.records import AnyRecord
from tests.folding import CLUSTER, NAMESPACE, channel_with


def core_of(broker: str, *others: str, bundles: int = 4) -> Core:
    """The core of a broker that has joined, and has read of free bundles."""
    channel = channel_with(broker, *others, bundles=bundles)
    reader = Reader(log="test", cluster=CLUSTER)
    for offset, data in channel.entries:
        reader.feed(Entry(offset, data))
    core = Core(broker=broker, cluster=CLUSTER, reader=reader, timing=Timing(), profile=Profile())
    core.incarnation = channel.incarnation(broker)
    core.now = Instant(1_000, 1_000)
    return core


def bundle_of(core: Core, index: int) -> BundleEntry:
    """One of the bundles."""
    return core.view.bundles_of(NAMESPACE)[index]


def assign(core: Core, index: int, *, ticket: int | None = None) -> bool:
    """Propose that the broker itself takes a bundle."""
    owner = core.incarnation
    assert owner is not None
    return core.propose(partial(propose.assign, bundle=bundle_of(core, index), owner=owner), ticket=ticket)


def renew(core: Core) -> bool:
    """Propose a renewal."""
    return core.propose(partial(propose.renewed, broker=core.view.brokers[core.broker]))


def appended(core: Core) -> list[AnyRecord]:
    """What this step has appended so far."""
    return [record for effect in core.effects if isinstance(effect, Append) and isinstance(record := decode(effect.data), AnyRecord)]


def read_back(core: Core, append: Append) -> None:
    """The record comes to stand on the log, and is read."""
    folded = core.reader.feed(Entry(core.reader.position, append.data))
    core.settle(folded, folded.record.sequence or 0)


def test_the_same_is_not_proposed_twice() -> None:
    """While an attempt may still be read back, the same proposal against the same state is not made again."""
    core = core_of("a")
    assert [True, False] == [assign(core, 0), assign(core, 0)]
    core.now = Instant(1_999, 1_999)
    assert not assign(core, 0)
    core.now = Instant(2_000, 2_000)
    assert assign(core, 0)
    assert 2 == len(appended(core))


def test_every_attempt_has_a_number_of_its_own() -> None:
    """Numbers rise over all attempts, whatever they are about."""
    core = core_of("a")
    assign(core, 0)
    assign(core, 1)
    renew(core)
    sequences = [record.sequence or 0 for record in appended(core)]
    assert sorted(set(sequences)) == sequences


def test_a_failed_append_may_be_tried_again_at_once() -> None:
    """The host has said that it is not on the log."""
    core = core_of("a")
    assign(core, 0)
    core.append_failed(next(effect.attempt for effect in core.effects if isinstance(effect, Append)))
    assert assign(core, 0)


def test_a_changed_state_makes_another_proposal() -> None:
    """What is based on another record is not the same proposal."""
    core = core_of("a", "b")
    assign(core, 0)
    admin = Author(publisher="admin:ops", as_of=core.view.offset)
    other = propose.assign(admin, bundle_of(core, 0), owner=core.view.brokers["b"].incarnation)
    core.reader.feed(Entry(core.reader.position, encode(other)))
    assert assign(core, 0)


def test_reading_any_own_record_settles_all_before_it() -> None:
    """The requests of earlier attempts are answered: they are read with a verdict, or will never be accepted."""
    core = core_of("a")
    for index in range(3):
        assign(core, index, ticket=index)
    appends = [effect for effect in core.effects if isinstance(effect, Append)]
    core.effects = []
    read_back(core, appends[1])
    first, second = [effect for effect in core.effects if isinstance(effect, Answered)]
    assert (0, None, "the proposal did not reach the log; nothing was done") == (first.ticket, first.verdict, first.problem)
    assert (1, core.view.offset) == (second.ticket, second.offset)
    assert second.verdict is not None
    assert second.verdict.accepted


def test_the_end_of_an_incarnation_settles_everything() -> None:
    """Nothing that the dead wrote will be accepted."""
    core = core_of("a")
    assign(core, 0, ticket=7)
    core.effects = []
    core.lose_all()
    assert [7] == [effect.ticket for effect in core.effects if isinstance(effect, Answered)]
    assert assign(core, 0)


def test_attempts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound nothing but membership is attempted, and who asks for more is told."""
    monkeypatch.setattr(cores, "ATTEMPTS_MAX", 2)
    core = core_of("a")
    assert [True, True, False] == [assign(core, index) for index in range(3)]
    assert not assign(core, 3, ticket=9)
    assert [(9, "2 proposals are unsettled already; nothing was done")] == [
        (effect.ticket, effect.problem) for effect in core.effects if isinstance(effect, Answered)
    ]
    assert renew(core)


def test_renewals_go_on_through_any_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long nothing is read back, renewals are attempted, and those that are remembered do not grow in number."""
    monkeypatch.setattr(cores, "ATTEMPTS_MAX", 4)
    core = core_of("a")
    for second in range(100):
        core.now = Instant(1_000 * second, 1_000 * second)
        assert renew(core)
    assert 100 == len(appended(core))
    assert core.is_crowded()
    read_back(core, [effect for effect in core.effects if isinstance(effect, Append)][-1])
    assert not core.is_crowded()
