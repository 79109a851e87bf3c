"""Find the fenced blocks of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

from tests.house.house_rules import ROOT

PAGES: Final = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "compose/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
_BLOCK: Final = re.compile(
    r"(?:<!-- (?P<what>file|save): (?P<name>\S+) -->\n)?^ *```(?P<language>\S*)\n(?P<text>.*?)^"
    r" *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. `file` is the file that it shows, `save` the file that the reader is asked to
    save it as.
    """

    page: Path
    line: int
    language: str
    text: str
    file: str | None
    save: str | None

    @property
    def place(self) -> str:
        """Return the page and the line, to name the block by."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[str]:
        """Yield the commands of a block of the language console, each on one line, without their
        output.
        """
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield line[2:]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        name = match["name"]
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start("language")) + 1,
            language=match["language"],
            text=dedent(match["text"]),
            file=name if match["what"] == "file" else None,
            save=name if match["what"] == "save" else None,
        )


BLOCKS: Final = tuple(block for page in PAGES for block in blocks(page))
