"""The language of the stories of one topic.

Options stand behind the words they belong to, as `name=value`. Clients have names; `a'` is another
client that is called `a`, too.

* `topic consumers_max=1`: a new topic at 0 ms, with these limits; a rate is in messages a second;
  `limits` sets them on the topic that is there
* `producer p epoch=1 mode=EXCLUSIVE id=3 link=x`: a producer connects
* `consumer a of s SHARED permits=5 priority=1 ranges=0-9`: subscribe, and grant permits if given;
  the client chose the name unless it is `nameless`
* `send p messages=3 bytes=10 key=k times=2`
* `permits a 5` · `noted a 5`: grant permits, at once or at the next tick
* `blocked a` · `writable a` · `noted-writable a`: its connection takes no more bytes, and again
* `leave a b` · `end p q`: consumers and producers disconnect, together
* `unsubscribe a` · `unsubscribe a forced`
* `room p 3`: how many of these entries are to be published now, on a connection that did not wait
* `receipts`: send those that are held · `fence`: prepare the move
* `move`: fence the topic, and open it again with its state and without its clients
* `after 100 ms`: time passes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from equipoise.brokers.pulsar.topics.clients import Consumer, Producer, Refusal
from equipoise.brokers.pulsar.topics.handover import decode, encode, fetchable
from equipoise.brokers.pulsar.topics.throttling import Patience, Rate
from equipoise.brokers.pulsar.topics.topic import Outcome, Topic, TopicLimits, TopicState
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import AccessMode, Sent, SubscriptionKind
from tests.pulsar.topics import NAME, flowed, keyed, make_consumer, make_producer, sticky


class TopicStage:
    """One topic and its clients."""

    woken_ms: int | None

    def __init__(self) -> None:
        self._open(TopicLimits(), {})

    def perform(self, line: str) -> Iterator[str]:
        """Do what a line of a story says. Return what the topic answers."""
        verb, *words = (word for word in line.split() if "=" not in word)
        options = dict(word.split("=") for word in line.split() if "=" in word)
        found = self._meet(verb, words, options) or self._serve(verb, words, options)
        yield from _lines_of(found)
        if self.woken_ms != self.topic.wake_at_ms:
            self.woken_ms = self.topic.wake_at_ms
            yield "waits for nobody" if self.woken_ms is None else f"wakes at {self.woken_ms} ms"

    def _open(self, limits: TopicLimits, options: Mapping[str, str]) -> None:
        self.now_ms = 0
        self.woken_ms = None
        self.limits, self.partition = limits, int(options.get("partition", -1))
        self.producers: dict[str, Producer] = {}
        self.consumers: dict[str, Consumer] = {}
        self.topic: Topic = self._topic(None)

    def _topic(self, expected: TopicState | None) -> Topic:
        return Topic(
            NAME,
            partition=self.partition,
            limits=self.limits,
            now_ms=self.now_ms,
            expected=expected,
        )

    def _meet(self, verb: str, words: list[str], options: Mapping[str, str]) -> object:
        """Let clients come and go."""
        topic = self.topic
        match verb:
            case "topic":
                self._open(_limits_of(options), options)
            case "producer":
                producer = self._producer(words[0], options)
                return topic.add_producer(producer)
            case "consumer":
                return self._subscribe(words, options)
            case "leave":
                return topic.remove_consumers([self.consumers[name] for name in words])
            case "end":
                topic.remove_producers([self.producers[name] for name in words])
            case "unsubscribe":
                return topic.unsubscribe(self.consumers[words[0]], is_forced="forced" in words)
            case "fence":
                return topic.fence()
            case "move":
                outcome = topic.fence()
                encoded = encode({NAME: topic.state()})
                fetched = None if encoded.is_complete else fetchable(encoded.states)
                self.topic = self._topic(decode(encoded.handover, fetched)[NAME])
                self.consumers.clear()
                for producer in self.producers.values():
                    self.topic.add_producer(producer)
                return outcome
        return None

    def _serve(self, verb: str, words: list[str], options: Mapping[str, str]) -> object:
        """Let messages and permits come, and time pass."""
        topic, now_ms = self.topic, self.now_ms
        match verb:
            case "send":
                block = (
                    keyed(options["key"])
                    if "key" in options
                    else b"x" * int(options.get("bytes", 5))
                )
                sent = Sent(0, 0, int(options.get("messages", 1)), block)
                times = int(options.get("times", 1))
                return topic.publish(self.producers[words[0]], [sent] * times, now_ms)
            case "room":
                sent = Sent(0, 0, 1, b"12345")
                patience = Patience(wait_ms=self.limits.permits_wait_ms, now_ms=now_ms)
                producer = self.producers[words[0]]
                room = topic.room_for(producer, [sent] * int(words[1]), patience, now_ms)
                return f"room for {room}" + f", rests {topic.rest_ms} ms" * (topic.rest_ms > 0)
            case "permits":
                return flowed(topic, self.consumers[words[0]], int(words[1]), now_ms)
            case "noted":
                topic.flow(self.consumers[words[0]], int(words[1]))
            case "blocked" | "writable":
                consumer = self.consumers[words[0]]
                topic.writable(consumer, is_writable=verb == "writable")
                return topic.tick(now_ms) if verb == "writable" else Outcome()
            case "noted-writable":
                topic.writable(self.consumers[words[0]], is_writable=True)
            case "receipts":
                return topic.release_receipts()
            case "limits":
                self.limits = _limits_of(options)
                topic.limit(self.limits, now_ms)
            case "after":
                self.now_ms += int(words[0])
                return topic.tick(self.now_ms)
        return None

    def _producer(self, name: str, options: Mapping[str, str]) -> Producer:
        producer = make_producer(
            name.rstrip("'"),
            link=options.get("link"),
            producer_id=int(options.get("id", 0)),
            epoch=int(options.get("epoch", 0)),
            access_mode=AccessMode[options.get("mode", "SHARED")],
        )
        return self.producers.setdefault(name, producer)

    def _subscribe(self, words: list[str], options: Mapping[str, str]) -> object:
        name, _, subscription, kind, *more = words
        ranges = [each.split("-") for each in options.get("ranges", "").split(",") if each]
        consumer = make_consumer(
            name.rstrip("'"),
            priority=int(options.get("priority", 0)),
            key_shared=sticky(*((int(low), int(high)) for low, high in ranges)) if ranges else None,
            is_name_users="nameless" not in more,
            link=options.get("link"),
        )
        now_ms = self.now_ms
        answer = self.topic.subscribe(consumer, subscription, SubscriptionKind[kind], now_ms=now_ms)
        if isinstance(answer, Refusal):
            return answer
        self.consumers[name] = consumer
        if "permits" not in options:
            return answer
        return [*answer, flowed(self.topic, consumer, int(options["permits"]), now_ms)]


def _limits_of(options: Mapping[str, str]) -> TopicLimits:
    values: dict[str, Any] = {
        name: Rate(messages=int(value)) if name.endswith("_rate") else int(value)
        for name, value in options.items()
        if name != "partition"
    }
    return TopicLimits(**values)


def _lines_of(found: object) -> Iterator[str]:
    match found:
        case None:
            return
        case Outcome():
            if found.deliveries:
                given = (
                    f"{consumer.name} {entry.entry_id}" for consumer, entry in found.deliveries
                )
                yield f"delivers {', '.join(given)}"
            if found.receipts:
                sent = (f"{each.producer.name} {each.entry_id}" for each in found.receipts)
                yield f"receipts {', '.join(sent)}"
            if found.dropped:
                yield f"drops {found.dropped}"
        case Refusal():
            holder = "" if found.holder is None else f", holder {found.holder.name}"
            yield f"refused {ServerError.Name(found.error)}{holder}: {found.message}"
        case Producer():
            yield f"replaces {found.name}"
        case Consumer():
            yield f"disconnects {found.name}"
        case (Consumer() as consumer, bool() as is_active):
            yield f"{consumer.name} is {'active' if is_active else 'not active'}"
        case list() | tuple():
            for each in found:
                yield from _lines_of(each)
        case _:
            yield str(found)
