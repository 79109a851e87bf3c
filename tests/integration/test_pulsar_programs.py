"""Test the driver of real Pulsar clients, and each client's program without a broker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.pulsar.clients import Client, ClientFailedError, Consuming, Event, Producing
from tests.pulsar.fleet import Fleet
from tests.pulsar.programs import Language, require

# Building a program for the first time takes minutes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

NOBODY = "pulsar://127.0.0.1:9"
TOPIC = "non-persistent://public/default/t"
PRODUCING = Producing(url=NOBODY, name="p0", topics=(TOPIC,), rate=10.0)
CONSUMING = Consuming(url=NOBODY, name="c0", subscription="s", topics=(TOPIC,))
PATIENCE_S = 30.0

# Writes lines until its standard input ends. It ignores the arguments of a real program.
FAKE = """
import sys
for line in {lines!r}:
    print(line, flush=True)
sys.stdin.read()
{end}
"""


def said(event: str, at_ns: int, n: int) -> str:
    """Return an event of a producer."""
    return (
        f'{{"event": "{event}", "topic": "{TOPIC}", "producer": "p0", "n": {n}, "at_ns": {at_ns}}}'
    )


def fake(folder: Path, *lines: str, end: str = "", end_s: float = PATIENCE_S) -> Client:
    """Return a producer that writes `lines`, and runs `end` after the end of its input."""
    program = (sys.executable, "-c", FAKE.format(lines=lines, end=end))
    return Client(Language.PYTHON, PRODUCING, folder, program=program, end_s=end_s)


READY = f'{{"event": "ready", "producer": "p0", "topics": ["{TOPIC}"], "at_ns": 1}}'


def test_a_fleet_names_the_stalled_clients(tmp_path: Path) -> None:
    consumer = (
        f'{{"event": "received", "topic": "{TOPIC}", "subscription": "s", "consumer": "c0",'
        ' "producer": "p0", "n": 0, "at_ns": 7}'
    )
    program = (sys.executable, "-c", FAKE.format(lines=(consumer,), end=""))
    fleet = Fleet(tmp_path, [])
    with (
        fake(tmp_path, READY, said("receipted", 5, 0)) as sender,
        Client(Language.PYTHON, CONSUMING, tmp_path, program=program) as taker,
    ):
        fleet.producers.append(sender)
        fleet.consumers.append(taker)
        fleet.wait_flowing(4, timeout_s=PATIENCE_S)
        assert [f"receipts of p0 of {TOPIC}"] == fleet.stalled(5)
        with pytest.raises(
            ClientFailedError,
            match=rf"receipts of p0 of {TOPIC}; messages for c0 of {TOPIC} \(2 in all\)",
        ):
            fleet.wait_flowing(7, timeout_s=0.01)


def test_an_excused_pause_is_not_counted(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, [])
    times_ns = (0, 1_000_000, 9_000_000, 12_000_000)
    with fake(
        tmp_path, READY, *(said("receipted", at_ns, n) for n, at_ns in enumerate(times_ns))
    ) as sender:
        sender.wait_count(Event.RECEIPTED, len(times_ns), timeout_s=PATIENCE_S)
    fleet.producers.append(sender)
    assert {"p0": 8.0} == fleet.longest_pauses_ms()
    fleet.windows.append((2_000_000, 3_000_000))
    assert {"p0": 3.0} == fleet.longest_pauses_ms()


@pytest.mark.slow
@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("task", [PRODUCING, CONSUMING], ids=["produce", "consume"])
def test_a_program_ends_with_its_input(
    language: Language, task: Producing | Consuming, tmp_path: Path
) -> None:
    """It waits for a broker that does not exist."""
    require(language)
    client = Client(language, task, tmp_path).start()
    with pytest.raises(
        ClientFailedError, match=r"(?s)ended with 1; .*told to end before it was ready"
    ):
        client.stop()
