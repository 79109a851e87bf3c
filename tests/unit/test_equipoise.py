"""The face: what it names, and that it finds out strangers who bear the names of its own packages.

May live here: `equipoise` itself. What it names is tested where it lives.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from equipoise import errors
from equipoise.neighbours import NAMES, ForeignPackage, check_neighbours

ROOT = Path(__file__).resolve().parent.parent.parent


def imported(folder: Path, *, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """What comes of importing equipoise in a program whose own folder is `folder`."""
    program = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; {before}; import equipoise"
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)


def test_everything_that_users_need_has_a_name() -> None:
    """The ports, the worker, the client and the cluster for tests are there, and everything that is named says what it is."""
    promised = {"Service", "Ownership", "Bundle", "Peer", "BundleLoad", "Worker", "Client", "Cluster"}
    assert promised <= set(equipoise.__all__)
    assert [] == [name for name in equipoise.__all__ if not getattr(equipoise, name).__doc__]
    assert [] == [name for name in errors.__all__ if not issubclass(getattr(errors, name), errors.EquipoiseError)]


@pytest.mark.parametrize(("module", "expected"), [("__init__", ["check_neighbours()"]), ("errors", [])])
def test_the_face_has_no_logic(module: str, expected: list[str]) -> None:
    """Its modules import and name, and do nothing else, but for the check of its neighbours."""
    tree = ast.parse((ROOT / "equipoise" / f"{module}.py").read_text(encoding="utf-8"))
    docstring, *rest = (ast.unparse(node) for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom | ast.Assign))
    assert expected == rest, docstring


def test_examples_import_as_users_do() -> None:
    """An example imports nothing of the product but equipoise."""
    for path in sorted((ROOT / "equipoise" / "examples").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        assert set() == found & {"brokers", "channel", "shedder", "compaction"}, path


def test_our_own_packages_are_in_order() -> None:
    """In this very tree nothing is hidden by a stranger."""
    check_neighbours()


@pytest.mark.parametrize("name", ["brokers", "channel", "compaction", "shedder"])
@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_a_stranger_on_the_path_is_named(tmp_path: Path, name: str, form: str) -> None:
    """Where a program's own folder has a module or package of such a name, the error says where, and what to do."""
    stranger = tmp_path / form.format(name)
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_text("mine = True\n")
    outcome = imported(tmp_path)
    assert 1 == outcome.returncode
    last = outcome.stderr.strip().splitlines()[-1]
    assert f"ForeignPackage: equipoise needs its own package {name!r}" in last
    assert str(stranger) in last
    assert "rename that" in last


def test_a_stranger_that_was_imported_before_is_named(tmp_path: Path) -> None:
    """It does not help to import the stranger first."""
    (tmp_path / "channel.py").write_text("")
    outcome = imported(tmp_path, before="import channel")
    assert f"Python finds {tmp_path / 'channel.py'}" in outcome.stderr


def test_what_hides_nothing_may_be_there(tmp_path: Path) -> None:
    """A plain folder of such a name does not come before a package, and a name that we do not ship is anybody's."""
    (tmp_path / "channel").mkdir()
    for name in NAMES:
        if not (ROOT / name / "__init__.py").is_file():
            (tmp_path / f"{name}.py").write_text("")
    outcome = imported(tmp_path)
    assert 0 == outcome.returncode, outcome.stderr


def test_a_package_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    """Where ours lies in a folder that is not on the path at all, the error says so, too."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    with pytest.raises(ForeignPackage, match=str(tmp_path)) as caught:
        check_neighbours(tmp_path)
    assert ("brokers", str(tmp_path)) == (caught.value.name, caught.value.expected)
