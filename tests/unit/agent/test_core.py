"""The core: attempts, how they are settled, and their bound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.agent import core as cores
from equipoise.brokers.agent.core import Core, Mark, Profile
from equipoise.brokers.agent.effects import Answered, Append
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.errors import InvalidConfig
from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import LogUnavailable, Overloaded
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX, TEXT_CHARACTERS_MAX, AnyRecord
from tests.channels.folding import CLUSTER, NAMESPACE, channel_with


def core_of(broker: str, *others: str, bundles: int = 4) -> Core:
    """Return the core of a broker that has joined and has read of free bundles."""
    channel = channel_with(broker, *others, bundles=bundles)
    reader = Reader(log="test", cluster=CLUSTER)
    for offset, data in channel.entries:
        reader.feed(Entry(offset, data))
    core = Core(broker=broker, cluster=CLUSTER, reader=reader, timing=Timing(), profile=Profile())
    core.incarnation = channel.incarnation(broker)
    core.now = Instant(1_000, 1_000)
    return core


def bundle_of(core: Core, index: int) -> BundleEntry:
    return core.view.bundles_of(NAMESPACE)[index]


def assign(core: Core, index: int, *, ticket: int | None = None) -> bool:
    """Propose that the broker itself takes a bundle."""
    owner = core.incarnation
    assert owner is not None
    return core.propose(
        partial(propose.assign, bundle=bundle_of(core, index), owner=owner), ticket=ticket
    )


def renew(core: Core) -> bool:
    return core.propose(partial(propose.renewed, broker=core.view.brokers[core.broker]))


def appended(core: Core) -> list[AnyRecord]:
    return [
        record
        for effect in core.effects
        if isinstance(effect, Append) and isinstance(record := decode(effect.data), AnyRecord)
    ]


def answers(core: Core) -> list[Answered]:
    return [effect for effect in core.effects if isinstance(effect, Answered)]


def read_back(core: Core, append: Append) -> None:
    """Put a record on the log, and read it."""
    folded = core.reader.feed(Entry(core.reader.position, append.data))
    core.settle(folded, folded.record.sequence or 0)


def test_a_proposal_in_flight_is_not_repeated() -> None:
    core = core_of("a")
    assert [True, False] == [assign(core, 0), assign(core, 0)]
    core.now = Instant(1_999, 1_999)
    assert not assign(core, 0)
    core.now = Instant(2_000, 2_000)
    assert assign(core, 0)
    assert 2 == len(appended(core))


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_failed_append_may_be_tried_again_at_once(in_doubt: bool) -> None:
    """Under a new number."""
    core = core_of("a")
    assign(core, 0)
    core.append_failed(
        1, LogUnavailable(log="test", problem="away", in_doubt=in_doubt), in_doubt=in_doubt
    )
    assert assign(core, 0)
    assert [1, 2] == [record.sequence for record in appended(core)]


def test_a_changed_state_allows_another_proposal() -> None:
    core = core_of("a", "b")
    assign(core, 0)
    admin = Author(publisher="admin:ops", as_of=core.view.offset)
    other = propose.assign(admin, bundle_of(core, 0), owner=core.view.brokers["b"].incarnation)
    core.reader.feed(Entry(core.reader.position, encode(other)))
    assert assign(core, 0)


def test_attempts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound only membership is attempted."""
    monkeypatch.setattr(cores, "ATTEMPTS_MAX", 2)
    core = core_of("a")
    assert [True, True, False] == [assign(core, index) for index in range(3)]
    assert not assign(core, 3, ticket=9)
    (answer,) = answers(core)
    assert isinstance(answer.error, Overloaded)
    assert (9, 2) == (answer.ticket, answer.error.limit)
    assert renew(core)


def test_renewals_go_on_through_any_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of remembered ones does not grow."""
    monkeypatch.setattr(cores, "ATTEMPTS_MAX", 4)
    core = core_of("a")
    for second in range(100):
        core.now = Instant(1_000 * second, 1_000 * second)
        assert renew(core)
    assert 100 == len(appended(core))
    assert core.is_crowded()
    read_back(core, [effect for effect in core.effects if isinstance(effect, Append)][-1])
    assert not core.is_crowded()


LONG = "x" * (TEXT_CHARACTERS_MAX + 1)
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "an endless address": ({"addresses": {"http": LONG}}, "addresses"),
    "an endless protocol": ({"addresses": {LONG: "http://a"}}, "addresses"),
    "an address that is no text": ({"addresses": {"http": 80}}, "addresses"),
    "a protocol that is no text": ({"addresses": {80: "http"}}, "JSON"),
    "what no encoding knows": ({"addresses": {"http": "http://\udcff"}}, "JSON"),
    "too many addresses": (
        {"addresses": {str(number): "a" for number in range(DOCUMENT_ENTRIES_MAX + 1)}},
        "addresses",
    ),
    "a label that is no text": ({"labels": {"zone": True}}, "labels"),
    "no capacity": ({"capacity": 0}, "capacity"),
    "more than a record holds": (
        {"labels": {f"{number}{LONG[8:]}": "a" for number in range(DOCUMENT_ENTRIES_MAX)}}
        | {
            "addresses": {
                f"{number}{LONG[8:]}": "\U0001f600" * TEXT_CHARACTERS_MAX
                for number in range(DOCUMENT_ENTRIES_MAX)
            }
        },
        "bytes",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_profile_that_no_record_can_carry_is_refused(name: str) -> None:
    profile, problem = MISFITS[name]
    with pytest.raises(InvalidConfig, match=problem):
        Profile(**profile)


@given(
    addresses=st.dictionaries(st.text(), st.text()),
    capacity=st.integers(min_value=0),
    failure_domain=st.none() | st.text(),
    labels=st.dictionaries(st.text(), st.text()),
)
def test_any_profile_can_be_read_back(
    addresses: dict[str, str], capacity: int, failure_domain: str | None, labels: dict[str, str]
) -> None:
    try:
        profile = Profile(
            addresses=addresses, capacity=capacity, failure_domain=failure_domain, labels=labels
        )
    except InvalidConfig:
        return
    joined = profile.joined(
        key="a", expected_offset=0, instance_id="n", timestamp_ms=0, timing=Timing()
    )
    assert replace(joined, failure_domain=failure_domain or None) == decode(encode(joined))


class Read:
    """A mark, and what the log was read to."""

    def __init__(self) -> None:
        self.mark = Mark()
        self.view = channel_with("a:1").view

    def due(self, at_ms: int, *, offset: int) -> int | None:
        """Return the offset to note now, if any."""
        self.view.offset = offset
        write = self.mark.due(self.view, Instant(at_ms, at_ms))
        assert write is None or self.view.base == write.base
        return None if write is None else write.offset


def test_the_position_is_noted_once_a_second() -> None:
    read = Read()
    assert 5 == read.due(10_000, offset=5)
    read.mark.written(5)
    assert read.due(10_001, offset=6) is None
    assert 11_000 == read.mark.wake_at_ms
    assert read.due(10_999, offset=8) is None
    assert 8 == read.due(11_000, offset=8)
    read.mark.written(8)
    assert read.due(20_000, offset=8) is None
    assert cores.NEVER_MS == read.mark.wake_at_ms


def test_a_mark_that_was_not_written_is_repeated() -> None:
    read = Read()
    assert not read.mark.covers(5)
    assert 5 == read.due(10_000, offset=5)
    assert read.due(10_999, offset=5) is None
    assert 5 == read.due(11_000, offset=5)


@given(st.lists(st.sampled_from(("read", "want", "written", "second")), max_size=40))
def test_no_token_above_the_last_written_mark_is_covered(steps: list[str]) -> None:
    """And once writes succeed, every token is covered."""
    read = Read()
    asked, noted, now_ms, offset = [0], 0, 10_000, 1
    for step in steps:
        offset += step == "read"
        now_ms += 1_000 if step == "second" else 1
        if step == "written":
            noted = max(noted, asked[-1])
            read.mark.written(asked[-1])
        if step == "want":
            assert (offset <= noted) == read.mark.covers(offset)
        asked += [due for due in [read.due(now_ms, offset=offset)] if due is not None]
        assert asked[-1] <= offset
    read.mark.written(asked[-1])
    if not read.mark.covers(offset):
        assert offset == read.due(now_ms + 1_000, offset=offset)
        read.mark.written(offset)
    assert read.mark.covers(offset)
