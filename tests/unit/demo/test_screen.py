"""What people see: the live screen as text, and the plain lines."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from equipoise.brokers.local.demo.screen import BrokerRow, BundleRow, LiveScreen, MessagesShown, Picture, PlainScreen, draw, open_screen

MESSAGES = MessagesShown(
    per_second=319.6,
    receipted=2_000,
    recent_pause_ms=4.4,
    longest_pause_ms=27.2,
    longest_pause_in_kills_ms=0.0,
    lost=0,
    lost_in_kills=0,
    out_of_order=0,
)
PICTURE = Picture(
    elapsed_s=12.3,
    brokers=[
        BrokerRow(broker="a:1", status="up", leads=True, incarnation=2, bundles=2, work_per_second=120.4, used=0.432),
        BrokerRow(broker="b:1", status="down", leads=False, incarnation=3, bundles=0, work_per_second=0.0),
    ],
    bundles=[BundleRow(bundle="t/n/0x00000000_0x80000000", phase="transferring", owner="a:1", token=17, work_per_second=99.6)],
    bundles_count=2,
    newest=["23 a:1#2 [bold]does[/bold] something"],
    calls_per_second=120.4,
    calls=1234,
    recent_pause_ms=3.2,
    longest_pause_ms=81.7,
    messages=MESSAGES,
)


def test_the_live_screen_shows_everything() -> None:
    """Brokers, bundles, loads, records, pauses, and what was said are all there, and records are no markup."""
    console = Console(width=120, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        console.print(draw(PICTURE, ["   1.0 s  kill -9 of b:1"]))
    text = captured.get()
    for shown in (
        "1 brokers up, 2 bundles; counter: 120 calls/s, 1234 calls; pause now 3 ms, longest 82 ms",
        "Pulsar: 320 messages/s, 2000 messages, 0 lost, 0 out of order; pause now 4 ms, longest 27 ms",
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
    """Each deed is a line; the picture is one only every few seconds."""
    with PlainScreen() as screen:
        screen.show(PICTURE)
        for elapsed_s in (30.0, 31.0):
            screen.show(replace(PICTURE, elapsed_s=elapsed_s))
        screen.say(33.0, "something happens")
    whole = [f"  30.0 s    {line}" for line in PICTURE.headlines]
    assert [*whole, "  33.0 s  something happens"] == capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("screen", [PlainScreen, LiveScreen])
def test_what_is_quoted_stands_as_it_was_printed(screen: type[PlainScreen | LiveScreen], capsys: pytest.CaptureFixture[str]) -> None:
    """What another program has printed is shown line by line, and is no markup."""
    with screen() as shown:
        shown.quote(["moves", "1. [bold]t/n/0x00000000_0x80000000[/bold]"])
    said = capsys.readouterr().out
    assert "          moves" in said
    assert "          1. [bold]t/n/0x00000000_0x80000000[/bold]" in said


def test_what_kills_did_is_told_apart() -> None:
    """After a kill there is a line about it; without Pulsar clients there is none about messages at all."""
    killed = replace(MESSAGES, longest_pause_in_kills_ms=375.4, lost_in_kills=21)
    assert "  in kill -9: 21 lost; longest pause 375 ms" == killed.headlines[-1]
    assert "0 lost, 0 out of order" in killed.headlines[0]
    assert 2 == len(PICTURE.headlines)
    assert 1 == len(replace(PICTURE, messages=None).headlines)


def test_the_live_screen_keeps_what_was_said_last(capsys: pytest.CaptureFixture[str]) -> None:
    """Of many deeds the last few stay on the screen, the newest at the bottom."""
    with LiveScreen() as screen:
        for number in range(10):
            screen.say(float(number), f"deed {number}")
        screen.show(PICTURE)
    text = capsys.readouterr().out
    assert "deed 9" in text
    assert "deed 3" not in text


def test_without_a_terminal_there_are_plain_lines() -> None:
    """A pipe gets lines, asked for or not."""
    assert isinstance(open_screen(plain=False), PlainScreen)
    assert isinstance(open_screen(plain=True), PlainScreen)
