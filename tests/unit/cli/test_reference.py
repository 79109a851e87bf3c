"""The page on the command line, and the help of the program."""

from __future__ import annotations

import re

from equipoise.brokers.cli.main import GROUPS, load
from tests.docs.reference_pages import COMMON
from tests.house.house_rules import ROOT


def test_the_page_describes_the_common_options() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert COMMON - {"--help"} | {"--wait"} == set(
        re.findall(r"^\| `(--[\w-]+)", page, re.MULTILINE)
    )


def test_the_help_of_the_program_repeats_that_of_its_groups() -> None:
    assert {name: text for name, (_, text) in GROUPS.items()} == {
        name: (load(name).help or "").split("\n")[0] for name in GROUPS
    }
