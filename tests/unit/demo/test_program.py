"""The demo as a program: what is left to say when its play has ended, whatever becomes of its files."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from equipoise.brokers.local.demo import __main__ as program
from equipoise.brokers.local.demo.screen import Screen
from equipoise.brokers.local.demo.show import Ending, Options
from equipoise.channel.inspect.findings import Findings

NOTHING_FOUND = Findings(folded_to=0, records=1, accepted=1, rejected={}, agreements=0, findings_count=0, findings=())


def test_a_verdict_is_told_although_files_cannot_be_removed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever looks on may make a file where the demo removes its own: the verdict is printed all the same."""
    played: list[Path] = []

    async def play(options: Options, _screen: Screen) -> Ending:
        played.append(options.directory)
        return Ending(summary=["double owners: 0"], findings=NOTHING_FOUND, verdicts={}, problem=None)

    def rmdir(path: str, **_: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", path)

    monkeypatch.setattr(program, "play", play)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    parser = program.parser("demo")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", rmdir)
        code = program.run(parser, parser.parse_args(["--plain"]), log_url=None)
    assert (0, True) == (code, "double owners: 0" in capsys.readouterr().out)
    (directory,) = played
    directory.rmdir()
