"""Write the parts of a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

WRITTEN_BY: Final = "<!-- Written by `python -m tests.docs.reference_pages`; do not edit. -->"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    columns = list(head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


def cell(text: str) -> str:
    """Return a text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def mermaid(lines: Iterable[str]) -> str:
    """Return a state diagram of lines `from --> to: label`. A label ends at a second colon, so it
    must not have one.
    """
    return "\n".join(("```mermaid", "stateDiagram-v2", *(f"    {line}" for line in lines), "```"))
