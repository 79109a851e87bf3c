"""The demo's screen as text, as plain lines, and the program around it."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from equipoise.brokers.local.demo import __main__ as program
from equipoise.brokers.local.demo.play import Options, Result
from equipoise.brokers.local.demo.screen import BrokerRow, BundleRow, Picture, Screen, draw
from equipoise.channel.inspect.findings import Findings

PICTURE = Picture(
    elapsed_s=12.3,
    headlines=["1 brokers up, 2 bundles; counter: 120 calls/s", "Pulsar: 320 messages/s"],
    brokers=[
        BrokerRow(
            broker="a:1",
            status="up",
            leads=True,
            incarnation=2,
            bundles=2,
            work_per_second=120.4,
            used=0.432,
        ),
        BrokerRow(
            broker="b:1", status="down", leads=False, incarnation=3, bundles=0, work_per_second=0.0
        ),
    ],
    bundles=[
        BundleRow(
            bundle="t/n/0x00000000_0x80000000",
            phase="transferring",
            owner="a:1",
            token=17,
            work_per_second=99.6,
        )
    ],
    bundles_count=2,
    newest=["23 a:1#2 [bold]does[/bold] something"],
)


@pytest.fixture(params=[False, True], ids=["plain", "live"])
def screen(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Screen:
    """Return a screen in a pipe, or on a terminal."""
    del capsys  # Its stream is the one to be patched.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: request.param)
    return Screen(plain=False)


def test_the_live_screen_shows_everything() -> None:
    """Headlines, brokers, bundles, loads, records and steps are shown, and records are no
    markup.
    """
    console = Console(width=120, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(draw(PICTURE, ["   1.0 s  kill -9 of b:1"]))
    text = captured.get()
    for shown in (
        *PICTURE.headlines,
        "up, leads",
        "in use",
        "43%",
        "down",
        "transferring",
        "the busiest of 2 bundles",
        "23 a:1#2 [bold]does[/bold] something",
        "kill -9 of b:1",
    ):
        assert shown in text


def test_plain_lines_sum_up_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """Each action is a line; the picture is printed only once a minute."""
    with Screen(plain=True) as screen:
        for elapsed_s in (12.3, 60.0, 61.0):
            screen.show(replace(PICTURE, elapsed_s=elapsed_s))
        screen.say(63.0, "something happens")
    whole = [f"  60.0 s    {line}" for line in PICTURE.headlines]
    assert [*whole, "  63.0 s  something happens"] == capsys.readouterr().out.splitlines()


def test_a_quotation_is_shown_unchanged(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of another program is indented, and is no markup."""
    with screen:
        screen.quote(["moves", "1. [bold]t/n/0x00000000_0x80000000[/bold]"])
    printed = capsys.readouterr().out
    assert "          moves" in printed
    assert "          1. [bold]t/n/0x00000000_0x80000000[/bold]" in printed


@pytest.mark.parametrize("screen", [True], indirect=True, ids=["live"])
def test_the_live_screen_keeps_the_newest_lines(
    screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of many actions the last few stay on the screen."""
    with screen:
        for number in range(10):
            screen.say(float(number), f"action {number}")
        screen.show(PICTURE)
    text = capsys.readouterr().out
    assert "action 9" in text
    assert "action 3" not in text


NOTHING_FOUND = Findings(
    folded_to=0, records=1, accepted=1, rejected={}, agreements=0, findings_count=0, findings=()
)


def test_the_verdict_is_printed_although_files_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader may create a file in the directory that the demo removes."""
    played: list[Path] = []

    async def play(options: Options, _screen: Screen) -> Result:
        played.append(options.directory)
        return Result(
            summary=["double owners: 0"], findings=NOTHING_FOUND, verdicts={}, problem=None
        )

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
