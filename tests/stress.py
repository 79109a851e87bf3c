"""`python -m tests.stress`: the full stress run, about five minutes; `make stress`.

May live here: its command line, and what it prints. Exit code 0: clean; 1: not.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.load.log_places import add_log_option, breakable_place
from tests.load.stress import Result, Size, stress


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress")
    parser.add_argument(
        "--seed", type=int, default=0, help="the order of events; with an odd one nobody declares a broker dead (default: 0)"
    )
    add_log_option(parser)
    parser.add_argument("--data", type=Path, help="a new directory, which is kept (default: a temporary one)")
    for field in dataclasses.fields(Size):
        kind = float if isinstance(field.default, float) else int
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help=f"(default: {field.default})")
    arguments = vars(parser.parse_args())
    size = Size(**{field.name: arguments[field.name] for field in dataclasses.fields(Size)})
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="equipoise-stress-") as temporary:
        directory = (arguments["data"] or Path(temporary)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(filename=directory / "stress.log")  # What a client of Kafka says of an outage would bury what this prints.
        with breakable_place(arguments["log"], directory) as log:
            result = asyncio.run(stress(size, directory, log, seed=arguments["seed"], say=say))
    print_result(result)
    return 0 if result.is_clean else 1


def print_result(result: Result) -> None:
    """Print what came of a run."""
    print(f"made: {in_words(result.made)}; refused and replaced: {result.refused}, in {result.seconds:.0f} s")
    print(f"callers: {in_words(dataclasses.asdict(result.tally))}")
    print(f"judged: {in_words(result.verdict.totals)}")
    for rule, messages in result.verdict.violations.items():
        print(*(f"VIOLATION {rule}: {message}" for message in messages), sep="\n")
    for finding in result.findings.findings:
        print(f"FINDING at offset {finding.first}: {finding.text}")
    print(f"channel: {result.findings.records} records, {result.findings.agreements} digests agree")
    print(f"double owners: {result.verdict.double_owners}")
    print(f"verdict: {result.verdict.text}")


def in_words(numbers: Mapping[str, object]) -> str:
    """Numbers with their names, as people read them."""
    return ", ".join(f"{name.replace('_', ' ')} {f'{value:.0f}' if isinstance(value, float) else value}" for name, value in numbers.items())


if __name__ == "__main__":
    sys.exit(main())
