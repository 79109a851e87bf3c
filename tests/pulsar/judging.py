"""The verdict of the judge of messages, who is a program of its own.

May live here: the way to the judge and back.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from tests.pulsar.programs import ROOT

JUDGE: Final = ROOT / "tests" / "judge" / "messages.py"
# It judges a million messages in some ten seconds.
_JUDGE_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesVerdict:
    """What the judge says. `violations` maps a rule to the first few of its messages; `totals` counts what was judged.

    `problem` says why there is no verdict; then nothing is clean.
    """

    violations: Mapping[str, Sequence[str]]
    totals: Mapping[str, int]
    problem: str | None = None

    @property
    def is_clean(self) -> bool:
        """Whether it was judged, and nothing was found."""
        return not self.violations and self.problem is None


def judged(histories: Iterable[Path], *, evidence: Iterable[Path] = (), windows: Iterable[tuple[int, int]] = ()) -> MessagesVerdict:
    """Have finished histories judged; `windows` are the times, in ns of the clients' clock, in which a death excuses losses."""
    words = [sys.executable, str(JUDGE), *map(str, histories), "--json"]
    words += [word for window in windows for word in ("--excused", *map(str, window))]
    if paths := [str(path) for path in evidence]:
        words += ["--evidence", *paths]
    ended = subprocess.run(words, capture_output=True, check=False, timeout=_JUDGE_S)
    if not ended.stdout:
        return MessagesVerdict(violations={}, totals={}, problem=ended.stderr.decode(errors="replace"))
    document = orjson.loads(ended.stdout)
    if document["verdict"] == "unusable":
        return MessagesVerdict(violations={}, totals={}, problem=document["reason"])
    return MessagesVerdict(violations={rule: found["first"] for rule, found in document["violations"].items()}, totals=document["totals"])
