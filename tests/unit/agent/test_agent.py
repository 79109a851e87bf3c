"""The agent as a whole: what it answers when it may not act, and how it ends."""

from __future__ import annotations

from equipoise.brokers.agent.events import Tick
from equipoise.brokers.agent.membership import NEVER_MS
from tests.scenarios.language import perform, play
from tests.scenarios.words import full_name

NO_LEASE = "a answers: broker a did nothing: it has no lease at this moment; ask it again later, or ask another broker"


def test_who_has_no_lease_answers_so() -> None:
    """A request to a broker that may be cut off, or is no member yet, is answered at once, and nothing is proposed."""
    cut_off = play("cluster a b with 1 bundle", "hold a", "deafen a", "advance 3s")
    before = len(cut_off.hosts["a"].link.in_flight)
    assert NO_LEASE in perform(cut_off, "transfer 00_ff to b by a")
    assert before == len(cut_off.hosts["a"].link.in_flight)
    joining = play("hold a", "brokers a")
    assert [NO_LEASE] == perform(joining, "namespace t/n with 1 bundle by a")


def test_who_lost_the_channel_denies_nothing() -> None:
    """A broker that is out of touch refuses no request by what it knows: what it has not read of may exist."""
    stage = play("cluster a b with 1 bundle", "deafen b", "namespace t/m with 1 bundle by admin", "advance 1400ms")
    assert "b answers: unknown_bundle" in perform(stage, "unload t/m/00_ff by b")
    perform(stage, "advance 200ms")
    problem = "it has not read its own renewals for 1600 ms, so its view may be out of date"
    answer = f"b answers: broker b did nothing: {problem}; ask it again later, or ask another broker"
    assert answer in perform(stage, "unload t/m/00_ff by b")


def test_requests_of_the_buried_are_answered_at_once() -> None:
    """A broker that reads its own death answers in the same step the requests whose attempts can no longer be accepted."""
    stage = play("cluster a b with 2 bundles", "hold a", "transfer 00_80 to b by a", "split 80_ff by a")
    lines = perform(stage, "declare dead a")
    problem = "its proposal was lost on the way to the log, or overtaken by a later one"
    answer = f"a answers: broker a did nothing: {problem}; ask it again later, or ask another broker"
    assert 2 == lines.count(answer)


def test_who_never_joined_leaves_at_once() -> None:
    """A process that is told to leave before it is a member ends, and says nothing to the log."""
    stage = play("hold a", "brokers a")
    in_flight = len(stage.hosts["a"].link.in_flight)
    assert ["a stops: it has left"] == perform(stage, "leave a")
    assert in_flight == len(stage.hosts["a"].link.in_flight)


def test_who_is_buried_while_it_leaves_has_left() -> None:
    """A broker that meant to leave does not join anew when somebody else ends its incarnation first."""
    stage = play("cluster a b with 1 bundle", "service b hangs prepare", "leave a", "declare dead a")
    assert stage.hosts["a"].process is None
    assert ["b"] == [broker.broker for broker in stage.view.live_brokers()]


def test_who_is_buried_while_it_leaves_waits_for_its_closes() -> None:
    """Its service is still closing: the process ends when that is done, and does not join anew meanwhile."""
    stage = play("cluster a b with 1 bundle", "service a waits close", "transfer 00_ff to b by admin", "leave a")
    lines = perform(stage, "declare dead a") + perform(stage, "advance 1s")
    assert [] == [line for line in lines if line.startswith("a ")]
    assert ["b"] == [broker.broker for broker in stage.view.live_brokers()]
    assert "a stops: it has left" in perform(stage, "service a answers")


def test_who_is_buried_while_it_leaves_waits_no_longer_than_the_deadline() -> None:
    stage = play(
        "cluster a b with 1 bundle", "service a hangs close", "transfer 00_ff to b by admin", "leave a", "declare dead a", "advance 4999ms"
    )
    assert stage.hosts["a"].process is not None
    assert "a stops: it has left" in perform(stage, "advance 101ms")


def test_who_leaves_while_the_log_is_out_is_in_no_hurry() -> None:
    """The failure of its word is not answered by the next attempt at once: it tries some ten times a second, until it is heard."""
    stage = play("cluster a b with 1 bundle", "outage")
    before = stage.view.brokers["a"].sequence
    perform(stage, "drain a")
    perform(stage, "advance 1s")
    perform(stage, "outage over")
    perform(stage, "advance 100ms")
    assert "draining" == stage.view.brokers["a"].status
    assert 10 <= stage.view.brokers["a"].sequence - before <= 40


def test_who_is_buried_while_it_drains_drains_on() -> None:
    stage = play("cluster a b with 1 bundle", "drain a", "declare dead a", "advance 200ms")
    assert ["up", "draining"] == [broker.status for broker in stage.view.live_brokers()]
    assert stage.view.brokers["a"].incarnation == stage.process("a").agent.incarnation


def test_brokers_that_stop_at_once_raise_no_alarm() -> None:
    """One that drains, and proposes another that does so too, has only been quicker than the news; any other did not look."""
    commands = ["cluster a b with 2 bundles", "hold a", "transfer 00_80 to b by a", "drain b"]
    alarm = "a raises rejected: the proposal about 00_80 at offset 11 was rejected: draining_target"
    assert alarm in perform(play(*commands), "release a")
    lines = perform(play(*commands, "drain a"), "release a")
    assert "a answers: draining_target" in lines
    assert [] == [line for line in lines if "raises" in line]


def test_the_host_sees_what_the_agent_holds() -> None:
    """Handles by name, the broker's own entry, and when it wants to be woken are there between steps, and gone at the end."""
    stage = play("cluster a b with 2 bundles")
    agent = stage.process("a").agent
    assert ["a", "a"] == [agent.broker, agent.entry.broker if agent.entry else None]
    assert agent.handles[full_name("00_80")] is agent.handle(full_name("00_80"))
    assert agent.handle(full_name("80_ff")) is None
    perform(stage, "leave a")
    assert [{}, None, None, False, NEVER_MS] == [agent.handles, agent.entry, agent.incarnation, agent.is_ready, agent.wake_at_ms]
    assert [] == agent.step(Tick(), stage.hosts["a"].now())


def test_what_a_snapshot_left_free_is_placed() -> None:
    """A process that starts from a snapshot sees what nobody owns in it, though no record that it reads tells of that."""
    stage = play("brokers a b", "service a refuses prepare", "service b refuses prepare", "namespace t/n with 1 bundle by admin")
    for command in ("snapshot a", "crash b", "declare dead b", "restart a from snapshot", "advance 1s"):
        perform(stage, command)
    assert ("owned", True) == (stage.view.bundles[full_name("00_ff")].phase, stage.process("a").agent.handles[full_name("00_ff")].is_open)
