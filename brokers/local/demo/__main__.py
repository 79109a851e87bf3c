"""Run the demo: a local cluster of three brokers that balances, fails and recovers under callers
and Pulsar clients.

Exit codes:

* 0: no violation and no problem was found.
* 1: a violation or a problem was found.
* 2: the command line is wrong.
* 4: the demo could not start.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote

from equipoise.brokers.local.demo.checker import CALL_CHECKER
from equipoise.brokers.local.demo.play import Options, Result, play
from equipoise.brokers.local.demo.screen import Screen
from equipoise.brokers.local.demo.steps import STEPS, Step
from equipoise.channel.core.errors import EquipoiseError


def parser(program: str) -> argparse.ArgumentParser:
    """Return the command-line parser of the demo, for `program`."""
    parser = argparse.ArgumentParser(
        prog=program, description="Run a local cluster that balances, fails and recovers."
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="how long the steps repeat; each is played at least once (default: 30)",
    )
    parser.add_argument("--forever", action="store_true", help="run until Ctrl-C")
    parser.add_argument("--plain", action="store_true", help="print plain lines, as in a pipe")
    parser.add_argument(
        "--data",
        type=_directory,
        metavar="DIR",
        help="keep all files in this new directory (default: a temporary one)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of the random choices: what moves where, and which broker is called first",
    )
    return parser


def _directory(text: str) -> Path:
    if not text:  # pathlib would read it as the working folder.
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def main() -> int:
    """Run the demo on a file, or on the log at `--log`. Return the exit code."""
    arguments = parser("python -m equipoise.brokers.local.demo")
    arguments.add_argument(
        "--log", metavar="URL", help="URL of a new log: kafka://HOST:PORT/TOPIC (default: a file)"
    )
    parsed = arguments.parse_args()
    return run(arguments, parsed, log_url=parsed.log)


def run(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    *,
    log_url: str | None,
    log_stays: bool = True,
    steps: Sequence[Step] = STEPS,
) -> int:
    """Play the demo with the parsed arguments. Return the exit code. `log_stays`: the log still
    exists afterwards.
    """
    if arguments.data is not None and arguments.data.exists() and any(arguments.data.iterdir()):
        parser.error(f"{arguments.data} is not empty; name a new directory")
    with ExitStack() as parts:
        directory = arguments.data
        if directory is None:
            # A reader such as an audit may still create files beside the log. The report must not
            # fail because of them.
            directory = Path(
                parts.enter_context(
                    tempfile.TemporaryDirectory(
                        prefix="equipoise-demo-", ignore_cleanup_errors=True
                    )
                )
            )
        seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
        seconds = None if arguments.forever else arguments.seconds
        options = Options(
            directory=directory.absolute(), seconds=seconds, seed=seed, log_url=log_url, steps=steps
        )
        options.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Messages of a Kafka client or of asyncio would spoil the screen.
        logging.basicConfig(filename=options.directory / "demo.log")
        screen = parts.enter_context(Screen(plain=arguments.plain))
        try:
            result = asyncio.run(play(options, screen))
        except (EquipoiseError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 4
    kept = f"sqlite:{options.directory}/channel.db" if arguments.data is not None else None
    _print_result(result, log=(log_url or kept) if log_stays else None)
    return 0 if result.is_clean else 1


def _print_result(result: Result, *, log: str | None) -> None:
    print()
    for line in result.summary:
        print(line)
    for finding in result.findings.findings:
        print(f"FINDING at offset {finding.first}: {finding.text}")
    if result.problem is not None:
        print(f"the steps ended early: {result.problem}")
    if log is not None:
        commands = (
            f"equipoise channel {what} --log {quote(log)}"
            for what in ("verify", "tail", "why BUNDLE")
        )
        print(f"look at it: {'; '.join(commands)}")
    if not result.verdicts:
        print(
            "verdict: none, because the checker is part of a checkout, not of the package:"
            f" {Path(*CALL_CHECKER.parts[-3:])}"
        )
    for verdict in result.verdicts.values():
        for rule, messages in verdict.violations.items():
            for message in messages:
                print(f"VIOLATION {rule}: {message}")
    for what, verdict in result.verdicts.items():
        print(f"verdict on {what}: {verdict.text}")


if __name__ == "__main__":
    sys.exit(main())
