"""`python -m tests.stress_pulsar`: the full stress run of Pulsar's clients, some two minutes; `make stress-pulsar`.

May live here: its command line, and what it prints. Exit code 0: clean; 1: not.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.load.log_places import add_log_option, breakable_place
from tests.load.pulsar_stress import FULL, Result, pulsar_stress
from tests.pulsar.programs import EVERYDAY, Language, command, is_required, lacking
from tests.stress import in_words


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress_pulsar")
    parser.add_argument(
        "--seed", type=int, default=0, help="the order of events; with an odd one nobody declares a broker dead (default: 0)"
    )
    add_log_option(parser)
    parser.add_argument("--data", type=Path, help="a new directory, which is kept (default: a temporary one)")
    arguments = parser.parse_args()
    languages = runnable()
    if len(languages) < len(EVERYDAY) and is_required():
        return 1
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="equipoise-stress-") as temporary:
        directory = (arguments.data or Path(temporary)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(filename=directory / "stress.log")  # What a client of Kafka says of an outage would bury what this prints.
        with breakable_place(arguments.log, directory) as log:
            result = asyncio.run(pulsar_stress(FULL, directory, log, seed=arguments.seed, languages=languages, say=say))
    print_result(result)
    return 0 if result.is_clean else 1


def runnable() -> list[Language]:
    """The languages whose clients this machine can run, which are built; of the others it is said what is missing."""
    problems = {language: lacking(language) for language in EVERYDAY}
    for problem in filter(None, problems.values()):
        print(f"LEFT OUT: {problem}", flush=True)
    languages = [language for language in EVERYDAY if problems[language] is None]
    for language in languages:
        command(language)
    return languages


def print_result(result: Result) -> None:
    """Print what came of a run."""
    print(f"made: {in_words(result.made)}; refused and replaced: {result.refused}")
    print(f"in {result.seconds:.0f} s, of which {result.excused_s:.1f} s excused")
    print("longest pause on a topic outside of deaths: " + ", ".join(f"{name} {pause:.0f} ms" for name, pause in result.pauses_ms.items()))
    print(f"judged: {in_words(result.verdict.totals)}")
    if result.is_clean and (result.verdict.totals["lost"] or result.verdict.totals["doubled"]):
        print("all that were lost or doubled were on their way when a broker died, which excuses them; in moves there were none")
    for rule, messages in result.verdict.violations.items():
        print(*(f"VIOLATION {rule}: {message}" for message in messages), sep="\n")
    for finding in result.findings.findings:
        print(f"FINDING at offset {finding.first}: {finding.text}")
    print(f"channel: {result.findings.records} records, {result.findings.agreements} digests agree")
    print(f"verdict: {result.verdict.problem or ('clean' if result.is_clean else 'not clean')}")


if __name__ == "__main__":
    sys.exit(main())
