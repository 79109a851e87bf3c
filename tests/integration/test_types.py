"""What both type checkers find in a program of a user."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house.house_rules import ROOT

pytestmark = pytest.mark.integration

PROGRAM = """
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from equipoise import Equipoise, Keyed


@dataclass
class Page:
    visits: int = 0


pages = Keyed("web/pages", Page)


@pages.route("name")
async def visit(name: str, page: Page, much: int) -> int:
    return page.visits + much


answer: Coroutine[Any, Any, int] = visit("home", 3)
with_object = visit("home", Page(), 3)  # REFUSED
with_text = visit("home", "much")  # REFUSED


@pages.route("name")  # REFUSED
async def object_first(page: Page, name: str) -> int:
    return page.visits


Keyed("web/pages", Page, unsaved_ms="long")  # REFUSED
Equipoise("memory:a", pages, cluster="a", lease_ms=3)
Equipoise("memory:a", pages, cluster="a", leese_ms=3)  # REFUSED
Equipoise("memory:a", pages, cluster="a", lease_ms="long")  # REFUSED
Equipoise("memory:a", pages)  # REFUSED
"""


def by_mypy(path: Path) -> set[int]:
    """The lines that mypy --strict refuses."""
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line.split(":") for line in run.stdout.splitlines() if ": error:" in line]
    assert {path.name} == {Path(name).name for name, *_ in errors}, run.stdout + run.stderr
    return {int(line) for _, line, *_ in errors}


def by_pyright(path: Path) -> set[int]:
    """The lines that pyright refuses."""
    program = Path(sys.executable).with_name("basedpyright")
    settings = {"typeCheckingMode": "strict", "venvPath": str(ROOT), "venv": ".venv"}
    path.with_name("pyrightconfig.json").write_text(json.dumps(settings))
    run = subprocess.run(
        [program, "--outputjson", path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(run.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}


@pytest.mark.parametrize("refused_by", [by_mypy, by_pyright])
def test_type_checkers_refuse_mistakes_and_nothing_else(
    tmp_path: Path, refused_by: Callable[[Path], set[int]]
) -> None:
    path = tmp_path / "program_of_a_user.py"
    path.write_text(PROGRAM, encoding="utf-8")
    lines = enumerate(PROGRAM.splitlines(), start=1)
    assert {number for number, line in lines if "REFUSED" in line} == refused_by(path)
