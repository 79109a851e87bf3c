"""Write the files that pages of the documentation show into these pages: `python -m
tests.docs.example_pages`.

A place is a comment that names a file below the project's root, and the fenced block after it:

    <!-- file: equipoise/examples/counter.py -->
    ```python
    ...
    ```
"""

from __future__ import annotations

import re
from typing import Final

from tests.house.house_rules import ROOT

FOLDER: Final = ROOT / "docs"
_PLACE: Final = re.compile(
    r"(<!-- file: (?P<path>\S+) -->\n```\w+\n).*?(^```$)", re.DOTALL | re.MULTILINE
)


def shown(page: str) -> list[str]:
    """Return the paths of the files that a page shows, in order."""
    return [place["path"] for place in _PLACE.finditer(page)]


def filled(page: str) -> str:
    """Return a page with the present text of every file that it shows."""
    return _PLACE.sub(
        lambda place: f"{place[1]}{(ROOT / place['path']).read_text(encoding='utf-8')}{place[3]}",
        page,
    )


if __name__ == "__main__":
    for path in (ROOT / "README.md", *sorted(FOLDER.rglob("*.md"))):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
