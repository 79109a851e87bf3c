"""The demo, played once through with real processes."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from compose.demo import acts
from compose.demo import play as playing
from compose.demo.acts import ON_A_FILE, kill_kafka, split
from compose.demo.play import play
from equipoise.brokers.balancing.settings.settings_records import CHANGED_BY, document_of
from equipoise.brokers.operations.access import opened
from tests.kafka.fixtures import OwnKafka
from tests.load.admin_requests import QUICK

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_the_demo_ends_with_a_clean_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every act is played on counters and topics, the channel is in order, and the checkers find
    nothing.
    """
    result = asyncio.run(play(tmp_path, ON_A_FILE))
    said = capsys.readouterr().out
    assert ([], ()) == (result.problems, result.findings.findings)
    assert {"calls", "messages"} == result.verdicts.keys()
    for verdict in result.verdicts.values():
        assert ({}, None, 0) == (verdict.violations, verdict.problem, verdict.double_owners)
    assert "double owners: 0" in result.summary
    assert (
        "messages lost in transfers, splits, merges and drains 0, out of order 0" in result.summary
    )
    assert result.verdicts["messages"].totals["receipted"] > 0
    for move in ("transfer", "split", "merge"):
        assert f" {move}s done, each in " in said
    assert said.count("kill -9 of") == said.count("all clients are back after") == 2
    assert "drains: its" in said
    # What the balancer did, each with a reason, the plan before it, and what came of it.
    assert (
        0
        < said.index("would move")
        < said.index("BalancedShedder: demo/")
        < said.index(" was predicted, ")
        < said.index(" was measured")
        < said.index("AutoSplit: demo/")
        < said.index("AutoMerge: demo/")
    )
    with opened(f"sqlite:{tmp_path}/channel.db", timeout_ms=20_000) as access:
        left = document_of(access.view)
    assert {*QUICK, CHANGED_BY} == left.keys(), "each act removes the settings that it made"


def test_without_pulsar_clients_the_demo_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo says why, and plays the acts on the counter alone."""
    monkeypatch.setattr(playing, "find_spec", lambda _: None)
    result = asyncio.run(play(tmp_path, (split,)))
    said = capsys.readouterr().out
    assert "the demo runs without Pulsar clients: pulsar-client is not installed" in said
    assert "demo/messages" not in said
    assert (["calls"], True) == (list(result.verdicts), result.is_clean)


@pytest.mark.soak
def test_the_demo_survives_an_outage_of_kafka(
    tmp_path: Path,
    own_kafka: OwnKafka,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka is down for longer than a lease: brokers assure each other, and none is declared
    dead.
    """
    monkeypatch.setattr(playing, "_CALLS_PER_SECOND", 60.0)
    monkeypatch.setattr(acts, "_AWAY_S", 10.0)
    url = f"kafka://{own_kafka.address}/{own_kafka.topic('demo')}"
    outage = partial(kill_kafka, kafka=own_kafka.cluster)
    result = asyncio.run(play(tmp_path, (outage,), log_url=url))
    assert ([], True) == (result.problems, result.is_clean)
    assert "no broker was declared dead" in capsys.readouterr().out
    assert any("deaths 0" in line for line in result.summary)
