"""Run the independent checkers of calls and messages, and read their verdicts.

The checkers are separate programs that share no code with the demo. They are part of a checkout, not of the installed package.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

import equipoise

JUDGE: Final = Path(equipoise.__file__).resolve().parent.parent / "tests" / "judge" / "judge.py"
JUDGE_OF_MESSAGES: Final = JUDGE.with_name("messages.py")

# A million calls or messages are checked in half a minute. A demo makes about ten thousand.
_JUDGE_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a checker. `violations` maps a rule to its first messages; `counts` has the number of all.

    `totals` counts what was checked.
    """

    is_clean: bool
    double_owners: int
    violations: Mapping[str, Sequence[str]]
    counts: Mapping[str, int]
    totals: Mapping[str, int | float]
    problem: str | None = None

    @property
    def text(self) -> str:
        """The verdict in one line."""
        if self.problem is not None:
            return f"no verdict: {self.problem}"
        return "clean, no violation" if self.is_clean else f"violations of {', '.join(self.violations)}"


async def judge(histories: Sequence[Path], *, store: Path, evidence: Sequence[Path]) -> Verdict | None:
    """Check finished files of callers. Return None if there is no checker, because this is not a checkout."""
    return await _ask(JUDGE, [*map(str, histories), "--store", str(store)], evidence) if JUDGE.exists() else None


async def judge_messages(histories: Sequence[Path], *, windows: Sequence[tuple[int, int]], evidence: Sequence[Path]) -> Verdict | None:
    """Check finished files of Pulsar clients. Return as `judge`.

    `windows` are the periods affected by kills, from and to, in nanoseconds of the clients' clock.
    """
    excused = [word for start_ns, end_ns in windows for word in ("--excused", str(start_ns), str(end_ns))]
    return await _ask(JUDGE_OF_MESSAGES, [*map(str, histories), *excused], evidence) if JUDGE_OF_MESSAGES.exists() else None


async def _ask(program: Path, arguments: Sequence[str], evidence: Sequence[Path]) -> Verdict:
    # A broker without work leaves no file.
    words = [str(program), *arguments, "--json", *(["--evidence", *map(str, evidence)] if evidence else [])]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(_JUDGE_S):
            said, complaints = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return _no_verdict(f"the judge did not come to an end within {_JUDGE_S:.0f} s")
    try:
        return _read(orjson.loads(said))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return _no_verdict(f"the judge ended with code {process.returncode}: {complaints.decode(errors='replace').strip()}")


def _read(document: Mapping[str, object]) -> Verdict:
    if document["verdict"] == "unusable":
        return _no_verdict(f"what was left cannot be judged: {document['reason']}")
    violations, totals, double_owners = document["violations"], document["totals"], document["double_owners"]
    if not (isinstance(violations, dict) and isinstance(totals, dict) and isinstance(double_owners, int)):
        raise TypeError("the judge's verdict has another shape than its README says")
    return Verdict(
        is_clean=document["verdict"] == "clean",
        double_owners=double_owners,
        violations={rule: tuple(found["first"]) for rule, found in violations.items()},
        counts={rule: found["count"] for rule, found in violations.items()},
        totals=totals,
    )


def _no_verdict(problem: str) -> Verdict:
    return Verdict(is_clean=False, double_owners=0, violations={}, counts={}, totals={}, problem=problem)
