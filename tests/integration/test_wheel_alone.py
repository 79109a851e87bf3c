"""The wheel as users install it: without extras, with the newest versions of its dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.code_blocks import blocks
from tests.docs.reader import reader
from tests.house.house_rules import ROOT
from tests.pulsar.programs import is_required

UV = (sys.executable, "-m", "uv")

pytestmark = pytest.mark.integration


def done(*command: str, folder: Path) -> str:
    """Return the output of a command that must succeed."""
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert 0 == run.returncode, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` folder of an environment with nothing but the wheel."""
    folder = tmp_path_factory.mktemp("alone")
    done(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(folder),
        folder=ROOT,
    )
    (wheel,) = folder.glob("*.whl")
    done(*UV, "venv", "--quiet", "--python", sys.executable, "env", folder=folder)
    python = str(folder / "env/bin/python")
    done(
        *UV,
        "pip",
        "install",
        "--quiet",
        "--resolution",
        "highest",
        "--python",
        python,
        str(wheel),
        folder=folder,
    )
    return folder / "env/bin"


@pytest.fixture(scope="module")
def with_fastapi(installed: Path) -> Path:
    """Return the same with what the pages about web programs name."""
    words = ("pip", "install", "--quiet", "--python", str(installed / "python"))
    done(*UV, *words, "fastapi", "httpx", "pytest>=8", "uvicorn", folder=installed)
    return installed


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/first-service.md"])
def test_a_first_service_runs(with_fastapi: Path, tmp_path: Path, page: str) -> None:
    """A reader who types what the page says gets what it says. The counts of the tutorial outlive
    the process that had them, and its test passes.
    """
    if shutil.which("curl") is None:
        (pytest.fail if is_required() else pytest.skip)("curl is not installed")
    expected = list[str]()
    with reader(tmp_path, with_fastapi) as following:
        for block in blocks(ROOT / page):
            if page == "README.md" and "uvicorn" not in block.text:
                continue
            if '"visits":3' in block.text:
                following.interrupt_first()
            following.follow(block)
            expected += [line for line in block.text.splitlines() if line.startswith('{"')]
        assert expected == [answer for answer in following.answers if answer.startswith("{")]
    assert expected


def test_the_examples_pass_their_tests(with_fastapi: Path, tmp_path: Path) -> None:
    """As a user has them, who copies them."""
    for path in (ROOT / "tests/examples").glob("test_*.py"):
        shutil.copy(path, tmp_path)
    words = ("-m", "pytest", "-q", "-p", "equipoise.pytest")
    report = done(str(with_fastapi / "python"), *words, folder=tmp_path)
    assert " passed" in report


@pytest.mark.parametrize("module", ["confluent_kafka", "google.protobuf"])
def test_no_extra_is_installed(installed: Path, tmp_path: Path, module: str) -> None:
    """Otherwise this module shows nothing new."""
    code = (
        f"import sys\ntry:\n import {module}\nexcept ModuleNotFoundError:\n"
        " sys.exit(0)\nsys.exit(1)"
    )
    assert "" == done(str(installed / "python"), "-c", code, folder=tmp_path)


@pytest.mark.parametrize(
    "line", [["--help"], ["namespaces", "create", "--help"], ["plan", "--help"], ["--version"]]
)
def test_the_command_line_runs_on_the_newest_libraries(
    installed: Path, tmp_path: Path, line: Sequence[str]
) -> None:
    """A new version breaks the help first."""
    assert done(str(installed / "equipoise"), *line, folder=tmp_path)


def test_a_broker_runs_without_any_extra(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        """
import asyncio
from equipoise import Equipoise, Service

class Quiet(Service):
    async def open(self, ownership, handover): ...
    async def close(self, bundle, moved_to, deadline): ...

async def main():
    async with Equipoise("sqlite:channel.db", {"*": Quiet()}, cluster="wheel") as worker:
        await worker.create_namespace("acme/shop", bundles=2)
        await worker.route("acme/shop", "apples", timeout_ms=20_000)

asyncio.run(main())
print("served")
""",
        encoding="utf-8",
    )
    assert "served\n" == done(str(installed / "python"), "program.py", folder=tmp_path)
    output = done(
        str(installed / "equipoise"),
        "channel",
        "verify",
        "--log",
        "sqlite:channel.db",
        folder=tmp_path,
    )
    assert "in order" in output
