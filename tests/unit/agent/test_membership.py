"""Membership: silence, suspicion, death, joining and leaving."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.core import NEVER_MS, Profile
from equipoise.brokers.agent.effects import Append, Effect, ForgetInstanceIds, Stop, WriteInstanceId
from equipoise.brokers.agent.events import (
    AppendFailed,
    DrainRequested,
    Event,
    InstanceIdWritten,
    Instant,
    ProcessEnded,
    Reachable,
    Read,
    Tick,
)
from equipoise.brokers.agent.timing import Timing
from equipoise.brokers.errors import InvalidConfig
from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import BrokerRecord, Genesis, Joined
from tests.scenarios.language import perform, play
from tests.scenarios.stage import Stage
from tests.scenarios.words import full_name


class Lone:
    """One agent on a log of its own. `land` puts its appends on the log."""

    def __init__(
        self,
        *,
        timing: Timing | None = None,
        instance_ids: frozenset[str] = frozenset(),
        is_reachable: bool = True,
    ) -> None:
        self.now_ms = 10_000
        self.made = 0
        self.entries: list[Entry] = []
        self.read = 0
        self.agent = Agent(
            broker="a",
            cluster="test",
            reader=Reader(log="test", cluster="test"),
            timing=timing or Timing(),
            profile=Profile(),
            make_instance_id=self._make_instance_id,
            predecessor_instance_ids=instance_ids,
            is_reachable=is_reachable,
        )

    def _make_instance_id(self) -> str:
        self.made += 1
        return f"instance_id {self.made}"

    def step(self, event: Event) -> list[Effect]:
        return self.agent.step(event, Instant(self.now_ms, self.now_ms))

    def land(self, *effects: Effect) -> list[Effect]:
        """Put the appends among these effects on the log, and read it."""
        for effect in effects:
            if isinstance(effect, Append):
                self.entries.append(Entry(len(self.entries) + 1, effect.data))
        unread, self.read = self.entries[self.read :], len(self.entries)
        return self.step(Read(entries=unread))

    def begin(self) -> str:
        """Read the empty log, begin it, and ask to join. Return the instance id to write."""
        effects = self.land(*self.land())
        (instance_id,) = [
            effect.instance_id for effect in effects if isinstance(effect, WriteInstanceId)
        ]
        return instance_id


def records(effects: list[Effect]) -> list[object]:
    return [decode(effect.data) for effect in effects if isinstance(effect, Append)]


def deaths(stage: Stage) -> list[str]:
    """Return the accepted declarations of death: which broker declared which."""
    words = [
        line.splitlines()[0].split()
        for line in stage.records
        if "  down  " in line and "rejected" not in line
    ]
    return [f"{line[-1]} declares {line[2]} down" for line in words]


def is_suspect(stage: Stage, broker: str, *, at: str, log_is_readable: bool = True) -> bool:
    agent, now = stage.process(at).agent, stage.hosts[at].now()
    return agent.is_suspect(stage.view.brokers[broker], now, log_is_readable=log_is_readable)


def test_unsafe_durations_make_no_agent() -> None:
    with pytest.raises(InvalidConfig):
        Lone(timing=Timing(grace_ms=100))


def test_a_joined_waits_for_its_instance_id_on_disk() -> None:
    """The lease counts from the decision to join."""
    lone = Lone()
    instance_id = lone.begin()
    lone.now_ms += 400
    sent = lone.step(InstanceIdWritten(instance_id=instance_id))
    (joined,) = records(sent)
    assert isinstance(joined, Joined)
    assert instance_id == joined.instance_id
    lone.now_ms += 100
    assert ForgetInstanceIds(keep=instance_id) in lone.land(*sent)
    assert 10_000 + 3_000 == lone.agent.lease.deadline_ms


def test_a_slow_disk_does_not_keep_a_broker_out() -> None:
    """An instance id that is written after the next attempt is still used."""
    lone = Lone()
    first = lone.begin()
    lone.now_ms += 1_000
    (second,) = [
        effect.instance_id for effect in lone.step(Tick()) if isinstance(effect, WriteInstanceId)
    ]
    lone.now_ms += 500
    sent = lone.step(InstanceIdWritten(instance_id=first))
    assert first != second
    assert [first] == [record.instance_id for record in records(sent) if isinstance(record, Joined)]
    lone.land(*sent)
    assert lone.agent.is_ready
    assert [] == records(lone.step(InstanceIdWritten(instance_id=second)))


def test_a_broker_joins_only_once_it_is_reachable() -> None:
    """Nor does it begin the log."""
    lone = Lone(is_reachable=False)
    assert [] == lone.land()
    lone.now_ms += 60_000
    assert [] == lone.step(Tick())
    assert NEVER_MS == lone.agent.wake_at_ms
    assert [Genesis] == [type(record) for record in records(lone.step(Reachable()))]


def test_an_unknown_instance_id_is_not_sent() -> None:
    lone = Lone()
    lone.begin()
    assert [] == records(lone.step(InstanceIdWritten(instance_id="somebody's")))


def test_a_failed_append_from_before_a_stall_proves_nothing() -> None:
    """One from after the stall shows that the log is away."""
    lone = Lone()
    lone.land(*lone.step(InstanceIdWritten(instance_id=lone.begin())))
    lone.now_ms += 1_000
    (asked,) = [effect for effect in lone.step(Tick()) if isinstance(effect, Append)]
    lone.now_ms += 60_000
    away = LogUnavailable(log="test", problem="it is away")
    sent = lone.step(AppendFailed(attempt=asked.attempt, error=away, in_doubt=True))
    (again,) = [effect for effect in sent if isinstance(effect, Append)]
    assert not lone.agent.lease.is_attended(Instant(lone.now_ms, lone.now_ms))
    lone.step(AppendFailed(attempt=again.attempt, error=away, in_doubt=True))
    assert lone.agent.lease.is_attended(Instant(lone.now_ms, lone.now_ms))


def test_a_stranger_that_died_is_forgotten() -> None:
    stage = play(
        "brokers a b", "start x as a", "advance 3500ms", "crash a", "declare dead a", "advance 1s"
    )
    assert stage.process("x").agent.is_ready


# Commands, and between them who has declared whom dead so far.
DEATHS: dict[str, tuple[str | list[str], ...]] = {
    "the eldest, after lease and grace period": (
        "brokers a b",
        "crash b",
        "advance 3499ms",
        [],
        "advance 1ms",
        ["a declares b down"],
    ),
    "the next by age, a grace period later": (
        *("brokers a b c d", "crash d", "advance 3400ms", "hold a", "hold b", "advance 1099ms"),
        *([], "advance 1ms", ["c declares d down"]),
    ),
    "the dead are no elders": (
        *("brokers a b c", "crash a", "crash b", "advance 3500ms"),
        ["c declares a down", "c declares b down"],
    ),
    "nobody without a good lease, which a wall clock ends": (
        *("brokers a b", "crash b", "advance 3400ms", "wall clock a ahead 1s", "advance 4099ms"),
        *([], "advance 1ms", ["a declares b down"]),
    ),
    "silence counts from the first renewal read back": (
        *("brokers a b", "crash b", "hold a", "advance 2600ms", "release a", "advance 3400ms"),
        *([], "advance 100ms", ["a declares b down"]),
    ),
}


@pytest.mark.parametrize("name", DEATHS)
def test_which_broker_declares_a_silent_one_dead_and_when(name: str) -> None:
    """By age, lease, and what it has read."""
    stage = Stage()
    for step in DEATHS[name]:
        if isinstance(step, str):
            perform(stage, step)
        else:
            assert step == deaths(stage)


@pytest.mark.parametrize(
    ("commands", "lease_is_good"),
    [
        (("hold a", "advance 6s"), False),
        (("advance 1900ms", "hold a", "advance 1700ms"), True),
        (("advance 1900ms", "hold a", "advance 500ms", "duplicate 2", "advance 1200ms"), True),
    ],
    ids=["no lease", "no own renewal", "a late copy of its joined"],
)
def test_a_broker_that_may_have_been_away_accuses_none(
    commands: tuple[str, ...], lease_is_good: bool
) -> None:
    """It has no lease, or has read no own renewal for half a lease."""
    stage = play("brokers a b", "crash b", *commands)
    assert lease_is_good == stage.process("a").agent.lease.good(stage.hosts["a"].now())
    assert [] == [
        record
        for _, data in stage.hosts["a"].link.in_flight
        if isinstance(record := decode(data), BrokerRecord)
    ]


def downs(effects: list[Effect]) -> list[tuple[str, str | None]]:
    return [
        (record.key, record.instance_id)
        for record in records(effects)
        if isinstance(record, BrokerRecord) and record.status == "down"
    ]


def test_a_proof_needs_neither_silence_nor_a_lease() -> None:
    """It counts for the incarnation that made the instance id, and is repeated until it is read
    back.
    """
    stage = play("brokers a b", "hold a", "advance 3200ms")
    agent, now = stage.process("a").agent, stage.hosts["a"].now()
    assert not agent.lease.good(now)
    instance_id = stage.view.brokers["b"].joined.instance_id
    other = ProcessEnded(instance_ids=frozenset({"another"}))
    assert [] == downs(list(agent.step(other, now)))
    proof = ProcessEnded(instance_ids=frozenset({"another", instance_id}))
    assert [("b", instance_id)] == downs(list(agent.step(proof, now)))
    assert [] == downs(list(agent.step(proof, now)))
    later = now._replace(boot_ms=now.boot_ms + Timing().attempt_ms)
    assert agent.wake_at_ms <= later.boot_ms
    assert [("b", instance_id)] == downs(list(agent.step(Tick(), later)))


# Commands, and between them whom b suspects; then whom it suspects if its log cannot be read.
SUSPECTS: dict[str, tuple[str | set[str], ...]] = {
    "never heard since the start from a snapshot": (
        *("brokers a b", "snapshot b", "crash a", "restart b from snapshot", "advance 1500ms"),
        *(set(), "advance 1ms", {"a"}),
    ),
    "late by time alone": (
        "brokers a b c",
        "advance 1s",
        "crash a",
        "advance 1500ms",
        set(),
        "advance 1ms",
        {"a"},
    ),
    "a log that refuses is no silence": (
        "brokers a",
        "advance 500ms",
        "brokers b",
        "advance 1s",
        "outage",
        "advance 1200ms",
        set(),
    ),
    "each has an interval after an outage, but a lease ends": (
        *(
            "timing lease_ms 10s",
            "timing grace_ms 1s",
            "brokers a b c",
            "advance 1s",
            "outage",
            "crash c",
            "advance 6s",
            "hold a",
        ),
        *("outage over", "advance 2s", set(), "advance 1s", {"a", "c"}),
    ),
    "never itself": ("brokers a b", "advance 1s", "hold b", "advance 2s", set()),
} | {
    f"a log that {way}: for lease less grace period": (
        "brokers a b",
        "advance 1s",
        *commands,
        "advance 1501ms",
        set(),
        "advance 998ms",
        set(),
        "advance 1ms",
        {"a"},
    )
    for way, commands in {"refuses": ("outage",), "hangs": ("hold a", "hold b")}.items()
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_which_brokers_are_suspect_and_when(name: str) -> None:
    """An outage makes none suspect before its lease ends."""
    stage = Stage()
    for step in SUSPECTS[name]:
        if isinstance(step, str):
            perform(stage, step)
        else:
            assert step == {
                broker for broker in stage.view.brokers if is_suspect(stage, broker, at="b")
            }


@pytest.mark.parametrize(
    ("commands", "by_what_it_read", "unreadable"),
    [
        (
            ("advance 500ms", "brokers b", "advance 1s", "hold a", "hold b", "advance 1200ms"),
            True,
            False,
        ),
        (
            ("brokers b", "advance 500ms", "crash a", "advance 1700ms", "outage", "advance 200ms"),
            True,
            True,
        ),
    ],
    ids=["an outage that only the log shows", "an outage after a death was noticed"],
)
def test_an_unreadable_log_shows_no_silence(
    commands: tuple[str, ...], by_what_it_read: bool, unreadable: bool
) -> None:
    """Silence that was noticed before stays."""
    stage = play("brokers a", *commands)
    assert by_what_it_read == is_suspect(stage, "a", at="b")
    assert unreadable == is_suspect(stage, "a", at="b", log_is_readable=False)


def test_durations_grow_with_the_membership() -> None:
    """From the eleventh member on. A member keeps its own."""
    stage = Stage()
    for number in range(11):
        stage.start(f"broker{number}")
        stage.settle()
    timings = [stage.process(f"broker{number}").agent.timing for number in (9, 10)]
    assert [(3_000, 1_000, 500), (3_300, 1_100, 550)] == [
        (timing.lease_ms, timing.renew_ms, timing.grace_ms) for timing in timings
    ]
    assert 3_300 == stage.process("broker10").agent.lease.left_ms(stage.hosts["broker10"].now())


def test_a_leaving_broker_loses_its_lease_for_good() -> None:
    stage = play("cluster a with 1 bundle", "service a waits close", "leave a", "advance 100ms")
    agent = stage.process("a").agent
    assert (True, 0) == (agent.incarnation is not None, agent.lease.deadline_ms)


def test_a_stop_waits_for_a_joined_that_is_under_way() -> None:
    lone = Lone()
    sent = lone.step(InstanceIdWritten(instance_id=lone.begin()))
    drain = DrainRequested(leave=True, deadline_ms=lone.now_ms + 5_000)
    assert [] == lone.agent.step(drain, Instant(lone.now_ms, lone.now_ms))
    seen: list[Effect] = []
    for _ in range(5):
        sent = lone.land(*sent)
        seen += sent
    assert ["draining", "left"] == [
        entry.status for entry in map(_decoded, lone.entries) if isinstance(entry, BrokerRecord)
    ]
    assert Stop(error=None) in seen


def test_a_stop_before_any_joined_was_sent_is_immediate() -> None:
    lone = Lone()
    instance_id = lone.begin()
    drain = DrainRequested(leave=True, deadline_ms=lone.now_ms + 5_000)
    assert [Stop(error=None)] == lone.agent.step(drain, Instant(lone.now_ms, lone.now_ms))
    assert [] == lone.step(InstanceIdWritten(instance_id=instance_id))


def _decoded(entry: Entry) -> object:
    return decode(entry.data)


def test_a_leaving_broker_retries_ten_times_a_second_in_an_outage() -> None:
    stage = play("cluster a b with 1 bundle", "outage")
    before = stage.view.brokers["a"].sequence
    perform(stage, "drain a")
    perform(stage, "advance 1s")
    perform(stage, "outage over")
    perform(stage, "advance 100ms")
    assert "draining" == stage.view.brokers["a"].status
    assert 10 <= stage.view.brokers["a"].sequence - before <= 40


def test_the_host_reads_the_state_of_the_agent() -> None:
    """Before and after it has left."""
    stage = play("cluster a b with 2 bundles")
    agent = stage.process("a").agent
    assert ["a", "a"] == [agent.broker, agent.entry.broker if agent.entry else None]
    assert agent.handles[full_name("00_80")] is agent.handle(full_name("00_80"))
    assert agent.handle(full_name("80_ff")) is None
    perform(stage, "leave a")
    assert [{}, None, None, False, NEVER_MS] == [
        agent.handles,
        agent.entry,
        agent.incarnation,
        agent.is_ready,
        agent.wake_at_ms,
    ]
    assert [] == agent.step(Tick(), stage.hosts["a"].now())
