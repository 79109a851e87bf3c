"""Play story files, and rewrite what they expect.

A line that begins with `> ` is a command. The lines after it that are indented by four blanks are
its expected output. Everything else is prose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from tests.scenarios.language import perform
from tests.scenarios.stage import Stage

FOLDER = Path(__file__).resolve().parent

_COMMAND = "> "
_OUTPUT = "    "


@dataclass(frozen=True, kw_only=True)
class Story:
    """A story that was played: the text of its file with the actual output, and the stage at the
    end.
    """

    text: str
    stage: Stage


def paths() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


@cache
def played(path: Path) -> Story:
    """Play the story of a file."""
    return play(path.read_text(encoding="utf-8"))


def commands(text: str) -> list[str]:
    return [line.removeprefix(_COMMAND) for line in text.splitlines() if line.startswith(_COMMAND)]


def play(text: str) -> Story:
    stage = Stage()
    return Story(text=told(text, partial(perform, stage)), stage=stage)


def told(text: str, perform: Callable[[str], Iterable[str]]) -> str:
    """Return a story with what happens now: the lines that `perform` returns for each command."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(_OUTPUT):
            continue
        lines.append(line)
        if line.startswith(_COMMAND):
            lines += [f"{_OUTPUT}{happened}" for happened in perform(line.removeprefix(_COMMAND))]
    return "\n".join(lines) + "\n"
