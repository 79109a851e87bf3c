"""Check the unit for systemd without running it: by systemd itself where it is installed, and
against the product that it runs.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from equipoise.brokers.runtime.config import WorkerConfig
from tests.docs.test_code_blocks import problem_of
from tests.pulsar.programs import is_required
from tests.unit.compose.test_compose_files import COMPOSE

UNIT: Final = COMPOSE / "equipoise@.service"
PROGRAM: Final = "/opt/equipoise/bin/equipoise"
# 0 is safe, and 10 unsafe. `systemd-analyze security` names what to add.
EXPOSURE_MAX: Final = 20

NEEDS_SYSTEMD: Final = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and not is_required(),
    reason="systemd-analyze is not installed (apt-get install systemd)",
)


def values() -> dict[str, list[str]]:
    """Return the values of each directive, in order."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(
        r"^([A-Z]\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE
    ):
        found.setdefault(name, []).append(value)
    return found


def analyze(folder: Path, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Have systemd look at the unit, with a program that exists."""
    text = UNIT.read_text(encoding="utf-8") if text is None else text
    unit = folder / "equipoise@8080.service"
    unit.write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, check=False
    )


@NEEDS_SYSTEMD
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """It names a misspelt directive."""
    checked = analyze(tmp_path, "verify", "--man=no")
    assert (0, "") == (checked.returncode, checked.stderr)
    misspelt = UNIT.read_text(encoding="utf-8").replace("KillMode", "KilMode")
    assert "KilMode" in analyze(tmp_path, "verify", "--man=no", text=misspelt).stderr


@NEEDS_SYSTEMD
def test_the_unit_exposes_little(tmp_path: Path) -> None:
    checked = analyze(
        tmp_path, "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}"
    )
    assert 0 == checked.returncode, checked.stdout


def test_its_commands_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_LOG", values()["Environment"][0].removeprefix("EQUIPOISE_LOG="))
    for directive in ("ExecStart", "ExecStopPost"):
        (command,) = values()[directive]
        program, *words = shlex.split(
            command.replace("$EQUIPOISE_OPTIONS", "--set lookup_ms=5000").replace("%i", "8080")
        )
        assert (PROGRAM, None) == (program, problem_of(words))


def test_its_times_and_limits_fit_the_settings() -> None:
    """A stop and a start may take what the settings allow, and each connection is an open file."""
    unit, config = values(), WorkerConfig(log_url="sqlite:channel.db", data_dir=Path("broker"))
    assert int(unit["TimeoutStopSec"][0]) * 1_000 >= config.stop_ms
    assert (
        int(unit["TimeoutStartSec"][0]) * 1_000
        > config.log_wait_ms + config.lease_ms + config.grace_ms
    )
    assert int(unit["LimitNOFILE"][0]) > config.http_connections_max + config.pulsar_connections_max


def test_it_writes_where_it_may() -> None:
    """The log, the data and nothing else are below its state directory."""
    unit = values()
    (folder,) = unit["StateDirectory"]
    places = re.findall(
        r"/var/lib/\S+", " ".join([*unit["Environment"], *unit["ExecStart"], *unit["ExecStopPost"]])
    )
    assert len(places) == 3
    assert all(place.startswith(f"/var/lib/{folder}/") for place in places)
    assert ["strict"] == unit["ProtectSystem"]
