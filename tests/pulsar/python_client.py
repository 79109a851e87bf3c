"""The Python client: `python -m tests.pulsar.python_client produce|consume ...`; README.md beside
this file has the contract.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import orjson
import pulsar

KEYS: Final = 8
UNRECEIPTED_MAX: Final = 10_000
RECEIPTS_S: Final = 10.0
CLOSE_S: Final = 5.0
# The longest that an event waits before it is written. Receipts come in callbacks, which must not
# wait for a pipe.
FLUSH_S: Final = 0.01
TYPES: Final = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}


def now_ns() -> int:
    """CLOCK_MONOTONIC, as in the programs of the other languages."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Lines:
    """Buffer the events of several threads for standard output."""

    def __init__(self) -> None:
        # The library may print: send its standard output to standard error.
        self._file = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._waiting: list[bytes] = []
        self._changing = threading.Lock()
        self._writing = threading.Lock()
        self.is_ready = False

    def add(self, event: str, *, at_ns: int, **fields: object) -> None:
        """Add an event."""
        line = orjson.dumps(
            {"event": event, **fields, "at_ns": at_ns}, option=orjson.OPT_APPEND_NEWLINE
        )
        with self._changing:
            self._waiting.append(line)
            self.is_ready |= event == "ready"

    def flush(self) -> None:
        """Write all events, in the order of `add`."""
        with self._writing:
            with self._changing:
                data, self._waiting = b"".join(self._waiting), []
            while data:
                data = data[self._file.write(data) :]


class Receipts:
    """Count the messages without a receipt. Receipts come in the library's threads."""

    def __init__(self, lines: Lines, name: str) -> None:
        self._lines = lines
        self._name = name
        self._changed = threading.Condition()
        self._waiting = 0

    def expect(self) -> None:
        """Count a sent message."""
        with self._changed:
            self._waiting += 1

    def settle(self, topic: str, n: int, result: object, _: object) -> None:
        """Handle a receipt, or a message that the library has given up."""
        at_ns = now_ns()
        if result == pulsar.Result.Ok:
            self._lines.add("receipted", topic=topic, producer=self._name, n=n, at_ns=at_ns)
        else:
            self._lines.add(
                "failed", topic=topic, producer=self._name, n=n, why=str(result), at_ns=at_ns
            )
        with self._changed:
            self._waiting -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for all receipts, at most `RECEIPTS_S`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, RECEIPTS_S)


def produce(
    client: pulsar.Client, options: argparse.Namespace, lines: Lines, ended: threading.Event
) -> None:
    """Send at a fixed rate until `ended`."""
    topics = options.topics.split(",")
    batching = (
        {"batching_enabled": True, "batching_max_messages": options.batch} if options.batch else {}
    )
    producers = [
        client.create_producer(
            topic, producer_name=options.name, max_pending_messages=UNRECEIPTED_MAX, **batching
        )
        for topic in topics
    ]
    lines.add("ready", producer=options.name, topics=topics, at_ns=now_ns())
    receipts = Receipts(lines, options.name)
    interval_ns = 1e9 / (options.rate * len(topics))
    began_ns = now_ns()
    for number in itertools.count():
        due_ns = began_ns + int(number * interval_ns)
        if ended.wait(max(0, due_ns - now_ns()) / 1e9):
            break
        n, turn = divmod(number, len(topics))
        lines.add("sent", topic=topics[turn], producer=options.name, n=n, at_ns=now_ns())
        receipts.expect()
        key = None if options.batch else f"{options.name}/{n % KEYS}"
        settle = partial(receipts.settle, topics[turn], n)
        # The brokers' evidence has this number. The library's own numbers skip messages that it
        # gives up, and count per partition.
        producers[turn].send_async(
            f"{options.name} {n}".encode(), settle, partition_key=key, sequence_id=n
        )
    receipts.wait()


def consume(
    client: pulsar.Client, options: argparse.Namespace, lines: Lines, ended: threading.Event
) -> None:
    """Receive until `ended`."""
    topics = None if options.pattern else options.topics.split(",")
    consumer = client.subscribe(
        # A list even for one topic: the library keeps the queue of a list when it reconnects.
        re.compile(options.pattern) if topics is None else topics,
        options.subscription,
        consumer_type=TYPES[options.type],
        consumer_name=options.name,
        pattern_auto_discovery_period=1,
        regex_subscription_mode=pulsar.RegexSubscriptionMode.NonPersistentOnly,
    )
    who = {"subscription": options.subscription, "consumer": options.name}
    lines.add("ready", **who, type=options.type, topics=topics, at_ns=now_ns())
    while not ended.is_set():
        try:
            message = consumer.receive(timeout_millis=50)
        except pulsar.Timeout:
            continue
        at_ns = now_ns()
        producer, _, n = message.data().decode().rpartition(" ")
        lines.add(
            "received", topic=message.topic_name(), **who, producer=producer, n=int(n), at_ns=at_ns
        )
        consumer.acknowledge(message)


def flush_for_ever(lines: Lines) -> None:
    """Write events within `FLUSH_S`. End the process once its output is closed."""
    try:
        while True:
            time.sleep(FLUSH_S)
            lines.flush()
    except OSError:
        os._exit(1)


def wait_for_the_end(ended: threading.Event) -> None:
    """Wait for the end of standard input."""
    while os.read(sys.stdin.fileno(), 4_096):
        pass
    ended.set()


def end_with_the_input(lines: Lines, ended: threading.Event) -> None:
    """Wait for the end of standard input. If the library is still starting, which cannot be
    cancelled, end the process.
    """
    wait_for_the_end(ended)
    if not lines.is_ready:
        sys.stderr.write("error: told to end before it was ready\n")
        sys.stderr.flush()
        os._exit(1)


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    """Start a thread that does not outlive the process."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.pulsar.python_client")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (
        producing := commands.add_parser("produce"),
        consuming := commands.add_parser("consume"),
    ):
        command.add_argument("--url", required=True)
        command.add_argument("--name", required=True)
        command.add_argument("--token", type=Path)
        command.add_argument("--ca")
    producing.add_argument("--topics", required=True)
    producing.add_argument("--rate", type=float, required=True)
    producing.add_argument("--batch", type=int, default=0)
    what = consuming.add_mutually_exclusive_group(required=True)
    what.add_argument("--topics")
    what.add_argument("--pattern")
    consuming.add_argument("--subscription", required=True)
    consuming.add_argument("--type", choices=sorted(TYPES), required=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Produce or consume until standard input ends. Never returns."""
    options = options_of(arguments)
    lines, ended = Lines(), threading.Event()
    in_a_thread(partial(end_with_the_input, lines, ended))
    in_a_thread(partial(flush_for_ever, lines))
    client = pulsar.Client(
        options.url,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr"),
        authentication=pulsar.AuthenticationToken(options.token.read_text)
        if options.token
        else None,
        tls_trust_certs_file_path=options.ca,
        tls_validate_hostname=True,
    )
    code = 0
    try:
        (produce if options.command == "produce" else consume)(client, options, lines, ended)
    except pulsar.PulsarException as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
        code = 1
    in_a_thread(client.close).join(CLOSE_S)
    lines.flush()
    sys.stderr.flush()
    os._exit(code)  # The library may still wait for dead brokers.


if __name__ == "__main__":
    main()
