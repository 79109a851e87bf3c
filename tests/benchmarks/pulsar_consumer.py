"""A Pulsar client that consumes each topic with a consumer of its own; the contract is that of
tests/pulsar/README.md.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial

import pulsar

from tests.pulsar.python_client import (
    CLOSE_S,
    TYPES,
    Lines,
    flush_for_ever,
    in_a_thread,
    now_ns,
    options_of,
    wait_for_the_end,
)


def note(
    lines: Lines, subscription: str, name: str, consumer: pulsar.Consumer, message: pulsar.Message
) -> None:
    """Write down one message; called in a thread of the library."""
    at_ns = now_ns()
    producer, _, n = message.data().decode().rpartition(" ")
    topic = message.topic_name()
    lines.add(
        "received",
        topic=topic,
        subscription=subscription,
        consumer=name,
        producer=producer,
        n=int(n),
        at_ns=at_ns,
    )
    consumer.acknowledge(message)


def main() -> None:
    """Consume until standard input ends; never returns."""
    options = options_of(None)
    lines, ended = Lines(), threading.Event()
    in_a_thread(partial(wait_for_the_end, ended))
    in_a_thread(partial(flush_for_ever, lines))
    client = pulsar.Client(
        options.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr")
    )
    topics = options.topics.split(",")
    listener = partial(note, lines, options.subscription, options.name)
    for topic in topics:
        client.subscribe(
            topic,
            options.subscription,
            consumer_type=TYPES[options.type],
            consumer_name=options.name,
            message_listener=listener,
        )
    who = {"subscription": options.subscription, "consumer": options.name}
    lines.add("ready", **who, type=options.type, topics=topics, at_ns=now_ns())
    ended.wait()
    in_a_thread(client.close).join(CLOSE_S)
    lines.flush()
    sys.stderr.flush()
    os._exit(0)  # The library may still be at its closing, and waits for brokers that are gone.


if __name__ == "__main__":
    main()
