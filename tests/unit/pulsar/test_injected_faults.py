"""Inject faults into the path of a message. The checker of messages finds each, and nothing in runs
without them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.pulsar.topics import handover as handovers
from equipoise.brokers.pulsar.topics.clients import Consumer
from equipoise.brokers.pulsar.topics.topic import Outcome, Topic
from equipoise.brokers.runtime.service import Work
from tests.load.verdicts import check_messages
from tests.unit.http.cluster import run, until
from tests.unit.pulsar.test_service_moves import PATIENT
from tests.unit.pulsar.wire_client import TOPIC, Brokers, Member, T, WireClient, brokers

SUBSCRIPTIONS = {1: "early", 2: "late"}
"""By the id of the one consumer that each of them has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diary:
    """The history that a client of Pulsar would write: see tests/pulsar/README.md. It has one
    producer, 1.
    """

    lines: list[Mapping[str, object]] = field(default_factory=list)
    receipted: set[int] = field(default_factory=set)

    def note(self, event: str, **what: object) -> None:
        """Add an event."""
        self.lines.append({"event": event, "at_ns": time.monotonic_ns(), **what})

    def send(self, client: WireClient, n: int) -> None:
        """Send a message, perhaps again."""
        if not any(line["event"] == "sent" and line["n"] == n for line in self.lines):
            self.note("sent", topic=TOPIC, producer="mine", n=n)
        client.publish(1, n, str(n))

    async def receive(self, client: WireClient) -> None:
        """Add the messages and receipts that a client has got by now."""
        await client.located()
        while "MESSAGE" in client.names():
            consumer_id, _, text = await client.receive_message()
            who = {
                "subscription": SUBSCRIPTIONS[consumer_id],
                "consumer": SUBSCRIPTIONS[consumer_id],
            }
            self.note("received", topic=TOPIC, producer="mine", n=int(text), **who)
        while "SEND_RECEIPT" in client.names():
            n = (await client.receive(T.SEND_RECEIPT)).send_receipt.sequence_id
            self.receipted.add(n)
            self.note("receipted", topic=TOPIC, producer="mine", n=n)

    async def subscribe(self, client: WireClient, consumer_id: int) -> None:
        """Subscribe, perhaps again."""
        name = SUBSCRIPTIONS[consumer_id]
        await client.consumer(consumer_id, subscription=name, name=name)
        if not any(line.get("subscription") == name for line in self.lines):
            self.note("ready", subscription=name, type="Exclusive", consumer=name, topics=[TOPIC])

    async def begin(self, member: Member) -> WireClient:
        """Open two consumers and a producer, and exchange a first message."""
        client = await member.client()
        for consumer_id in SUBSCRIPTIONS:
            await self.subscribe(client, consumer_id)
        await client.producer(1, name="mine")
        await self.exchange(client, 0)
        return client

    async def exchange(self, client: WireClient, n: int) -> None:
        """Send a message, and wait for its receipt and both deliveries."""
        self.send(client, n)
        await until(
            lambda: (
                client.names().count("MESSAGE") >= len(SUBSCRIPTIONS)
                and "SEND_RECEIPT" in client.names()
            )
        )
        await self.receive(client)


async def move_on(running: Brokers, diary: Diary) -> None:
    """A bundle moves, and moves again before all clients are back. They send messages without a
    receipt again.
    """
    source = running.owner_of()
    destination = running.other_than(source)
    await diary.begin(source)
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    diary.send(there, 1)
    await there.located()
    await diary.subscribe(there, 1)
    await diary.receive(there)
    await running.transfer(source)
    await diary.receive(there)
    back = await source.client()
    await back.producer(1, name="mine", epoch=2)
    if 1 not in diary.receipted:
        diary.send(back, 1)
    for consumer_id in SUBSCRIPTIONS:
        await diary.subscribe(back, consumer_id)
    # Earlier messages come before this one.
    diary.send(back, 2)
    await until(
        lambda: (
            [consumer_id for consumer_id, text in messages_in(back) if text == "2"]
            == list(SUBSCRIPTIONS)
        )
    )
    await diary.receive(back)


def messages_in(client: WireClient) -> list[tuple[int, str]]:
    """The messages in a client's inbox: consumers and numbers."""
    blocks = [
        (command.message.consumer_id, block)
        for command, block in client.inbox
        if command.type == T.MESSAGE
    ]
    return sorted(
        (consumer_id, block.rpartition(b" ")[2].decode()) for consumer_id, block in blocks
    )


async def lapse(running: Brokers, diary: Diary) -> None:
    """A broker loses its lease between a message and its receipt, which was held for consumers that
    are not back.
    """
    source = running.owner_of()
    destination = running.other_than(source)
    await diary.begin(source)
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    diary.send(there, 1)
    served = destination.service.hosting.topics.get(TOPIC)
    assert served is not None
    await until(lambda: served.work is not None)
    destination.worker.agent.lease.lose()
    served.carry_out(served.topic.release_receipts())
    await until(lambda: bool({"SEND_RECEIPT", "CLOSE_PRODUCER"} & set(there.names())))
    if "SEND_RECEIPT" in there.names():
        diary.note("receipted", topic=TOPIC, producer="mine", n=1)


Story = Callable[[Brokers, Diary], Awaitable[None]]


def rules_broken(story: Story, folder: Path) -> set[str]:
    """Run a story with evidence. Return the rules that the checker finds violated."""
    evidence, history, diary = folder / "evidence.jsonl", folder / "history.jsonl", Diary()

    async def play() -> None:
        async with brokers(
            folder, count=2, settings=PATIENT, config={"evidence": evidence}
        ) as running:
            await story(running, diary)

    run(play)
    history.write_bytes(
        b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in diary.lines)
    )
    verdict = check_messages([history], evidence=[evidence])
    assert verdict.problem is None
    return set(verdict.violations)


def no_second_check(patch: pytest.MonkeyPatch) -> None:
    """Confirm work that began under a lease, even if the lease has expired."""
    finish = Work.finish

    def finish_unchecked(work: Work, *, message: str | None = None) -> None:
        with pytest.MonkeyPatch.context() as unchecked:
            unchecked.setattr(Handle, "passes", lambda *_: True)
            finish(work, message=message)

    patch.setattr(Work, "finish", finish_unchecked)


def delivers_before_it_receipts(patch: pytest.MonkeyPatch) -> None:
    """Deliver waiting messages to a consumer that is back, although their receipts are held."""
    flow = Topic.flow

    def flow_early(topic: Topic, consumer: Consumer, permits: int, now_ms: int) -> Outcome:
        outcome = flow(topic, consumer, permits, now_ms)
        for subscription in topic.subscriptions.values():
            subscription.release(outcome.deliveries)
        return outcome

    patch.setattr(Topic, "flow", flow_early)


def holds_nothing(patch: pytest.MonkeyPatch) -> None:
    """The next owner knows no former consumers, and waits for none."""
    patch.setattr(handovers, "decode", lambda *_: {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, the story in which it is injected, and the rule that must find it."""

    inject: Callable[[pytest.MonkeyPatch], None]
    story: Story
    rule: str


FAULTS = (
    Fault(inject=no_second_check, story=lapse, rule="work_ends_within_its_lease"),
    Fault(inject=delivers_before_it_receipts, story=move_on, rule="messages_are_delivered_once"),
    Fault(inject=holds_nothing, story=move_on, rule="receipted_messages_are_delivered"),
)


@pytest.mark.parametrize("story", [move_on, lapse])
def test_without_a_fault_the_checker_finds_nothing(story: Story, tmp_path: Path) -> None:
    assert set() == rules_broken(story, tmp_path)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.inject.__name__)
def test_an_injected_fault_is_found(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.inject(monkeypatch)
    assert fault.rule in rules_broken(fault.story, tmp_path)
