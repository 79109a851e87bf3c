"""Run the demo: `python -m compose.demo`.

Exit codes:

* 0: no violation and no problem was found.
* 1: a violation or a problem was found.
* 2: the command line is wrong.
* 4: the demo, or the Kafka that it was to run on, could not start.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Final

from compose.demo.acts import ON_A_FILE, on_kafka
from compose.demo.play import play
from compose.local_kafka.cluster import Cluster
from equipoise.channel.core.errors import EquipoiseError

# A restarted node waits until its former session has expired. Kafka's default of 9 s would be half
# of the outage again.
_SESSION: Final = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


def main() -> int:
    """Run the demo. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m compose.demo",
        description="Run a local cluster that balances, fails and recovers.",
    )
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="run on a new Kafka of this machine, which is killed and comes back (default: a file)",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="a new directory for all files (default: a temporary one)"
    )
    arguments = parser.parse_args()
    if arguments.data == "":  # It would be the working folder.
        parser.error("argument --data: the name is empty")
    if arguments.data is not None and any(Path(arguments.data).glob("*")):
        parser.error(f"{arguments.data} is not empty; name a new directory")
    try:
        with ExitStack() as parts:
            directory = Path(arguments.data or _temporary(parts, "equipoise-demo-")).absolute()
            return _run(directory, _kafka(parts) if arguments.kafka else None, arguments.data)
    except (EquipoiseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 4


def _temporary(parts: ExitStack, prefix: str) -> str:
    # A reader such as an audit may still create files beside the log, which must not fail the demo.
    return parts.enter_context(
        tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    )


def _kafka(parts: ExitStack) -> Cluster:
    folder = Path(_temporary(parts, "equipoise-kafka-"))
    kafka = Cluster.lay_out(folder, nodes=1, extra=_SESSION)
    parts.callback(kafka.kill)
    kafka.start()
    return kafka


def _run(directory: Path, kafka: Cluster | None, kept: str | None) -> int:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Messages of a Kafka client or of asyncio would spoil the screen.
    logging.basicConfig(filename=directory / "demo.log")
    if kafka is None:
        result = asyncio.run(play(directory, ON_A_FILE))
    else:
        log_url = f"kafka://{kafka.address}/equipoise-demo"
        result = asyncio.run(play(directory, on_kafka(kafka), log_url=log_url))
    print(*("", *result.summary), sep="\n")
    if kept is not None and kafka is None:
        log = quote(f"sqlite:{directory}/channel.db")
        look = [
            f"equipoise channel {what} --log {log}" for what in ("verify", "tail", "why BUNDLE")
        ]
        print(f"look at it: {'; '.join(look)}")
    for finding in result.findings.findings:
        print(f"FINDING at offset {finding.first}: {finding.text}")
    for problem in result.problems:
        print(f"PROBLEM {problem}")
    for verdict in result.verdicts.values():
        for rule, messages in verdict.violations.items():
            print(*(f"VIOLATION {rule}: {message}" for message in messages), sep="\n")
    for what, verdict in result.verdicts.items():
        print(f"verdict on {what}: {verdict.text}")
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
