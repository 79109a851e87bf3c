"""Progress: a bar for people at a terminal, and nothing for anybody else."""

from __future__ import annotations

import io

import pytest

from equipoise.brokers.cli.progress import progress


class Terminal(io.StringIO):
    """A standard error that people look at."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done, of what, and how much of it, is drawn while it is under way."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("folding") as watch:
        watch(1_234, None)
        watch(250_000, 1_000_000)
    assert "folding" in terminal.getvalue()
    assert "250,000 records" in terminal.getvalue()


def test_a_pipe_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A log of a run has no bars in it."""
    with progress("folding") as watch:
        watch(1, 2)
    assert ("", "") == tuple(capsys.readouterr())
