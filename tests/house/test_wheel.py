"""The wheel installs one package and one command, with everything that they read."""

from __future__ import annotations

import configparser
import email.parser
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.house.house_rules import LINKED, ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the packages of this tree, built without a network by the backend that
    pyproject.toml names.
    """
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.Path:
    """The wheel."""
    (path,) = built.glob("*.whl")
    return zipfile.Path(path)


def dist_info(wheel: zipfile.Path) -> zipfile.Path:
    """The folder of the wheel that describes it."""
    (found,) = (entry for entry in wheel.iterdir() if entry.name.endswith(".dist-info"))
    return found


def test_installs_one_name(wheel: zipfile.Path) -> None:
    """The wheel puts no other name onto a user's import path than `equipoise`."""
    installed = {entry.name for entry in wheel.iterdir()}
    assert {"equipoise", dist_info(wheel).name} == installed


def test_ships_its_types(wheel: zipfile.Path) -> None:
    """The package carries the mark by which type checkers believe its annotations."""
    assert (wheel / "equipoise" / "py.typed").is_file()


def test_ships_every_module(wheel: zipfile.Path) -> None:
    """The wheel holds every module of the product once, those behind links too."""
    with zipfile.ZipFile(str(wheel.root.filename)) as archive:
        shipped = sorted(name for name in archive.namelist() if name.endswith(".py"))
    own = [path.relative_to(ROOT).as_posix() for path in (ROOT / "equipoise").rglob("*.py")]
    linked = [
        f"equipoise/{path.relative_to(ROOT).as_posix()}"
        for folder in LINKED
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert sorted({*own, *linked}) == shipped


def test_the_source_has_all_that_the_wheel_has(wheel: zipfile.Path, built: Path) -> None:
    """Whoever builds from it gets the same wheel."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as source, zipfile.ZipFile(str(wheel.root.filename)) as archive:
        sources = {name.partition("/")[2] for name in source.getnames()}
        installed = {name for name in archive.namelist() if name.startswith("equipoise/")}
    assert set() == installed - sources
    assert {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"} <= sources


@pytest.mark.parametrize("data", ["connector-jars.json", "log4j2.properties"])
def test_ships_what_the_spark_jobs_read(wheel: zipfile.Path, data: str) -> None:
    """What a job reads beside its modules is in the wheel, too."""
    expected = (ROOT / "spark_jobs/streams" / data).read_bytes()
    assert expected == (wheel / "equipoise" / "spark_jobs" / "streams" / data).read_bytes()


def test_has_one_console_script(wheel: zipfile.Path) -> None:
    """The wheel installs one command, and it is named like the project."""
    entry_points = configparser.ConfigParser()
    entry_points.read_string((dist_info(wheel) / "entry_points.txt").read_text(encoding="utf-8"))
    assert {"equipoise": "equipoise.brokers.cli.__main__:main"} == dict(
        entry_points["console_scripts"]
    )


def test_asks_for_what_the_decision_records_name(wheel: zipfile.Path) -> None:
    """Each package that the wheel asks for has its line in the record of dependencies, and each
    line its package.
    """
    metadata = email.parser.Parser().parsestr(
        (dist_info(wheel) / "METADATA").read_text(encoding="utf-8")
    )
    asked = {
        re.split(r"[<>=!~; \[]", requirement, maxsplit=1)[0]
        for requirement in metadata.get_all("Requires-Dist", [])
    }
    record = (ROOT / "docs/adr/0001-dependencies.md").read_text(encoding="utf-8")
    assert asked == {line.split("`")[1] for line in record.splitlines() if line.startswith("| `")}


def test_version_is_the_one_of_the_project(wheel: zipfile.Path) -> None:
    """The wheel bears the version that pyproject.toml says, so that a release cannot be
    misnamed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"equipoise-{project['version']}.dist-info" == dist_info(wheel).name
