"""Story files: how they are played, and how what they expect is written anew.

A line that begins with `> ` is a command; the lines after it that are indented by
four blanks are what must happen; everything else is prose.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.scenarios.language import perform
from tests.scenarios.stage import Stage

FOLDER = Path(__file__).resolve().parent

_COMMAND = "> "
_OUTPUT = "    "


@dataclass(frozen=True, kw_only=True)
class Story:
    """A story that was played: the text of its file with what happened, and the stage as it stands at the end."""

    text: str
    stage: Stage


def paths() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


@cache
def played(path: Path) -> Story:
    """The story of a file as it happens now."""
    return play(path.read_text(encoding="utf-8"))


def commands(text: str) -> list[str]:
    return [line.removeprefix(_COMMAND) for line in text.splitlines() if line.startswith(_COMMAND)]


def play(text: str) -> Story:
    stage = Stage()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(_OUTPUT):
            continue
        lines.append(line)
        if line.startswith(_COMMAND):
            lines += [f"{_OUTPUT}{happened}" for happened in perform(stage, line.removeprefix(_COMMAND))]
    return Story(text="\n".join(lines) + "\n", stage=stage)
