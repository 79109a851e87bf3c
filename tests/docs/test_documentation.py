"""The pages of the documentation hang together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.docs.code_blocks import PAGES
from tests.docs.public_api import calls
from tests.docs.reference_pages import parts_of_site
from tests.house.house_rules import ROOT

DOCS: Final = ROOT / "docs"
EACH_PAGE: Final = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(
        r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, and of the public names that the site shows."""
    text = prose(page).replace("[REFERENCE]", parts_of_site().get(page.name, ""))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    shown = re.findall(r"^::: (\S+)\.(\w+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    } | {
        f"{module}.{call.name}"
        for module, name in shown
        for call in calls()
        if call.name.partition(".")[0] == name
    }


def named_in(nav: object) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict | list):
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from named_in(part)


def test_the_navigation_has_every_page() -> None:
    """Each page below docs is in the navigation of the site, once."""
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(named_in(navigation)) == sorted(
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
    )


@EACH_PAGE
def test_a_link_leads_somewhere(page: Path) -> None:
    """Each link to a file of ours names one that exists, and a heading that it has. `make docs`
    checks the other anchors.
    """
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page))):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(there)
        ):
            dead.append(target)
    assert dead == []


@EACH_PAGE
def test_a_page_of_the_site_links_within_it(page: Path) -> None:
    """A page below docs links to no file outside docs, which the site does not have."""
    links = re.findall(r"\]\(([^)\s#]+)", prose(page)) if page.is_relative_to(DOCS) else []
    outside = [
        link
        for link in links
        if "://" not in link and not (page.parent / link).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


@EACH_PAGE
def test_a_list_or_table_is_one_on_the_site_too(page: Path) -> None:
    """Python's Markdown takes a list or a table for one only after an empty line, and a list within
    a list only four blanks further in.
    """
    is_in_list, before, wrong = False, "", []
    for line in prose(page).splitlines():
        item = re.match(r"( *)([*-]|\d+\.) ", line)
        is_late_row = line.startswith("|") and before and not before.startswith(("|", "<!--"))
        if is_late_row or (item and (len(item[1]) % 4 or not (is_in_list or not before))):
            wrong.append(line)
        # A paragraph of its own ends the list.
        is_in_list = bool(item) or (is_in_list and (bool(before) or not line))
        before = line.strip()
    assert wrong == []
