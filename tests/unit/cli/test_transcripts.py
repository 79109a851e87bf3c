r"""Each transcript of the command line happens as its file says: what commands print on worlds of
`tests.unit.cli.worlds`, and how they end.

| question | meaning |
|---|---|
| `log NAME` | make a new log of this world, for the commands from here on |
| `file NAME TEXT` | write a file into `$FOLDER`; `\n` is a line end |
| `(ACTORS) COMMAND` | run a command while these of `worlds.ACTORS` play all brokers of the log |
| any other | run a command of `equipoise` |

Lines of standard error begin with `! `. Times have a word in their place.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests import transcripts
from tests.unit.cli.fabricated import run
from tests.unit.cli.worlds import ACTORS, WORLDS

_match_acting: Final = re.compile(r"\(([a-z ]+)\) (.*)").fullmatch
_DIFFERENT: Final = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?", "DATE TIME"),
    (r"^\d{4}-\d\d-\d\d$", "DATE"),
    (r"\d\d:\d\d:\d\d\.\d{3}", "TIME"),
    (r"\b\d{13}\b", "MILLISECONDS"),
    (r"just now|\b\d+ s ago", "SECONDS ago"),
    (r"may move in \d+ \w+", "may move in MINUTES"),
)


class Session:
    """Answers questions, one after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log: str | None = None

    def answer(self, question: str) -> str:
        """Do what a question asks, and return what it prints."""
        verb, _, rest = question.partition(" ")
        if verb == "log":
            place = self._folder / f"log-{len(list(self._folder.iterdir()))}"
            place.mkdir()
            self._log = WORLDS[rest](place)
            return ""
        if verb == "file":
            name, _, text = rest.partition(" ")
            (self._folder / name).write_text(text.replace(r"\n", "\n"), encoding="utf-8")
            return ""
        acting = _match_acting(question)
        if acting is None:
            return self._run(question)
        with ACTORS[acting[1]](self._log or ""):
            return self._run(acting[2])

    def _run(self, command: str) -> str:
        there = command.replace("$FOLDER", f"{self._folder}").replace("$LOG", f"{self._log}")
        words = shlex.split(there)
        result = run(*words, log=None if "--log" in words else self._log)
        lines = [
            *result.stdout.splitlines(),
            *(f"! {line}" for line in result.stderr.splitlines()),
            *([f"exit code {result.exit_code}"] if result.exit_code else []),
        ]
        text = (
            "\n".join(lines).replace(f"{self._log}", "$LOG").replace(f"{self._folder}", "$FOLDER")
        )
        for pattern, word in _DIFFERENT:
            text = re.sub(pattern, word, text, flags=re.MULTILINE)
        return text


@pytest.mark.parametrize(
    "path", transcripts.paths(Path(__file__).parent / "transcripts"), ids=lambda path: path.stem
)
def test_commands_print_what_a_transcript_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "erin")
    session = Session(tmp_path)
    transcripts.compare(
        path, [session.answer(question) for question in transcripts.questions(path)]
    )
