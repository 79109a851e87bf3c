"""Assurances: who gives one, how long it lasts, and who waits for the end of an extension."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.core import Profile
from equipoise.brokers.agent.effects import (
    Append,
    AskAssurance,
    AssuranceAnswered,
    Effect,
    WriteInstanceId,
)
from equipoise.brokers.agent.events import (
    AppendFailed,
    AssuranceAsked,
    Assured,
    Event,
    InstanceIdWritten,
    Instant,
    Read,
    Tick,
)
from equipoise.brokers.agent.timing import Timing
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.errors import LogStorageFull, LogUnavailable
from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import BrokerRecord, Renewed

CLUSTER = "test"
TIMING = Timing(renew_ms=500, round_trip_ms=100, reconnect_ms=600, extend_ms=12_000)
LEASE_MS, GRACE_MS = TIMING.lease_ms, TIMING.grace_ms


class Log:
    """A log that agents share, and one clock for all. `away` brokers neither append nor read."""

    def __init__(self, *brokers: str, timing: Timing = TIMING) -> None:
        self.now_ms = 10_000
        self.ahead_ms = 0
        self.entries: list[Entry] = []
        self.away: set[str] = set()
        self.timing = timing
        self.agents: dict[str, Agent] = {}
        self.read: dict[str, int] = {}
        self.sent: dict[str, list[Append]] = {}
        self.questions: list[tuple[str, AskAssurance]] = []
        for broker in brokers:
            self.start(broker)

    def start(self, broker: str) -> Agent:
        """Start a broker, and let it join."""
        self.agents[broker] = Agent(
            broker=broker,
            cluster=CLUSTER,
            reader=Reader(log="test", cluster=CLUSTER),
            timing=self.timing,
            profile=Profile(),
            make_instance_id=lambda: f"{broker} {self.now_ms} {len(self.entries)}",
        )
        self.read[broker], self.sent[broker] = 0, []
        self.deliver(broker)
        self.pump()
        return self.agents[broker]

    def incarnation(self, broker: str) -> int:
        incarnation = self.agents[broker].incarnation
        assert incarnation is not None
        return incarnation

    def step(self, broker: str, event: Event) -> list[Effect]:
        effects = self.agents[broker].step(event, Instant(self.now_ms, self.now_ms + self.ahead_ms))
        for effect in effects:
            if isinstance(effect, Append):
                self.sent[broker].append(effect)
            elif isinstance(effect, WriteInstanceId):
                self.step(broker, InstanceIdWritten(instance_id=effect.instance_id))
            elif isinstance(effect, AskAssurance):
                self.questions.append((broker, effect))
        return effects

    def deliver(self, broker: str) -> None:
        """Let a broker read on."""
        unread, self.read[broker] = self.entries[self.read[broker] :], len(self.entries)
        self.step(broker, Read(entries=unread))

    def pump(self) -> None:
        """Append and read until nothing is left to do."""
        while True:
            for broker in sorted(self.agents.keys() - self.away):
                sent, self.sent[broker] = self.sent[broker], []
                self.entries += [
                    Entry(len(self.entries) + 1 + index, each.data)
                    for index, each in enumerate(sent)
                ]
            late = [
                broker
                for broker in sorted(self.agents.keys() - self.away)
                if self.read[broker] < len(self.entries)
            ]
            if not late:
                return
            for broker in late:
                self.deliver(broker)

    def run(self, for_ms: int) -> None:
        """Let time pass, in steps of 50 ms."""
        for _ in range(for_ms // 50):
            self.now_ms += 50
            for broker in self.agents:
                self.step(broker, Tick())
            self.pump()

    def asks(self, asked: str, asker: str, /, **changes: int | str) -> bool:
        """Return whether `asked` assures `asker` now."""
        question = AssuranceAsked(
            ticket=1,
            cluster=CLUSTER,
            asker=self.incarnation(asker),
            asked=self.incarnation(asked),
        )
        (answer,) = [
            effect
            for effect in self.step(asked, replace(question, **changes))  # type: ignore[arg-type]
            if isinstance(effect, AssuranceAnswered)
        ]
        return answer.assured

    def assure_all(self) -> None:
        """Answer all questions that were put, where they are answered with an assurance."""
        questions, self.questions = self.questions, []
        for asker, question in questions:
            if question.broker.broker in self.agents and self.asks(
                question.broker.broker, asker, asked=question.broker.incarnation
            ):
                self.step(asker, assured(question))

    def good(self, broker: str) -> bool:
        lease = self.agents[broker].lease
        return lease.good(Instant(self.now_ms, self.now_ms + self.ahead_ms))

    def downs(self) -> list[BrokerRecord]:
        records = [decode(entry.data) for entry in self.entries]
        return [
            record
            for record in records
            if isinstance(record, BrokerRecord) and record.status == "down"
        ]


def assured(question: AskAssurance, **changes: int | str) -> Assured:
    event = Assured(
        cluster=CLUSTER,
        asker=question.asker,
        by=question.broker.incarnation,
        number=question.number,
    )
    return replace(event, **changes)  # type: ignore[arg-type]


@pytest.fixture
def log() -> Log:
    """Two brokers that know each other, and have just renewed."""
    log = Log("a", "b")
    log.run(2_000)
    return log


def test_only_a_broker_that_is_out_of_touch_assures(log: Log) -> None:
    assert not log.asks("b", "a")
    log.away = {"a", "b"}
    log.run(TIMING.touch_ms - 50)
    assert not log.asks("b", "a")
    log.run(50)
    assert log.asks("b", "a")
    log.away = set()
    log.run(500)
    assert not log.asks("b", "a")


def test_an_assurance_is_for_one_incarnation_of_one_cluster(log: Log) -> None:
    log.away = {"a", "b"}
    log.run(TIMING.touch_ms)
    assert log.asks("b", "a")
    assert not log.asks("b", "a", cluster="other")
    assert not log.asks("b", "a", asker=log.incarnation("b") + 1)
    assert not log.asks("b", "a", asked=log.incarnation("a"))


def test_no_broker_assures_while_its_own_declaration_is_unsettled(log: Log) -> None:
    """In doubt it may still be accepted. An append that certainly failed is settled."""
    log.away = {"a"}
    log.run(LEASE_MS + GRACE_MS - 50)
    log.away = {"a", "b"}
    log.step("b", Tick())
    log.now_ms += 100
    log.step("b", Tick())
    (down,) = [each for each in log.sent["b"] if b'"down"' in each.data]
    log.run(TIMING.touch_ms)
    assert not log.asks("b", "a")
    lost = LogUnavailable(log="test", problem="no answer")
    log.step("b", AppendFailed(attempt=down.attempt, error=lost, in_doubt=True))
    assert not log.asks("b", "a")
    refused = LogStorageFull(log="test")
    log.step("b", AppendFailed(attempt=down.attempt, error=refused, in_doubt=False))
    assert log.asks("b", "a")


def test_brokers_outlast_an_outage_by_assurances(log: Log) -> None:
    """Until the end of their extensions, and they propose nothing past their leases."""
    log.away = {"a", "b"}
    for _ in range((TIMING.extend_ms - 1_000) // 50):
        log.run(50)
        log.assure_all()
        assert (log.good("a"), log.good("b")) == (True, True)
    assert not log.agents["a"].lease.holds(Instant(log.now_ms, log.now_ms))
    for _ in range(20):
        log.run(50)
        log.assure_all()
    assert not log.good("a")
    log.away = set()
    log.run(5_000)
    assert (log.good("a"), log.good("b"), log.downs()) == (True, True, [])


def test_one_that_is_cut_off_alone_ends_with_its_lease(log: Log) -> None:
    log.away = {"a"}
    for _ in range(LEASE_MS // 50):
        log.run(50)
        log.assure_all()
    assert not log.good("a")
    log.run(GRACE_MS + 500)
    assert [(record.key, record.publisher) for record in log.downs()] == [("a", "b")]


def test_a_lone_broker_outlasts_an_outage() -> None:
    log = Log("a")
    log.away = {"a"}
    log.run(TIMING.extend_ms - 50)
    assert log.good("a")
    log.run(50)
    assert not log.good("a")


def test_no_broker_outlasts_its_lease_that_does_not_say_so() -> None:
    log = Log("a", timing=Timing())
    log.away = {"a"}
    log.run(LEASE_MS)
    assert (log.good("a"), log.questions) == (False, [])


def asked_at_the_end(log: Log) -> AskAssurance:
    """Cut both brokers off until their leases are over. Return the first question of `a`."""
    log.away = {"a", "b"}
    log.run(LEASE_MS + 50)
    assert not log.good("a")
    return next(question for asker, question in log.questions if asker == "a")


def test_an_assurance_counts_from_before_its_own_question(log: Log) -> None:
    """However late it comes, and whatever was asked since."""
    began_ms = log.now_ms
    question = asked_at_the_end(log)
    asked_ms = began_ms + TIMING.touch_ms
    log.step("a", assured(question))
    assert asked_ms + LEASE_MS == log.agents["a"].lease.ends_ms
    assert log.good("a")
    log.now_ms = asked_ms + LEASE_MS
    assert not log.good("a")


@pytest.mark.parametrize(
    "changes", [{"cluster": "other"}, {"asker": 1}, {"by": 1}, {"number": 99}], ids=str
)
def test_another_answer_counts_for_nothing(log: Log, changes: dict[str, int | str]) -> None:
    """Such as that of a broker that has taken the address, or of an earlier life of this one."""
    question = asked_at_the_end(log)
    log.step("a", assured(question, **changes))
    assert not log.good("a")
    log.step("a", assured(question))
    assert log.good("a")


def test_an_unseen_sleep_ends_an_extension(log: Log) -> None:
    question = asked_at_the_end(log)
    log.step("a", assured(question))
    log.ahead_ms = GRACE_MS // 2
    assert log.good("a")
    log.ahead_ms += 1
    assert not log.good("a")


def test_a_newcomer_must_assure_too(log: Log) -> None:
    question = asked_at_the_end(log)
    log.step("a", assured(question))
    log.away = {"a", "b"}
    log.start("c")
    assert log.good("a")
    unread = [entry for entry in log.entries[log.read["a"] :] if b'"joined"' in entry.data]
    log.step("a", Read(entries=unread[:1]))
    assert not log.good("a")


def test_a_broker_that_may_be_unknown_waits_for_the_end_of_an_extension() -> None:
    """One renewal that the other decided before it read the `joined` proves nothing."""
    log = Log("a")
    log.away = {"a"}
    log.start("b")
    joined_ms = log.now_ms
    log.run(LEASE_MS + GRACE_MS + 1_000)
    assert [] == log.downs()
    waiting_ms = log.agents["b"].view.brokers["a"].joined.unheard_ms
    assert waiting_ms == TIMING.extend_ms * (LEASE_MS + GRACE_MS) // LEASE_MS
    log.run(joined_ms + waiting_ms - log.now_ms - 50)
    assert [] == log.downs()
    log.run(150)
    assert ["a"] == [record.key for record in log.downs()]


def test_a_broker_that_is_known_declares_a_death_after_the_lease(log: Log) -> None:
    """The second renewal after its `joined` is the proof."""
    log.start("c")
    log.run(TIMING.renew_ms)
    log.away = {"a", "b"}
    log.run(LEASE_MS + 2 * GRACE_MS + 100)
    assert [] == log.downs()
    log.away = set()
    log.run(2 * TIMING.renew_ms + 100)
    log.away = {"a", "b"}
    log.run(LEASE_MS + GRACE_MS + 600)
    assert ["a", "b"] == sorted(record.key for record in log.downs())


def test_a_broker_whose_view_is_doubted_outlasts_nothing(log: Log) -> None:
    log.away = {"a", "b"}
    other = log.agents["b"].entry
    assert other is not None
    wrong = Renewed(
        key="b",
        expected_offset=other.last,
        publisher="b",
        incarnation=other.incarnation,
        sequence=other.sequence + 100,
        digest=other.digest_after + 1,
    )
    log.entries.append(Entry(len(log.entries) + 1, encode(wrong)))
    log.deliver("a")
    log.run(LEASE_MS)
    assert ([], False) == (
        [asker for asker, _ in log.questions if asker == "a"],
        log.good("a"),
    )
