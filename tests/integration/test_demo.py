"""The demo, played once through with real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokers.demo.screen import PlainScreen
from brokers.demo.show import Options, play
from brokers.moves import MoveKind

pytestmark = pytest.mark.integration


def test_the_demo_ends_with_a_clean_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every act is played once, the channel is in order, and the judge finds nothing."""
    ending = asyncio.run(play(Options(directory=tmp_path, seconds=0.0, seed=1), PlainScreen()))
    said = capsys.readouterr().out
    assert ending.problem is None
    assert () == ending.findings.findings
    assert ending.verdict is not None
    assert ({}, None, 0) == (ending.verdict.violations, ending.verdict.problem, ending.verdict.double_owners)
    assert "double owners: 0" in ending.summary
    for deed in (MoveKind.TRANSFER, MoveKind.SPLIT, MoveKind.MERGE):
        assert f"{deed.value} demo/counters/" in said
    assert said.count("kill -9 of") == 2
    assert "drains: its" in said
