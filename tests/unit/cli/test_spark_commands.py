"""Test how `equipoise spark` passes a command line to its job, and a result to an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.brokers.cli.outcome import ExitCode
from equipoise.lab.traces import Shape
from equipoise.spark_jobs.streams.options import (
    ArchiveOptions,
    AuditOptions,
    LabOptions,
    ReportOptions,
    Screen,
    VerifyOptions,
)
from tests.unit.cli.fabricated import run

ROOT = Path(__file__).resolve().parents[3]
JOBS = {
    "audit": "equipoise.spark_jobs.audit.job",
    "archive": "equipoise.spark_jobs.archive.job",
    "verify": "equipoise.spark_jobs.verifying.job",
    "report": "equipoise.spark_jobs.report.job",
    "lab": "equipoise.spark_jobs.laboratory",
}


class Asked:
    """Jobs that remember their options, and find `found` things."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options: list[object] = []
        self.found = 0
        for name, module in JOBS.items():
            monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{f"run_{name}": self.run}))

    def run(self, options: object, screen: Screen) -> int:
        self.options.append(options)
        screen.result("a result")
        screen.note("a note")
        return self.found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def of_job(words: Iterable[str]) -> list[str]:
    """Return the command line of a job, which begins with its name."""
    name, *rest = words
    return [name, *rest] if name == "report" else ["spark", name, *rest]


def test_each_option_reaches_its_job(asked: Asked, log: str, tmp_path: Path) -> None:
    archive, packed = tmp_path / "tables", tmp_path / "packed.tar.gz"
    packed.touch()
    where: Any = {"master": "local[1]", "environment": packed}
    lines = {
        ("audit", "--log", log): AuditOptions(
            log_url=log, archive=Path(f"{log.removeprefix('sqlite:')}.archive")
        ),
        (
            "audit",
            "--log",
            log,
            "--archive",
            str(archive),
            "--to-end",
            "--in-flight-max",
            "9",
            *("--master", where["master"], "--environment", str(packed)),
        ): AuditOptions(log_url=log, archive=archive, to_end=True, in_flight_max_s=9, **where),
        (
            "archive",
            "--log",
            log,
            "--archive",
            str(archive),
            "--hold",
            "main",
            "--metrics-port",
            "9",
        ): ArchiveOptions(log_url=log, archive=archive, hold="main", metrics_port=9),
        (
            "verify",
            "--archive",
            str(archive),
            "--from",
            "1970-01-01T00:00:01Z",
            "--json",
        ): VerifyOptions(archive=archive, from_ms=1_000, as_json=True),
        ("report", "--log", log, "--to", "1970-01-01T00:00:02Z", "--out", "x.html"): ReportOptions(
            out=Path("x.html"), log_url=log, to_ms=2_000
        ),
        (
            "lab",
            "steady",
            "--output",
            "s3a://lab/one",
            "--set",
            "balanced.moves_max=4, 8",
            "--seeds",
            "3",
            "--for",
            "30m",
        ): LabOptions(
            traces=("steady",),
            shape=Shape(duration_s=1_800.0),
            policies=("BalancedShedder",),
            values={"balanced.moves_max": ("4", "8")},
            output="s3a://lab/one",
            seeds=3,
        ),
    }
    codes = [run(*of_job(line)).exit_code for line in lines]
    assert [ExitCode.OK] * len(lines) == codes
    assert list(lines.values()) == asked.options


def test_report_takes_the_log_of_the_environment(asked: Asked, log: str) -> None:
    codes = [
        run("report", log=log).exit_code,
        run("report", "--archive", "tables", log=log).exit_code,
    ]
    assert [ExitCode.OK, ExitCode.OK] == codes
    assert [(log, None), (None, "tables")] == [
        (each.log_url, each.archive) for each in asked.options if isinstance(each, ReportOptions)
    ]


def test_findings_end_with_exit_code_1(asked: Asked, log: str) -> None:
    asked.found = 3
    result = run("spark", "audit", "--log", log, "--to-end")
    assert (ExitCode.REFUSED, "a result\n", "a note\n") == (
        result.exit_code,
        result.stdout,
        result.stderr,
    )


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (("report",), "give one of --archive and --log"),
        (("report", "--archive", "a", "--log", "sqlite:b"), "give one of --archive and --log"),
        (("verify", "--archive", "a", "--from", "7"), "7 is an offset"),
        (("verify", "--archive", "a", "--from", "-1h", "--to", "-2h"), "not after --from"),
        (
            ("archive", "--log", "{log}", "--hold", "a", "--release", "a"),
            "give --hold or --release, not both",
        ),
        (("audit", "--log", "sqlite:nowhere.db"), "has not begun"),
        (("audit", "--log", "memory:x"), "known only to the process"),
        (("verify",), "--archive"),
        (("lab", "steady", "--output", ""), "the name is empty"),
        (
            ("lab", "steady", "--output", "lab", "--set", "balanced.moves_max"),
            "--set takes NAME=VALUE",
        ),
        (
            ("lab", "steady", "--output", "lab", "--set", "balanced.moves_max=4,x"),
            "balanced.moves_max",
        ),
    ],
)
def test_a_wrong_command_line_starts_no_job(
    asked: Asked, log: str, line: tuple[str, ...], named: str
) -> None:
    result = run(*of_job(word.replace("{log}", log) for word in line))
    assert (ExitCode.USAGE, True) == (result.exit_code, named in " ".join(result.stderr.split()))
    assert [] == asked.options
