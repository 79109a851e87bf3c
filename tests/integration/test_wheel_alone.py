"""The wheel as users install it: without extras, with the newest versions of its dependencies.

`make release` runs these tests for the wheel of the release, on each Python of the machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.docs.code_blocks import Block, blocks
from tests.docs.reader import reader
from tests.house.house_rules import ROOT
from tests.pulsar.programs import is_required

UV: Final = (sys.executable, "-m", "uv")
# Of a release; else this Python, and a wheel of this tree.
PYTHON: Final = os.environ.get("EQUIPOISE_TEST_PYTHON", sys.executable)
WHEEL: Final = os.environ.get("EQUIPOISE_TEST_WHEEL")

USES_OF_EXTRAS: Final = (
    ("archive", "equipoise archive --log sqlite:nowhere.db"),
    ("archive", "equipoise audit --log sqlite:nowhere.db"),
    ("auth", "equipoise tokens create-secret-key --out key"),
    ("kafka", "equipoise brokers list --log kafka://127.0.0.1:1/channel --kafka-config bad=1"),
    ("lab", "equipoise lab run steady --for 5m"),
    ("postgres", "python -c 'import equipoise; equipoise.PostgresStore(\"postgresql://a@b/c\")'"),
    ("pulsar", "equipoise broker --log sqlite:channel.db --data data --print-config"),
    ("pulsar-cluster", "equipoise pulsar status --source pulsar://127.0.0.1:1"),
    ("redis", "python -c 'import equipoise; equipoise.RedisStore(\"redis://a\")'"),
    ("report", "equipoise report --archive nowhere"),
    ("spark", "equipoise spark audit --log sqlite:nowhere.db"),
    ("spark", "equipoise spark lab nowhere.csv --output nowhere"),
    ("spark", "equipoise spark verify --archive nowhere"),
)
"""Uses of each extra, which work or fail at once where the extra is installed. `otel` has none: a
broker traces if the program sets OpenTelemetry up, which brings the package.
"""

pytestmark = pytest.mark.integration


def done(*command: str, folder: Path) -> str:
    """Return the output of a command that must succeed."""
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert 0 == run.returncode, run.stdout + run.stderr
    return run.stdout


def errors_of(line: str, programs: Path, folder: Path) -> str:
    """Return what a line of a shell prints as errors, with what is installed in `programs`."""
    path = f"{programs}:{os.environ['PATH']}"
    run = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.stderr


def environment_of(wheel: str, folder: Path, *options: str) -> Path:
    """Make an environment with nothing but a wheel, or some extras of it, and return its `bin`."""
    done(*UV, "venv", "--quiet", "--python", PYTHON, "env", folder=folder)
    words = ("pip", "install", "--quiet", "--resolution", "highest", "--python", "env/bin/python")
    done(*UV, *words, *options, wheel, folder=folder)
    return folder / "env/bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the wheel."""
    if WHEEL:
        return WHEEL
    folder = tmp_path_factory.mktemp("wheel")
    words = ("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    done(sys.executable, *words, folder=ROOT)
    (built,) = folder.glob("*.whl")
    return str(built)


@pytest.fixture(scope="module")
def installed(wheel: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` folder of an environment with nothing but the wheel. No package of it was
    built, so nobody needs a compiler.
    """
    return environment_of(wheel, tmp_path_factory.mktemp("alone"), "--only-binary", ":all:")


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


@pytest.mark.parametrize(("extra", "line"), USES_OF_EXTRAS)
def test_one_sentence_names_the_extra_that_is_missing(
    installed: Path, tmp_path: Path, extra: str, line: str
) -> None:
    errors = errors_of(line, installed, tmp_path).splitlines()
    assert f"needs the extra `{extra}`: pip install 'equipoise[{extra}]'" in errors[-1]
    assert line.startswith("python ") or 1 == len(errors)


@pytest.mark.soak
@pytest.mark.parametrize("extra", [*dict(USES_OF_EXTRAS), "otel"])
def test_an_extra_alone_is_enough(wheel: str, tmp_path: Path, extra: str) -> None:
    """Pairs need no test: uv.lock has versions that satisfy all extras at once."""
    # Spark comes as source, and needs no compiler.
    options = () if extra == "spark" else ("--only-binary", ":all:")
    programs = environment_of(f"{wheel}[{extra}]", tmp_path, *options)
    done(*UV, "pip", "check", "--quiet", "--python", str(programs / "python"), folder=tmp_path)
    lines = "; ".join(line for needed, line in USES_OF_EXTRAS if needed == extra)
    errors = errors_of(lines, programs, tmp_path)
    shutil.rmtree(tmp_path / "env")
    assert "needs the extra" not in errors
    assert "Traceback" not in errors


def test_an_older_python_is_refused(wheel: str, tmp_path: Path) -> None:
    words = "pip install --dry-run --python-version 3.10 --python"
    line = [*UV, *words.split(), PYTHON, wheel]
    run = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "depends on Python>=3.11" in " ".join(run.stderr.split())


def test_type_checkers_accept_each_public_name(with_fastapi: Path, tmp_path: Path) -> None:
    """In a program beside the wheel, at the strictest."""
    shutil.copy(ROOT / "tests/unit/examples/public_names.py", tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    python = str(with_fastapi / "python")
    words = ("--strict", "--config-file=", "--python-executable", python, "public_names.py")
    assert "Success" in done(sys.executable, "-m", "mypy", *words, folder=tmp_path)
    program = str(Path(sys.executable).with_name("basedpyright"))
    assert "0 errors" in done(program, "--pythonpath", python, folder=tmp_path)


def test_a_cluster_comes_up(installed: Path, tmp_path: Path) -> None:
    lines = (
        "$ equipoise up --service counter --data cluster\n"
        "$ equipoise brokers list --log sqlite:cluster/channel.db --json\n"
    )
    block = Block(page=ROOT, line=0, language="console", text=lines, file=None, save=None)
    with reader(tmp_path, installed) as following:
        following.follow(block)
        assert 3 == len(json.loads(following.answers[-1]))
    log = (tmp_path / "cluster/broker-0/broker.log").read_text(encoding="utf-8")
    assert ["asyncio"] == re.findall('"loop": ?"([a-z]+)"', log)


@pytest.mark.parametrize(
    "line", [["--help"], ["namespaces", "create", "--help"], ["plan", "--help"], ["--version"]]
)
def test_the_command_line_runs_on_the_newest_libraries(
    installed: Path, tmp_path: Path, line: Sequence[str]
) -> None:
    """A new version breaks the help first."""
    assert done(str(installed / "equipoise"), *line, folder=tmp_path)


def test_a_broker_runs_without_any_extra(installed: Path, tmp_path: Path) -> None:
    """Beside modules of the user that have names of our folders."""
    for name in ("brokers", "channel"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError(__name__)\n", encoding="utf-8")
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
