"""Build the packages of a release and check them: `make release`.

`dist` gets the packages, and `build` the bill of materials.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.house.house_rules import ROOT

DIST: Final = ROOT / "dist"
VERSION: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PYTHONS: Final = ("python3.11", "python3.12", "python3.13", "python3.14")
BUILD: Final = (sys.executable, "-m", "hatchling", "build", "--directory")
UV: Final = (sys.executable, "-m", "uv")
TOOL: Final = (*UV, "run", "--quiet", "--isolated", "--frozen", "--only-group", "release")
PYTEST: Final = (sys.executable, "-m", "pytest", "--quiet", "-m", "integration", "-n", "2")
ACTIONLINT: Final = ("go", "run", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12")

Bill = dict[str, Any]
"""A bill of materials in the form of CycloneDX."""


def run(*command: str, folder: Path = ROOT, variables: dict[str, str] | None = None) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run(command, cwd=folder, env=os.environ | (variables or {}), check=False)
    if done.returncode:
        raise SystemExit(f"release: this failed: {' '.join(command)}")


def read(*command: str) -> str:
    """Return the output of a command, which must succeed."""
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def step(what: str) -> None:
    """Print what follows."""
    print(f"== release: {what}", flush=True)


def check_commit() -> None:
    """Refuse a tree that differs from its commit, and a tag of another version."""
    if changes := read("git", "status", "--porcelain"):
        raise SystemExit(f"release: commit these changes or undo them first:\n{changes}")
    tags = [tag for tag in read("git", "tag", "--points-at").split() if tag.startswith("v")]
    if tags and f"v{VERSION}" not in tags:
        raise SystemExit(f"release: the tag is {tags[0]}, but pyproject.toml has {VERSION}")


def built() -> list[Path]:
    """Build the packages twice, in this tree and in a clone of it, and the wheel once more, from
    the source distribution. Refuse packages that differ.
    """
    dated = {"SOURCE_DATE_EPOCH": read("git", "log", "-1", "--format=%ct").strip()}
    shutil.rmtree(DIST, ignore_errors=True)
    run(*BUILD, str(DIST), variables=dated)
    wheel, source = sorted(DIST.iterdir(), key=lambda path: path.suffix, reverse=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        run("git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", "clone", folder=folder)
        shutil.unpack_archive(source, folder, filter="data")
        (unpacked,) = folder.glob("equipoise-*")
        again, from_source = folder / "again", folder / "from_source"
        run(*BUILD, str(again), folder=folder / "clone", variables=dated)
        run(*BUILD, str(from_source), "--target", "wheel", folder=unpacked, variables=dated)
        for path in (*again.iterdir(), *from_source.iterdir()):
            if path.read_bytes() != (DIST / path.name).read_bytes():
                raise SystemExit(f"release: {path.parent.name} made other bytes of {path.name}")
    return [wheel, source]


def found_at(python: str) -> str | None:
    """Return the path of a Python that runs here, by its name. pyenv has programs on the path that
    stand for others, and work for the chosen version only.
    """
    paths = (shutil.which(python), *Path.home().glob(f".pyenv/versions/*/bin/{python}"))
    return next(
        (
            str(path)
            for path in paths
            if path and not subprocess.call([path, "-c", "import venv"], stderr=subprocess.DEVNULL)
        ),
        None,
    )


def licence_of(package: str) -> str:
    """Return the licence that a package names, or `-` for one of other machines."""
    try:
        about = metadata(package)
    except PackageNotFoundError:
        return "-"
    named = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier", [])
        if line.startswith("License ::")
    ]
    (text,) = about.get_all("License", ["-"])
    (expression,) = about.get_all("License-Expression", [""])
    return expression or ", ".join(named) or text.splitlines()[0]


def materials(*extras: str) -> Bill:
    """Return the bill of materials, with licences, and without what differs from run to run."""
    words = ("export", "--quiet", "--frozen", "--no-default-groups", "--format", "cyclonedx1.5")
    bill: Bill = json.loads(read(*UV, *words, *extras))
    del bill["serialNumber"]
    bill["metadata"].pop("timestamp")
    for component in bill["components"]:
        component["licenses"] = [{"license": {"name": licence_of(component["name"])}}]
    return bill


def licences(bill: Bill) -> Iterator[tuple[str, str]]:
    """Yield each package of a bill, and its licence."""
    for component in bill["components"]:
        yield component["name"], component["licenses"][0]["license"]["name"]


def list_materials() -> None:
    """Write the bill of materials, and print licences. Refuse copyleft in what everybody gets."""
    core = dict(licences(materials()))
    bill = materials("--all-extras")
    (ROOT / "build").mkdir(exist_ok=True)
    path = ROOT / "build" / f"equipoise-{VERSION}.cdx.json"
    path.write_text(json.dumps(bill, indent=1) + "\n")
    for name, licence in sorted({*licences(bill)}):
        print(f"{name:24} {'' if name in core else 'extra':6} {licence}")
        if name in core and "GPL" in licence:  # The Lesser GPL is among them.
            raise SystemExit(f"release: {name}, which everybody gets, has the licence {licence}")


def main() -> None:
    """Build, check, and print the packages."""
    check_commit()
    step("the packages, twice, and the wheel from the source")
    packages = built()
    step("metadata and contents")
    names = [str(path) for path in packages]
    run(*TOOL, "twine", "check", "--strict", *names)
    run(*TOOL, "check-wheel-contents", names[0])
    # It misses an address of the authors, and of the project, which has none yet.
    run(*TOOL, "pyroma", "--min", "8", names[1])
    step("the bill of materials; one set of versions satisfies all extras at once")
    run(*UV, "lock", "--check", "--quiet")
    list_materials()
    step("the workflow of the forge")
    run(*ACTIONLINT, ".github/workflows/release.yml")
    step("an upgrade from the last release, and the way back")
    run(*PYTEST, "tests/integration/test_rolling_upgrade.py")
    for python in PYTHONS:
        found = found_at(python)
        step(f"the wheel alone on {python}" + ("" if found else ": not at hand, so not tested"))
        if found:
            run(
                *PYTEST,
                "tests/integration/test_wheel_alone.py",
                variables={"EQUIPOISE_TEST_PYTHON": found, "EQUIPOISE_TEST_WHEEL": names[0]},
            )
    for path in packages:
        print(
            f"{sha256(path.read_bytes()).hexdigest()}  {path.name}  {path.stat().st_size:,} bytes"
        )


if __name__ == "__main__":
    main()
