"""Run every command of the real pulsar-admin, and compare what it does with what is written
down.
"""

from __future__ import annotations

import asyncio
import difflib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.pulsar.admin_script import Group, Stage, left_out, read_groups, run_script, stage
from tests.pulsar.programs import Language, admin_command, require

# Building the program for the first time takes minutes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

TOOL_S = 60.0
AGAIN = "write it anew with `python -m tests.pulsar.admin_script`, and read the difference"


def run_alone(command: Sequence[str]) -> tuple[int, str, str]:
    """Run a command as a process. Return its exit code and its output."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_S)
    return ended.returncode, ended.stdout, ended.stderr


def text_of(group: Group) -> Sequence[str]:
    """Return what the lines of a group did, as lines of text."""
    return [
        text
        for line in group.lines
        for text in (f"$ {line.run}", f"{line.code} ({line.status})", *line.prints.splitlines())
    ]


def differences(expected: Sequence[Group], found: Sequence[Group]) -> Iterator[str]:
    """Yield what differs, group by group."""
    for before, after in zip(expected, found, strict=True):
        yield from difflib.unified_diff(
            text_of(before), text_of(after), before.name, before.name, lineterm="", n=4
        )


async def check_alone(on: Stage, folder: Path) -> None:
    """Check that the tool in a process of its own does the same: a success, and a refusal."""
    lines = (("namespaces", "list", "acme"), ("namespaces", "bundles", "acme/nothing"))
    settings = folder / "client.conf"
    settings.write_text(f"webServiceUrl=http://{on.names['BROKER-1']}\n")
    shared = [await on.tool.run(words) for words in lines]
    program = [
        *admin_command()[:-1],
        "org.apache.pulsar.admin.cli.PulsarAdminTool",
        str(settings),
    ]
    alone = [await asyncio.to_thread(run_alone, [*program, *words]) for words in lines]
    assert [(each.code, each.out, each.err) for each in shared] == alone


async def test_every_command_does_what_is_written_down(tmp_path: Path) -> None:
    require(Language.JAVA)
    groups = read_groups()
    async with stage(tmp_path) as on:
        assert list(left_out(groups, on.tool.commands)) == []
        await check_alone(on, tmp_path)
        found = await run_script(on, groups)
    if found_differences := list(differences(groups, found)):
        pytest.fail("\n".join((AGAIN, *found_differences)))
