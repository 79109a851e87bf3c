"""The public API: its names, and that other names stay free for users."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from equipoise import errors

ROOT = Path(__file__).resolve().parents[3]


USE = "import channel; assert channel.mine; from equipoise import Client, Cluster, Worker"


def imported(folder: Path) -> subprocess.CompletedProcess[str]:
    """Import equipoise in a program whose own folder is `folder`."""
    program = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; {USE}"
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)


def test_every_public_name_is_documented() -> None:
    """Every public error descends from `EquipoiseError`."""
    assert [] == [name for name in equipoise.__all__ if not getattr(equipoise, name).__doc__]
    assert [] == [name for name in errors.__all__ if not issubclass(getattr(errors, name), errors.EquipoiseError)]


def test_every_public_name_is_declared_for_type_checkers() -> None:
    """They are imported at first use."""
    tree = ast.parse((ROOT / "equipoise" / "__init__.py").read_text(encoding="utf-8"))
    declared = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(equipoise.__all__) <= declared
    assert set(equipoise.__all__) == set(dir(equipoise))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sharder'"):
        equipoise.Sharder  # noqa: B018 - the access is the test


def test_examples_import_public_names_only() -> None:
    for path in sorted((ROOT / "equipoise" / "examples").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        assert [] == [
            name for name in found if name.startswith("equipoise.") and not name.startswith(("equipoise.errors", "equipoise.examples"))
        ], path


@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_a_program_may_have_packages_of_our_names(tmp_path: Path, form: str) -> None:
    """Such as its own `channel`, `brokers` and `tests`."""
    for name in ("brokers", "channel", "shedder", "compaction", "tests"):
        own = tmp_path / form.format(name)
        own.parent.mkdir(exist_ok=True)
        own.write_text("mine = True\n")
    outcome = imported(tmp_path)
    assert (0, "") == (outcome.returncode, outcome.stderr)
