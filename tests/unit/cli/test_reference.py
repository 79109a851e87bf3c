"""The page on the command line names every command with its options, and nothing else."""

from __future__ import annotations

import re

from equipoise.brokers.cli.main import GROUPS, load
from tests.docs.reference_pages import COMMON
from tests.house.house_rules import ROOT
from tests.unit.cli.command_lines import tree

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def test_the_page_names_every_command_and_option() -> None:
    documented = re.findall(r"^\| `equipoise ([^`]+)` \|", PAGE, re.MULTILINE)
    assert sorted(name for name, _ in tree()) == sorted(
        " ".join(re.findall(r"(?<!\[)\b[a-z-]+\b", usage)) for usage in documented
    )
    assert COMMON - {"--help"} | {"--wait"} == set(
        re.findall(r"^\| `(--[\w-]+)", PAGE, re.MULTILINE)
    )


def test_the_help_of_the_program_repeats_that_of_its_groups() -> None:
    assert {name: text for name, (_, text) in GROUPS.items()} == {
        name: (load(name).help or "").split("\n")[0] for name in GROUPS
    }
