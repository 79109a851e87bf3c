"""What type checkers say about programs of users."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.house_rules import ROOT

PROGRAM = """
from equipoise import Equipoise

Equipoise("memory:a", cluster="a", leese_ms=3_000)
Equipoise("memory:a", cluster="a", lease_ms="long")
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("checker", "problems"),
    [
        (("mypy", "--strict"), ('Unexpected keyword argument "leese_ms"', 'Argument "lease_ms"')),
        (("basedpyright",), ('No parameter named "leese_ms"', 'to parameter "lease_ms"')),
    ],
)
def test_a_misspelt_and_an_ill_typed_setting_are_refused(
    checker: tuple[str, ...], problems: tuple[str, str], tmp_path: Path
) -> None:
    """The examples are checked in both as a part of the tree."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", *checker, str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert 1 == done.returncode, done.stdout + done.stderr
    for problem in problems:
        assert problem in done.stdout
