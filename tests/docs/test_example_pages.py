"""Pages of the documentation show files as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.example_pages import FOLDER, filled, shown
from tests.house.house_rules import ROOT

PAGES = [
    page
    for page in (ROOT / "README.md", *sorted(FOLDER.rglob("*.md")))
    if shown(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_files_as_they_are(page: Path) -> None:
    """Each file that a page shows stands in it as it stands in the tree; `python -m
    tests.docs.example_pages` mends it.
    """
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text


def test_every_example_is_shown_or_named() -> None:
    """A page shows an example as a whole, or names its module to those who have it installed."""
    texts = [page.read_text(encoding="utf-8") for page in sorted(FOLDER.rglob("*.md"))]
    examples = [
        path.relative_to(ROOT).with_suffix("").as_posix()
        for folder in ("equipoise/examples", "tests/examples")
        for path in (ROOT / folder).glob("*.py")
        if path.name != "__init__.py"
    ]
    assert [] == [
        each
        for each in examples
        if not any(f"file: {each}.py" in text or each.replace("/", ".") in text for text in texts)
        and not any(f"`{each}.py`" in text for text in texts)
    ]


@pytest.mark.parametrize(
    ("name", "lines_max"), [("visits.py", 15), ("shadows.py", 40), ("counter.py", 120)]
)
def test_an_example_is_short_enough_to_be_read_at_a_sitting(name: str, lines_max: int) -> None:
    text = (ROOT / "equipoise" / "examples" / name).read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= lines_max


def test_a_page_that_is_behind_is_found() -> None:
    """A page that shows something else than the file says is filled with what the file says, and
    only there.
    """
    page = (
        "before\n<!-- file: equipoise/examples/__init__.py"
        " -->\n```python\nold\n```\nbetween\n```python\nmine\n```\n"
    )
    text = (ROOT / "equipoise/examples/__init__.py").read_text(encoding="utf-8")
    assert page.replace("old\n", text) == filled(page)
