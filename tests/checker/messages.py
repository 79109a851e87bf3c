"""Check from Pulsar clients' histories whether messages were lost, delivered twice or out of order.

Brokers' evidence is checked with the rules of `rules.py`. Like `checker.py` it imports nothing of
the product. README.md describes the formats and what a clean verdict proves.

    python messages.py HISTORY.jsonl [HISTORY2.jsonl ...] [--evidence ACCEPTS.jsonl ...] [--excused
    FROM_NS TO_NS ...] [--json]

Exit code 0: clean; 1: violations; 2: unusable input.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from case import Case, UnusableInputError, Work
from checker import Judgement, judged, read_lines
from rules import work_ends_within_its_lease, work_of_two_tokens_never_overlaps

PARTITION = re.compile(r"-partition-(?:0|[1-9][0-9]*)$")
NEVER_NS = 1 << 63
# In evidence a topic follows the namespace of its bundle.
TOPIC = re.compile(r"[a-z-]+://.*", re.DOTALL)


class Message(NamedTuple):
    """A message. A producer of a partitioned topic counts over all partitions, so `topic` names no
    partition.
    """

    topic: str
    producer: str
    n: int


class Delivery(NamedTuple):
    """A message as a consumer received it. `topic` names the partition."""

    message: Message
    topic: str
    consumer: str
    at_ns: int


class Run:
    """The input of the checker.

    * `deliveries`: by subscription; those to one consumer are in order of receipt.
    * `is_witnessed`: whether brokers gave evidence.
    * `owed_from_ns`: by subscription and topic.
    * `windows`: the start and end of the times in which brokers died.
    """

    def __init__(self) -> None:
        self.sent_ns: dict[Message, int] = {}
        self.receipted_ns: dict[Message, int] = {}
        self.failed: set[Message] = set()
        self.deliveries: defaultdict[str, list[Delivery]] = defaultdict(list)
        self.owed_from_ns: dict[tuple[str, str], int] = {}
        self.by_pattern: set[str] = set()
        self.works: list[Work] = []
        self.is_witnessed = False
        self.windows: list[tuple[int, int]] = []

    def is_excused(self, message: Message, until_ns: int) -> bool:
        """Return whether a window overlaps the time from the sending of a message to `until_ns`."""
        return any(
            self.sent_ns[message] <= end and start <= until_ns for start, end in self.windows
        )

    def owed(self, subscription: str) -> Iterator[Message]:
        """Yield acknowledged messages that were sent after the subscription existed; with a
        pattern, after it had found the topic.
        """
        for message in self.receipted_ns:
            if (
                self.owed_from_ns.get((subscription, message.topic), NEVER_NS)
                < self.sent_ns[message]
            ):
                yield message

    def lost(self, subscription: str) -> list[Message]:
        """Return the messages owed to a subscription and never delivered, excused or not."""
        got = {delivery.message for delivery in self.deliveries[subscription]}
        return [message for message in self.owed(subscription) if message not in got]

    def accepted(self) -> set[Message]:
        """Return the messages in the brokers' evidence."""
        found = set()
        for work in self.works:
            topic, (producer, _, sequence) = (
                TOPIC.search(work.key),
                (work.message or "").rpartition(":"),
            )
            if topic and sequence.isdecimal():
                found.add(Message(PARTITION.sub("", topic[0]), producer, int(sequence)))
        return found

    def doubled(self, subscription: str) -> dict[Message, list[Delivery]]:
        """Return the deliveries of each message that was delivered more than once, excused or
        not.
        """
        found: defaultdict[Message, list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries[subscription]:
            found[delivery.message].append(delivery)
        return {message: copies for message, copies in found.items() if len(copies) > 1}


def receipted_messages_are_delivered(run: Run) -> Iterator[str]:
    """Require that each subscription got every acknowledged message, unless a death excuses it."""
    for subscription in run.deliveries:
        for message in run.lost(subscription):
            if not run.is_excused(message, run.receipted_ns[message]):
                yield (
                    f"subscription {subscription!r} never got {message}, sent at"
                    f" {run.sent_ns[message]}"
                )


def deliveries_were_sent(run: Run) -> Iterator[str]:
    """Require that every delivered message was sent."""
    for subscription, deliveries in run.deliveries.items():
        for delivery in deliveries:
            if delivery.message not in run.sent_ns:
                yield f"subscription {subscription!r}: nobody sent {delivery}"


def messages_are_delivered_once(run: Run) -> Iterator[str]:
    """Require that no subscription gets a message twice. A death excuses it: an acknowledgement was
    lost and the message sent again.
    """
    for subscription in run.deliveries:
        for message, copies in run.doubled(subscription).items():
            if message in run.sent_ns and not run.is_excused(
                message, max(copy.at_ns for copy in copies)
            ):
                yield (
                    f"subscription {subscription!r} got {message} {len(copies)} times:"
                    f" {[copy[1:] for copy in copies]}"
                )


def messages_keep_their_order(run: Run) -> Iterator[str]:
    """Require that a producer's numbers rise per consumer and topic or partition. Repeated messages
    count where they came first.
    """
    for subscription, deliveries in run.deliveries.items():
        seen: set[Message] = set()
        highest: dict[tuple[str, str, str], int] = {}
        for delivery in deliveries:
            of = delivery.consumer, delivery.topic, delivery.message.producer
            if delivery.message not in seen and delivery.message.n < highest.get(of, -1):
                yield f"subscription {subscription!r}: {delivery} came after number {highest[of]}"
            seen.add(delivery.message)
            highest[of] = max(highest.get(of, -1), delivery.message.n)


def tokens_have_one_broker(run: Run) -> Iterator[str]:
    """Require that a topic's token belongs to one broker."""
    holders: dict[tuple[str, int], Work] = {}
    for work in run.works:
        first = holders.setdefault((work.key, work.token), work)
        if first.broker != work.broker:
            yield f"key {work.key!r}: one token, two brokers: {first} and {work}"


def receipts_have_evidence(run: Run) -> Iterator[str]:
    """Require evidence for every acknowledged message. A death excuses its absence: the broker's
    last lines are lost.

    Clients use the number in the history as the sequence number, so messages cannot be confused.
    """
    if not run.is_witnessed:
        return
    accepted = run.accepted()
    for message, at_ns in run.receipted_ns.items():
        if message not in accepted and not run.is_excused(message, at_ns):
            yield f"no broker says that it took {message}"


RULES = (
    receipted_messages_are_delivered,
    deliveries_were_sent,
    messages_are_delivered_once,
    messages_keep_their_order,
    tokens_have_one_broker,
    receipts_have_evidence,
)
EVIDENCE_RULES = (work_ends_within_its_lease, work_of_two_tokens_never_overlaps)


def violations(run: Run) -> dict[str, list[str]]:
    """Return the messages of each broken rule, by the rule's name."""
    of_brokers = Case({}, {}, [], {}, [], run.works)
    found = {rule.__name__: list(rule(run)) for rule in RULES} | {
        rule.__name__: list(rule(of_brokers)) for rule in EVIDENCE_RULES
    }
    return {name: messages for name, messages in found.items() if messages}


def text(said: dict[str, object], name: str) -> str:
    """Return a field that is text. Raise UnusableInputError if it is missing or has another
    type.
    """
    value = said.get(name)
    if not isinstance(value, str):
        raise UnusableInputError(f"{said!r:.300}", f"{name} is {value!r:.80}")
    return value


def number(said: dict[str, object], name: str) -> int:
    """Return a field that is an integer. Raise as `text`."""
    value = said.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnusableInputError(f"{said!r:.300}", f"{name} is {value!r:.80}")
    return value


def note(run: Run, said: dict[str, object]) -> None:
    """Add one line of a history to the run. Raise UnusableInputError."""
    event, at_ns = text(said, "event"), number(said, "at_ns")
    if event == "ready":
        if "subscription" in said:
            note_subscription(run, text(said, "subscription"), said.get("topics"), at_ns)
        return
    topic = text(said, "topic")
    message = Message(PARTITION.sub("", topic), text(said, "producer"), number(said, "n"))
    if event == "received":
        subscription = text(said, "subscription")
        run.deliveries[subscription].append(Delivery(message, topic, text(said, "consumer"), at_ns))
        if subscription in run.by_pattern:
            run.owed_from_ns.setdefault((subscription, message.topic), at_ns)
    elif event == "sent":
        if message in run.sent_ns:
            raise UnusableInputError(
                str(message), "it was sent twice; each producer must have a name of its own"
            )
        run.sent_ns[message] = at_ns
    elif message not in run.sent_ns:
        raise UnusableInputError(str(message), f"it was {event} before it was sent")
    elif event == "receipted":
        run.receipted_ns[message] = at_ns
    elif event == "failed":
        run.failed.add(message)
    else:
        raise UnusableInputError(f"{said!r:.300}", "no such event")


def note_subscription(run: Run, subscription: str, topics: object, at_ns: int) -> None:
    """Register a consumer. With a pattern its topics are unknown; the first message of each topic
    determines them.
    """
    run.deliveries[subscription] += []  # A subscription that never gets anything is checked too.
    if topics is None:
        run.by_pattern.add(subscription)
    elif isinstance(topics, list):
        for topic in topics:
            run.owed_from_ns[subscription, topic] = min(
                at_ns, run.owed_from_ns.get((subscription, topic), at_ns)
            )
    else:
        raise UnusableInputError(f"subscription {subscription!r}", f"its topics are {topics!r:.80}")


def history_lines(path: str) -> Iterator[dict[str, object]]:
    """Yield the lines of a history. Its clients ended normally, so no line may be damaged."""
    with Path(path).open("rb") as lines:
        for count, line in enumerate(lines, 1):
            try:
                said = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UnusableInputError(f"{path!r} line {count}", f"not JSON ({error})") from error
            if not isinstance(said, dict):
                raise UnusableInputError(f"{path!r} line {count}", "not an object")
            yield said


def read_run(
    histories: Sequence[str], evidence: Sequence[str], windows: Iterable[tuple[int, int]]
) -> Run:
    """Read all input. Raise UnusableInputError or OSError."""
    run = Run()
    run.windows += windows
    for path in histories:
        for said in history_lines(path):
            note(run, said)
    run.is_witnessed = bool(evidence)
    run.works += [work for path in evidence for work in read_lines(path, Work)]
    if not run.receipted_ns or not run.deliveries:
        raise UnusableInputError(
            "histories",
            "no message was receipted, or nobody subscribed, so there is nothing to check",
        )
    return run


def totals(run: Run) -> dict[str, int | float | str]:
    """Return figures about the input: a clean verdict on little input means little. Losses and
    copies include excused ones.
    """
    return {
        "sent": len(run.sent_ns),
        "receipted": len(run.receipted_ns),
        "failed": len(run.failed),
        "never_settled": len(run.sent_ns.keys() - run.receipted_ns.keys() - run.failed),
        "subscriptions": len(run.deliveries),
        "deliveries": sum(map(len, run.deliveries.values())),
        "deliveries_owed": sum(
            1 for subscription in run.deliveries for _ in run.owed(subscription)
        ),
        "lost": sum(len(run.lost(subscription)) for subscription in run.deliveries),
        "doubled": sum(len(run.doubled(subscription)) for subscription in run.deliveries),
        "pieces_of_work_in_evidence": len(run.works),
        "tokens_of_topics_in_evidence": len({(work.key, work.token) for work in run.works}),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files on the command line, print the verdict, and return the exit code."""
    parser = argparse.ArgumentParser(description="Check what Pulsar clients sent and received.")
    parser.add_argument(
        "histories", nargs="+", metavar="HISTORY.jsonl", help="what clients said, one event a line"
    )
    parser.add_argument(
        "--evidence",
        nargs="+",
        action="extend",
        default=[],
        metavar="ACCEPTS.jsonl",
        help="what brokers accepted",
    )
    parser.add_argument(
        "--excused",
        nargs=2,
        type=int,
        action="append",
        default=[],
        metavar=("FROM_NS", "TO_NS"),
        help="a broker died, by the clients' clock",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args(arguments)

    def judge() -> Judgement:
        windows = [(start, end) for start, end in options.excused]
        run = read_run(options.histories, options.evidence, windows)
        return violations(run), totals(run)

    return judged(judge, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
