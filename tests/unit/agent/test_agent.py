"""The agent as a whole: refusals, its own death, and leaving."""

from __future__ import annotations

from equipoise.brokers.agent.core import NEVER_MS
from equipoise.brokers.agent.events import Tick
from tests.scenarios.language import perform, play
from tests.scenarios.words import full_name

NO_LEASE = (
    "a answers: broker a did nothing: it has no lease at this moment; ask it again later, or ask"
    " another broker"
)


def test_a_broker_without_a_lease_proposes_nothing() -> None:
    """It answers requests at once."""
    cut_off = play("cluster a b with 1 bundle", "hold a", "deafen a", "advance 3s")
    before = len(cut_off.hosts["a"].link.in_flight)
    assert NO_LEASE in perform(cut_off, "transfer 00_ff to b by a")
    assert before == len(cut_off.hosts["a"].link.in_flight)
    joining = play("hold a", "brokers a")
    assert [NO_LEASE] == perform(joining, "namespace t/n with 1 bundle by a")


def test_a_broker_that_lost_the_channel_denies_nothing() -> None:
    """Its view may be out of date."""
    stage = play(
        "cluster a b with 1 bundle",
        "deafen b",
        "namespace t/m with 1 bundle by admin",
        "advance 1400ms",
    )
    assert "b answers: unknown_bundle" in perform(stage, "unload t/m/00_ff by b")
    perform(stage, "advance 200ms")
    problem = "it has not read its own renewals for 1600 ms, so its view may be out of date"
    answer = (
        f"b answers: broker b did nothing: {problem}; ask it again later, or ask another broker"
    )
    assert answer in perform(stage, "unload t/m/00_ff by b")


def test_own_death_answers_all_requests_at_once() -> None:
    stage = play(
        "cluster a b with 2 bundles", "hold a", "transfer 00_80 to b by a", "split 80_ff by a"
    )
    lines = perform(stage, "declare dead a")
    problem = "its proposal was lost on the way to the log, or overtaken by a later one"
    answer = (
        f"a answers: broker a did nothing: {problem}; ask it again later, or ask another broker"
    )
    assert 2 == lines.count(answer)


def test_a_leaving_broker_does_not_join_again_after_its_death() -> None:
    stage = play(
        "cluster a b with 1 bundle", "service b hangs prepare", "leave a", "declare dead a"
    )
    assert stage.hosts["a"].process is None
    assert ["b"] == [broker.broker for broker in stage.view.live_brokers()]


def test_a_leaving_broker_waits_for_its_closings_after_its_death() -> None:
    stage = play(
        "cluster a b with 1 bundle",
        "service a waits close",
        "transfer 00_ff to b by admin",
        "leave a",
    )
    lines = perform(stage, "declare dead a") + perform(stage, "advance 1s")
    assert [] == [line for line in lines if line.startswith("a ")]
    assert ["b"] == [broker.broker for broker in stage.view.live_brokers()]
    assert "a stops: it has left" in perform(stage, "service a answers")


def test_the_wait_for_closings_after_a_death_is_bounded() -> None:
    stage = play(
        "cluster a b with 1 bundle",
        "service a hangs close",
        "transfer 00_ff to b by admin",
        "leave a",
        "declare dead a",
        "advance 4999ms",
    )
    assert stage.hosts["a"].process is not None
    assert "a stops: it has left" in perform(stage, "advance 101ms")


def test_a_leaving_broker_retries_ten_times_a_second_in_an_outage() -> None:
    stage = play("cluster a b with 1 bundle", "outage")
    before = stage.view.brokers["a"].sequence
    perform(stage, "drain a")
    perform(stage, "advance 1s")
    perform(stage, "outage over")
    perform(stage, "advance 100ms")
    assert "draining" == stage.view.brokers["a"].status
    assert 10 <= stage.view.brokers["a"].sequence - before <= 40


def test_a_draining_broker_drains_on_after_its_death() -> None:
    stage = play("cluster a b with 1 bundle", "drain a", "declare dead a", "advance 200ms")
    assert ["up", "draining"] == [broker.status for broker in stage.view.live_brokers()]
    assert stage.view.brokers["a"].incarnation == stage.process("a").agent.incarnation


def test_brokers_that_stop_together_raise_no_alarm() -> None:
    """Each may propose the other as a destination. Any other broker that does raises the alarm."""
    commands = ["cluster a b with 2 bundles", "hold a", "transfer 00_80 to b by a", "drain b"]
    alarm = "a raises rejected: the proposal about 00_80 at offset 11 was rejected: draining_target"
    assert alarm in perform(play(*commands), "release a")
    lines = perform(play(*commands, "drain a"), "release a")
    assert "a answers: draining_target" in lines
    assert [] == [line for line in lines if "raises" in line]


def test_the_host_reads_the_state_of_the_agent() -> None:
    """Before and after it has left."""
    stage = play("cluster a b with 2 bundles")
    agent = stage.process("a").agent
    assert ["a", "a"] == [agent.broker, agent.entry.broker if agent.entry else None]
    assert agent.handles[full_name("00_80")] is agent.handle(full_name("00_80"))
    assert agent.handle(full_name("80_ff")) is None
    perform(stage, "leave a")
    assert [{}, None, None, False, NEVER_MS] == [
        agent.handles,
        agent.entry,
        agent.incarnation,
        agent.is_ready,
        agent.wake_at_ms,
    ]
    assert [] == agent.step(Tick(), stage.hosts["a"].now())


def test_bundles_that_are_free_in_a_snapshot_are_placed() -> None:
    """No record that is read reports them."""
    stage = play(
        "brokers a b",
        "service a refuses prepare",
        "service b refuses prepare",
        "namespace t/n with 1 bundle by admin",
    )
    for command in (
        "snapshot a",
        "crash b",
        "declare dead b",
        "restart a from snapshot",
        "advance 1s",
    ):
        perform(stage, command)
    assert ("owned", True) == (
        stage.view.bundles[full_name("00_ff")].phase,
        stage.process("a").agent.handles[full_name("00_ff")].is_open,
    )
