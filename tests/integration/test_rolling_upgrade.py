"""Programs of the last release go to this version and back, one by one, under calls."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest

from tests.house.house_rules import ROOT
from tests.integration.test_rolling_restart import Callers
from tests.load.fastapi_programs import programs

pytestmark = pytest.mark.integration


def git(*words: str) -> bytes:
    """Return the output of git; nothing if it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False).stdout


@pytest.fixture
def last_release(tmp_path: Path) -> str:
    """Return the Python of an environment with the newest release before this commit."""
    tag = git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^").decode().strip()
    if not tag:
        pytest.skip("no release has a tag (v0.1.0) yet, so there is nothing to upgrade from")
    with tarfile.open(fileobj=BytesIO(git("archive", tag))) as source:
        source.extractall(tmp_path / "source", filter="tar")
    uv = (sys.executable, "-m", "uv")
    python = str(tmp_path / "env/bin/python")
    subprocess.run(
        [*uv, "venv", "--quiet", "--python", sys.executable, "env"], cwd=tmp_path, check=True
    )
    words = ("pip", "install", "--quiet", "--python", python, "./source", "fastapi", "uvicorn")
    subprocess.run([*uv, *words], cwd=tmp_path, check=True)
    return python


@pytest.mark.slow
async def test_an_upgrade_and_the_way_back_cost_callers_nothing(
    tmp_path: Path, last_release: str
) -> None:
    """No call fails, and no visit is lost or counted twice, so state moves between the versions."""
    async with (
        aiohttp.ClientSession() as session,
        programs(tmp_path, 3, session, python=last_release) as started,
    ):
        callers = Callers(started[0].address)
        async with callers.calling():
            for python in (sys.executable, last_release):
                for each in started:
                    each.python = python
                    await callers.restart(each, session)
        callers.check()
