"""Every code block of the documentation works as it stands."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import AsyncMock, MagicMock, create_autospec

import pytest

import equipoise
from tests.docs.code_blocks import BLOCKS, Block
from tests.house.house_rules import ROOT
from tests.unit.cli.command_lines import tree
from tests.visits import Visits

if TYPE_CHECKING:
    from typer._click import Command

LANGUAGES: Final = {
    "console",
    "ini",
    "json",
    "mermaid",
    "properties",
    "python",
    "sql",
    "text",
    "toml",
}
TARGETS: Final = frozenset(
    re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
CONSOLE: Final = [block for block in BLOCKS if block.language == "console"]
# The files that a block shows have tests of their own; what a tutorial has its reader save runs in
# tests/integration/test_tutorials.py.
PYTHON: Final = [
    block for block in BLOCKS if block.language == "python" and not block.file and not block.save
]


def embedded(_: Path) -> Mapping[str, object]:
    """Return a service, the class that runs it, where the log has its namespace, and a stand-in for
    a client of programs.
    """
    services = {"*": Visits()}
    with equipoise.Equipoise("sqlite:visits.db", services, cluster="visits").in_thread() as member:
        member.create_namespace("web/pages")
    client = create_autospec(equipoise.Client)
    client.return_value.__aenter__.return_value = client.return_value
    client.return_value.request.return_value = MagicMock()
    names = {name: getattr(equipoise, name) for name in ("Equipoise", "Shard")}
    return {**names, "Client": client, "service": services}


def tutorial(_: Path) -> Mapping[str, object]:
    """Return what the program of the page has before."""
    return {"Keyed": equipoise.Keyed, "Page": dict}


def partitions() -> Mapping[str, object]:
    """Return a worker and a service that do nothing."""
    worker = MagicMock()
    worker.return_value.__aenter__.return_value = AsyncMock()
    return {
        "equipoise.Equipoise": worker,
        "equipoise.examples.kafka_partitions.Partitions": MagicMock(),
    }


def sessions() -> Mapping[str, object]:
    """Return a client that connects to nothing, and a pause that takes no time."""
    client = MagicMock()
    client.return_value.run = AsyncMock()
    return {"equipoise.examples.session_client.SessionClient": client, "asyncio.sleep": AsyncMock()}


# What the text around a block has introduced, by page.
INTRODUCED: Final[Mapping[str, Callable[[Path], Mapping[str, object]]]] = {
    "docs/explanation/ownership.md": lambda _: {"served": MagicMock(), "store": AsyncMock()},
    "docs/how-to/embed-a-broker.md": embedded,
    "docs/tutorial/first-service.md": tutorial,
}

# What stands in for imports of a page that need a cluster, by page and by the full name.
REPLACED: Final[Mapping[str, Callable[[], Mapping[str, object]]]] = {
    "docs/how-to/own-kafka-partitions.md": partitions,
    "docs/how-to/serve-websockets.md": sessions,
}


def commands() -> Mapping[str, Command]:
    """Return every command of the program by its full name."""
    return dict(tree())


def arguments_of(command: str) -> list[str]:
    """Return the words of a command line without the comment after it."""
    return shlex.split(re.sub(r"\$\([^)]*\)", "substituted", command), comments=True)


def problem_of(words: list[str]) -> str | None:
    """Return what the program would refuse of a command line of its own, or None."""
    known = commands()
    name = next(
        (" ".join(words[:length]) for length in (3, 2, 1) if " ".join(words[:length]) in known),
        None,
    )
    if name is None:
        return (
            None
            if words in (["--help"], ["--version"])
            else f"there is no command {' '.join(words[:2])!r}"
        )
    try:
        known[name].make_context(name, words[len(name.split()) :])
    except Exception as error:  # noqa: BLE001 - whatever the program says is the problem
        return str(error) or repr(error)
    return None


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_names_its_language(block: Block) -> None:
    """Each block names a language whose blocks are tested here, and its text is of that
    language.
    """
    assert block.language in LANGUAGES
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "ini":
        ConfigParser(strict=False, interpolation=None).read_string(
            block.text if block.text.startswith("[") else f"[Service]\n{block.text}"
        )
    elif block.language == "properties":
        assert all(re.fullmatch(r"[a-z.]+=.+", line) for line in block.text.splitlines())
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "python":
        compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.place)
def test_a_command_line_is_understood(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program has each command with these options and arguments; make has each target."""
    assert list(block.commands())
    monkeypatch.setenv("EQUIPOISE_LOG", "sqlite:channel.db")
    monkeypatch.setenv("EQUIPOISE_PULSAR", "pulsar.db")
    for command in block.commands():
        if command.startswith("equipoise "):
            assert (command, None) == (command, problem_of(arguments_of(command)[1:]))
        elif command.startswith("make "):
            assert arguments_of(command)[1] in TARGETS
        elif command.startswith("python -m equipoise"):
            assert find_spec(arguments_of(command)[2])


def test_a_wrong_command_line_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown command, an unknown option and a missing argument are problems."""
    monkeypatch.setenv("EQUIPOISE_LOG", "sqlite:channel.db")
    monkeypatch.setenv("EQUIPOISE_PULSAR", "pulsar.db")
    assert "no command" in str(problem_of(["bundles", "polish"]))
    assert "--colour" in str(problem_of(["brokers", "list", "--colour"]))
    assert "namespace" in str(problem_of(["namespaces", "create"]))
    assert problem_of(["namespaces", "create", "acme/orders", "--bundles", "16"]) is None


@pytest.mark.integration
@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_a_python_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code runs, with the names that the text around it has introduced."""
    monkeypatch.chdir(tmp_path)
    page = block.page.relative_to(ROOT).as_posix()
    introduce, replace = INTRODUCED.get(page), REPLACED.get(page)
    for name, stand_in in (replace() if replace else {}).items():
        monkeypatch.setattr(name, stand_in)
    names = {
        "__name__": "block",
        "print": lambda *_: None,
        **(introduce(tmp_path) if introduce else {}),
    }
    code = compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waits = eval(code, names)  # noqa: S307 - it is our own documentation
    if inspect.iscoroutine(waits):
        asyncio.run(waits)
