"""The wheel as users install it: without extras, with the newest versions of its dependencies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

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
    uv = (sys.executable, "-m", "uv")
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
    done(*uv, "venv", "--quiet", "--python", sys.executable, "env", folder=folder)
    python = str(folder / "env/bin/python")
    done(
        *uv,
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


@pytest.mark.parametrize("module", ["aiokafka", "confluent_kafka", "faust", "google.protobuf"])
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


def test_a_missing_extra_is_named(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "equipoise"), "load-worker", "--log", "kafka://127.0.0.1:1/shop"]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert (True, True) == (run.returncode > 0, "equipoise[" in run.stderr)
