"""Progress: a bar for people at a terminal, and nothing for anybody else."""

from __future__ import annotations

import io

import pytest

from equipoise.brokers.cli.output import progress


class Terminal(io.StringIO):
    """A standard error that people look at."""

    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("folding") as watch:
        watch(1_234, None)
        watch(250_000, 1_000_000)
    assert "folding" in terminal.getvalue()
    assert "250,000 records" in terminal.getvalue()


def test_no_progress_is_written_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("folding") as watch:
        watch(1, 2)
    assert ("", "") == tuple(capsys.readouterr())
