"""Faults planted in the way of a message: the judge of messages finds each, in runs that are clean without them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.local.demo.checker import check_messages
from equipoise.brokers.pulsar.topics import handover as handovers
from equipoise.brokers.pulsar.topics.dispatch import Consumer
from equipoise.brokers.pulsar.topics.topic import Outcome, Topic
from equipoise.brokers.runtime.service import Work
from tests.unit.http.cluster import run, until
from tests.unit.pulsar.test_service_moves import PATIENT
from tests.unit.pulsar.wire_client import TOPIC, Brokers, Member, T, WireClient, brokers

SUBSCRIPTIONS = {1: "early", 2: "late"}
"""By the id of the one consumer that each of them has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diary:
    """What clients in the place of Pulsar's would say: tests/pulsar/README.md has the format. One producer, whose id is 1."""

    lines: list[Mapping[str, object]] = field(default_factory=list)
    receipted: set[int] = field(default_factory=set)

    def note(self, event: str, **what: object) -> None:
        """Something has happened."""
        self.lines.append({"event": event, "at_ns": time.monotonic_ns(), **what})

    def send(self, client: WireClient, n: int) -> None:
        """Send a message; again, if it has been sent before, which is nothing new."""
        if not any(line["event"] == "sent" and line["n"] == n for line in self.lines):
            self.note("sent", topic=TOPIC, producer="mine", n=n)
        client.publish(1, n, str(n))

    async def hear(self, client: WireClient) -> None:
        """Note the messages and receipts that a client has been sent up to now."""
        await client.located()
        while "MESSAGE" in client.names():
            consumer_id, _, text = await client.hear_message()
            who = {"subscription": SUBSCRIPTIONS[consumer_id], "consumer": SUBSCRIPTIONS[consumer_id]}
            self.note("received", topic=TOPIC, producer="mine", n=int(text), **who)
        while "SEND_RECEIPT" in client.names():
            n = (await client.hear(T.SEND_RECEIPT)).send_receipt.sequence_id
            self.receipted.add(n)
            self.note("receipted", topic=TOPIC, producer="mine", n=n)

    async def subscribe(self, client: WireClient, consumer_id: int) -> None:
        """Come (back) as a consumer."""
        name = SUBSCRIPTIONS[consumer_id]
        await client.consumer(consumer_id, subscription=name, name=name)
        if not any(line.get("subscription") == name for line in self.lines):
            self.note("ready", subscription=name, type="Exclusive", consumer=name, topics=[TOPIC])

    async def begin(self, member: Member) -> WireClient:
        """Two consumers and a producer, and a first message for them."""
        client = await member.client()
        for consumer_id in SUBSCRIPTIONS:
            await self.subscribe(client, consumer_id)
        await client.producer(1, name="mine")
        await self.exchange(client, 0)
        return client

    async def exchange(self, client: WireClient, n: int) -> None:
        """Send a message, and wait until it has been receipted, and delivered to both."""
        self.send(client, n)
        await until(lambda: client.names().count("MESSAGE") >= len(SUBSCRIPTIONS) and "SEND_RECEIPT" in client.names())
        await self.hear(client)


async def move_on(running: Brokers, diary: Diary) -> None:
    """A bundle moves, and moves on before all are back: what had no receipt is sent again."""
    source = running.owner_of()
    destination = running.other_than(source)
    await diary.begin(source)
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    diary.send(there, 1)
    await there.located()
    await diary.subscribe(there, 1)
    await diary.hear(there)
    await running.transfer(source)
    await diary.hear(there)
    back = await source.client()
    await back.producer(1, name="mine", epoch=2)
    if 1 not in diary.receipted:
        diary.send(back, 1)
    for consumer_id in SUBSCRIPTIONS:
        await diary.subscribe(back, consumer_id)
    # Whatever is on its way comes before this one.
    diary.send(back, 2)
    await until(lambda: [consumer_id for consumer_id, text in heard(back) if text == "2"] == list(SUBSCRIPTIONS))
    await diary.hear(back)


def heard(client: WireClient) -> list[tuple[int, str]]:
    """The messages in a client's inbox: to which consumer, and the text's last word, which is its number."""
    blocks = [(command.message.consumer_id, block) for command, block in client.inbox if command.type == T.MESSAGE]
    return sorted((consumer_id, block.rpartition(b" ")[2].decode()) for consumer_id, block in blocks)


async def lapse(running: Brokers, diary: Diary) -> None:
    """A broker loses its lease between taking a message and giving its receipt, which was held for consumers that are not back."""
    source = running.owner_of()
    destination = running.other_than(source)
    await diary.begin(source)
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    diary.send(there, 1)
    served = destination.service.hosting.topics.get(TOPIC)
    assert served is not None
    await until(lambda: bool(served.works))
    destination.worker.agent.lease.lose()
    destination.service.carry_out(served, served.topic.release_receipts())
    await until(lambda: bool({"SEND_RECEIPT", "CLOSE_PRODUCER"} & set(there.names())))
    if "SEND_RECEIPT" in there.names():
        diary.note("receipted", topic=TOPIC, producer="mine", n=1)


Story = Callable[[Brokers, Diary], Awaitable[None]]


def rules_broken(story: Story, folder: Path) -> set[str]:
    """Play a story, with evidence, and have it judged."""
    evidence, history, diary = folder / "evidence.jsonl", folder / "history.jsonl", Diary()

    async def play() -> None:
        async with brokers(folder, count=2, settings=PATIENT, config={"evidence": evidence}) as running:
            await story(running, diary)

    run(play)
    history.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in diary.lines))
    verdict = check_messages([history], evidence=[evidence])
    assert verdict.problem is None
    return set(verdict.violations)


def no_second_check(patch: pytest.MonkeyPatch) -> None:
    """What was begun under a lease is answered, whatever has become of the lease."""
    finish = Work.finish

    def finish_unchecked(work: Work, *, message: str | None = None) -> None:
        with pytest.MonkeyPatch.context() as unchecked:
            unchecked.setattr(Handle, "passes", lambda *_: True)
            finish(work, message=message)

    patch.setattr(Work, "finish", finish_unchecked)


def delivers_before_it_receipts(patch: pytest.MonkeyPatch) -> None:
    """Whoever is back gets at once what waits for him, although its receipt is still held."""
    flow = Topic.flow

    def flow_early(topic: Topic, consumer: Consumer, permits: int, now_ms: int) -> Outcome:
        outcome = flow(topic, consumer, permits, now_ms)
        for subscription in topic.subscriptions.values():
            subscription.release(outcome.deliveries)
        return outcome

    patch.setattr(Topic, "flow", flow_early)


def holds_nothing(patch: pytest.MonkeyPatch) -> None:
    """The next owner does not know who was there, and waits for nobody."""
    patch.setattr(handovers, "decode", lambda *_: {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is planted, under which story, and the rule that must find it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    story: Story
    rule: str


FAULTS = (
    Fault(plant=no_second_check, story=lapse, rule="work_ends_within_its_lease"),
    Fault(plant=delivers_before_it_receipts, story=move_on, rule="messages_are_delivered_once"),
    Fault(plant=holds_nothing, story=move_on, rule="receipted_messages_are_delivered"),
)


@pytest.mark.parametrize("story", [move_on, lapse])
def test_without_a_fault_the_judge_finds_nothing(story: Story, tmp_path: Path) -> None:
    """What the faults are planted under is clean."""
    assert set() == rules_broken(story, tmp_path)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.plant.__name__)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is found by the rule that is there for it."""
    fault.plant(monkeypatch)
    assert fault.rule in rules_broken(fault.story, tmp_path)
