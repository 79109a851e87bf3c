"""The demo, played once through with real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from compose.demo import Outage
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.balancing.settings.settings_records import CHANGED_BY, document_of
from equipoise.brokers.local.demo import play as playing
from equipoise.brokers.local.demo import steps
from equipoise.brokers.local.demo.operator import QUICK
from equipoise.brokers.local.demo.play import Options, play
from equipoise.brokers.local.demo.screen import Screen
from equipoise.brokers.operations.access import opened
from tests.kafka.fixtures import OwnKafka

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_the_demo_ends_with_a_clean_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every step is played once on counters and topics, the channel is in order, and the checkers
    find nothing.
    """
    ending = asyncio.run(play(Options(directory=tmp_path, seconds=0.0, seed=1), Screen(plain=True)))
    said = capsys.readouterr().out
    assert ending.problem is None
    assert () == ending.findings.findings
    assert ["calls", "messages"] == list(ending.verdicts)
    for verdict in ending.verdicts.values():
        assert ({}, None, 0) == (verdict.violations, verdict.problem, verdict.double_owners)
    assert "double owners: 0" in ending.summary
    assert (
        "messages lost in transfers, splits, merges and drains 0, out of order 0" in ending.summary
    )
    assert ending.verdicts["messages"].totals["receipted"] > 0
    for deed in (MoveKind.TRANSFER, MoveKind.SPLIT, MoveKind.MERGE):
        assert f" {deed.value}s done, each in " in said
    assert said.count("kill -9 of") == 2
    assert said.count("all Pulsar clients are back after") == 2
    assert "drains: its" in said
    # What the balancer did, each with a reason, the plan before it, and what came of it.
    assert (
        0
        < said.index("would move")
        < said.index("BalancedShedder: demo/")
        < said.index(" was predicted, ")
        < said.index(" was measured")
    )
    assert "AutoSplit: demo/" in said
    assert "AutoMerge: demo/" in said
    with opened(f"sqlite:{tmp_path}/channel.db", timeout_ms=20_000) as access:
        left = document_of(access.view)
    assert {*QUICK, CHANGED_BY} == left.keys(), "each step removes the settings that it made"


def test_without_pulsar_clients_the_demo_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo says why, and plays the steps on the counter alone."""
    monkeypatch.setattr(playing, "lacking", lambda: "the package pulsar-client is not installed")
    ending = asyncio.run(
        play(
            Options(directory=tmp_path, seconds=0.0, seed=1, steps=(steps.split,)),
            Screen(plain=True),
        )
    )
    said = capsys.readouterr().out
    assert (
        "the demo runs without Pulsar clients: the package pulsar-client is not installed" in said
    )
    assert "demo/messages" not in said
    assert (["calls"], True) == (list(ending.verdicts), ending.is_clean)


@pytest.mark.slow
def test_the_demo_survives_an_outage_of_kafka(
    tmp_path: Path,
    own_kafka: OwnKafka,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka is down for longer than a lease: no broker serves meanwhile, all come back, and none is
    declared dead.
    """
    # Nothing is balanced in this step, which takes half a minute.
    monkeypatch.setattr(playing, "_CALLS_PER_SECOND", 60.0)
    url = f"kafka://{own_kafka.address}/{own_kafka.topic('demo')}"
    options = Options(
        directory=tmp_path, seconds=0.0, seed=1, log_url=url, steps=(Outage(own_kafka.cluster),)
    )
    ending = asyncio.run(play(options, Screen(plain=True)))
    said = capsys.readouterr().out
    assert (None, True) == (ending.problem, ending.is_clean)
    assert "no broker was declared dead" in said
    assert any("deaths 0" in line for line in ending.summary)
