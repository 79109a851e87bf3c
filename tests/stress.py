"""`python -m tests.stress [--pulsar]`: a full stress run, of the counter service or of Pulsar's
clients.

Exit code 0: clean; 1: not.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.load import pulsar_stress
from tests.load.log_places import LogPlace, add_log_option, breakable_place
from tests.load.stress import Result, Size, stress
from tests.pulsar.programs import EVERYDAY, Language, command, is_required, lacking


def main() -> int:
    """Run, print, and return the exit code."""
    arguments = _arguments()
    languages = _runnable() if arguments.pulsar else []
    if arguments.pulsar and len(languages) < len(EVERYDAY) and is_required():
        return 1
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="equipoise-stress-") as temporary:
        directory = (arguments.data or Path(temporary)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        # A Kafka client's lines about an outage would bury what this prints.
        logging.basicConfig(filename=directory / "stress.log")
        with breakable_place(arguments.log, directory) as log:
            result = asyncio.run(_run(arguments, directory, log, languages=languages, say=say))
    _print(result)
    return 0 if result.is_clean else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.stress")
    parser.add_argument(
        "--pulsar", action="store_true", help="run Pulsar's clients instead of the counter service"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the order of events; with an odd one nobody declares a broker dead (default: 0)",
    )
    add_log_option(parser)
    parser.add_argument(
        "--data", type=Path, help="a new directory, which is kept (default: a temporary one)"
    )
    for field in dataclasses.fields(Size):
        kind = float if isinstance(field.default, float) else int
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(
            name,
            type=kind,
            help=(
                f"(default: {field.default}; with --pulsar"
                f" {getattr(pulsar_stress.FULL, field.name)})"
            ),
        )
    return parser.parse_args()


async def _run(
    arguments: argparse.Namespace,
    directory: Path,
    log: LogPlace,
    *,
    languages: list[Language],
    say: Callable[[str], None],
) -> Result | pulsar_stress.Result:
    given = {
        field.name: value
        for field in dataclasses.fields(Size)
        if (value := getattr(arguments, field.name)) is not None
    }
    if arguments.pulsar:
        size = dataclasses.replace(pulsar_stress.FULL, **given)
        return await pulsar_stress.pulsar_stress(
            size, directory, log, seed=arguments.seed, languages=languages, say=say
        )
    return await stress(Size(**given), directory, log, seed=arguments.seed, say=say)


def _runnable() -> list[Language]:
    """Build the clients that this machine can run. Print what the others lack."""
    problems = {language: lacking(language) for language in EVERYDAY}
    for problem in filter(None, problems.values()):
        print(f"LEFT OUT: {problem}", flush=True)
    languages = [language for language in EVERYDAY if problems[language] is None]
    for language in languages:
        command(language)
    return languages


def _print(result: Result | pulsar_stress.Result) -> None:
    print(
        f"made: {_in_words(result.made)}; refused and replaced: {result.refused}, in"
        f" {result.seconds:.0f} s"
    )
    if isinstance(result, pulsar_stress.Result):
        print(f"excused after deaths: {result.excused_s:.1f} s")
        print(
            "longest pause on a topic outside of deaths: "
            + ", ".join(f"{name} {ms:.0f} ms" for name, ms in result.pauses_ms.items())
        )
    else:
        print(f"callers: {_in_words(dataclasses.asdict(result.tally))}")
    print(f"checked: {_in_words(result.verdict.totals)}")
    for rule, messages in result.verdict.violations.items():
        print(*(f"VIOLATION {rule}: {message}" for message in messages), sep="\n")
    for finding in result.findings.findings:
        print(f"FINDING at offset {finding.first}: {finding.text}")
    print(f"channel: {result.findings.records} records, {result.findings.agreements} digests agree")
    print(f"double owners: {result.verdict.double_owners}")
    print(f"verdict: {result.verdict.problem or ('clean' if result.is_clean else 'not clean')}")


def _in_words(numbers: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {f'{value:.0f}' if isinstance(value, float) else value}"
        for name, value in numbers.items()
    )


if __name__ == "__main__":
    sys.exit(main())
