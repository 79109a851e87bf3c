"""The page on the command line names every command with its options, and nothing else.

May live here: what keeps docs/reference/cli.md in step with the program.
"""

from __future__ import annotations

import re

from equipoise.brokers.cli.main import GROUPS, load
from tests.house_rules import ROOT
from tests.unit.cli.command_lines import tree

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
COMMON = {"--log", "--kafka-config", "--kafka-config-file", "--json", "--timeout", "--as", "--help"}


def documented() -> dict[str, set[str]]:
    """The commands of the page's first table, with the options in their rows."""
    rows = re.findall(r"^\| `equipoise ([^`]+)` \|([^|]*)\|", PAGE, re.MULTILINE)
    return {" ".join(re.findall(r"(?<!\[)\b[a-z-]+\b", usage)): set(re.findall(r"`(--[\w-]+)`", options)) for usage, options in rows}


def test_the_page_names_every_command_and_option() -> None:
    """A command or an option that is new, gone or renamed shows here."""
    known = {
        name: {
            parameter.opts[0]
            for parameter in command.params
            if parameter.opts[0].startswith("-") and not getattr(parameter, "hidden", False)
        }
        for name, command in tree()
    }
    assert {name: options - COMMON for name, options in known.items()} == {name: options - COMMON for name, options in documented().items()}
    assert COMMON - {"--help"} | {"--wait"} == set(re.findall(r"^\| `(--[\w-]+)", PAGE, re.MULTILINE))


def test_help_of_the_program_is_that_of_its_groups() -> None:
    """What `equipoise --help` says of a group without importing it is what the group says of itself."""
    assert {name: text for name, (_, text) in GROUPS.items()} == {name: (load(name).help or "").split("\n")[0] for name in GROUPS}
