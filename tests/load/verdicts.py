"""Run the independent checkers of calls and messages, and read their verdicts.

The checkers are separate programs that share no code with anything else.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

CALL_CHECKER: Final = Path(__file__).resolve().parents[1] / "checker" / "checker.py"
MESSAGE_CHECKER: Final = CALL_CHECKER.with_name("messages.py")

# A million calls or messages are checked in half a minute.
_CHECK_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a checker. `violations` maps a rule to its first messages; `counts` has the
    number of all.

    `totals` counts what was checked. With a `problem` there is no result.
    """

    is_clean: bool = False
    double_owners: int = 0
    violations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None

    @property
    def text(self) -> str:
        """The verdict in one line."""
        if self.problem is not None:
            return f"no verdict: {self.problem}"
        return (
            "clean, no violation"
            if self.is_clean
            else f"violations of {', '.join(self.violations)}"
        )


def check_calls(
    histories: Sequence[Path], *, store: Path, evidence: Sequence[Path] = ()
) -> Verdict:
    """Check finished files of callers."""
    return _run(CALL_CHECKER, [*map(str, histories), "--store", str(store)], evidence)


def check_messages(
    histories: Sequence[Path],
    *,
    windows: Sequence[tuple[int, int]] = (),
    evidence: Sequence[Path] = (),
) -> Verdict:
    """Check finished files of Pulsar clients.

    `windows` are the periods affected by kills, from and to, in nanoseconds of the clients' clock.
    """
    excused = [
        text for start_ns, end_ns in windows for text in ("--excused", str(start_ns), str(end_ns))
    ]
    return _run(MESSAGE_CHECKER, [*map(str, histories), *excused], evidence)


def _run(program: Path, arguments: Sequence[str], evidence: Sequence[Path]) -> Verdict:
    command = [sys.executable, str(program), *arguments, "--json"]
    # A broker without work leaves no file.
    command += ["--evidence", *map(str, evidence)] if evidence else []
    try:
        ended = subprocess.run(command, capture_output=True, check=False, timeout=_CHECK_S)
    except subprocess.TimeoutExpired:
        return Verdict(problem=f"the checker did not end within {_CHECK_S:.0f} s")
    if not ended.stdout:
        return Verdict(
            problem=(
                f"the checker ended with code {ended.returncode}:"
                f" {ended.stderr.decode(errors='replace').strip()}"
            )
        )
    document = orjson.loads(ended.stdout)
    if document["verdict"] == "unusable":
        return Verdict(problem=f"the files cannot be checked: {document['reason']}")
    return Verdict(
        is_clean=document["verdict"] == "clean",
        double_owners=document["double_owners"],
        violations={rule: tuple(found["first"]) for rule, found in document["violations"].items()},
        counts={rule: found["count"] for rule, found in document["violations"].items()},
        totals=document["totals"],
    )
