"""Read and compare transcripts: files of questions, each with its whole answer.

A line that begins with `> ` is a question, the lines after it that are indented by four blanks are
the answer without its empty lines, all else is prose. Where `EQUIPOISE_TEST_REWRITE` is set, a test
writes what is answered now into its file, and the difference is reviewed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_QUESTION: Final = "> "
_ANSWER: Final = "    "


def paths(folder: Path) -> list[Path]:
    """Return the transcripts of a folder."""
    return sorted(folder.glob("*.txt"))


def questions(path: Path) -> list[str]:
    """Return the questions of a transcript."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(_QUESTION) for line in lines if line.startswith(_QUESTION)]


def compare(path: Path, answers: Sequence[str]) -> None:
    """Compare a transcript with the answers to its questions."""
    told = path.read_text(encoding="utf-8")
    text = "".join(f"{line}\n" for line in _with_answers(told, iter(answers)))
    if "EQUIPOISE_TEST_REWRITE" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert told == text


def _with_answers(told: str, answers: Iterator[str]) -> Iterator[str]:
    for line in told.splitlines():
        if not line.startswith(_ANSWER):
            yield line
        if line.startswith(_QUESTION):
            lines = next(answers).splitlines()
            yield from (f"{_ANSWER}{each}".rstrip() for each in lines if each.strip())
