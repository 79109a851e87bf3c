"""Leading: how much is done at once, by which broker, and when another steps in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from equipoise.brokers.agent import leading
from equipoise.brokers.agent.intents import SetClusterPolicy
from equipoise.brokers.balancing.placement import FewestBundles
from equipoise.brokers.balancing.policies import control_document
from equipoise.brokers.balancing.quarantine import is_quarantined
from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.records import BrokerRecord, BundleTransition, PolicyRecord
from equipoise.channel.core.view import View
from tests.scenarios.language import perform, play
from tests.scenarios.stage import Stage
from tests.scenarios.words import full_name

# What one step places, and what one draining broker moves at once.
PLACEMENTS_MAX, TRANSFERS_MAX = 256, 64


def in_flight(stage: Stage, name: str) -> list[BundleTransition]:
    """Return the transitions that a broker has proposed and that have not reached the log."""
    return [
        record
        for _, data in stage.hosts[name].link.in_flight
        if isinstance(record := decode(data), BundleTransition)
    ]


def test_placements_per_step_are_bounded() -> None:
    stage = play("brokers a b", "hold a", "namespace t/n with 300 bundles by admin")
    assert PLACEMENTS_MAX == len(in_flight(stage, "a"))
    perform(stage, "release a")
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles.values()}
    assert [150, 150] == [
        stage.view.held_count(broker.incarnation) for broker in stage.view.live_brokers()
    ]


def test_a_step_looks_at_one_batch_of_free_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that look at all of thousands take so long that a broker loses its lease."""
    stage = play("brokers a b", "hold a", "namespace t/n with 4096 bundles by admin")
    looked: list[str] = []

    def noted(view: View, bundle: str) -> bool:
        looked.append(bundle)
        return is_quarantined(view, bundle)

    monkeypatch.setattr(leading, "is_quarantined", noted)
    perform(stage, "deliver 1 of a")
    assert set(looked) == {
        bundle.name for bundle in stage.view.bundles_of("t/n")[1 : 1 + PLACEMENTS_MAX]
    }


def test_concurrent_transfers_of_a_draining_broker_are_bounded() -> None:
    """In the end all have moved."""
    stage = play(
        "brokers a",
        "namespace t/n with 80 bundles by admin",
        "brokers b",
        "service b waits prepare",
        "drain a",
    )
    assert TRANSFERS_MAX == sum(
        bundle.phase == "transferring" for bundle in stage.view.bundles.values()
    )
    perform(stage, "service b is well")
    perform(stage, "service b answers")
    assert 0 == stage.view.held_count(stage.view.brokers["a"].incarnation)


def test_a_draining_broker_does_not_lead() -> None:
    """It acts as the last of all."""
    waiting = ("service b waits prepare", "service c waits prepare")
    stage = play(
        "cluster a b c with 1 bundle",
        *waiting,
        "drain a",
        "hold a",
        "hold b",
        "hold c",
        "namespace t/m with 1 bundle by admin",
    )
    assert [False, True, False] == [stage.process(name).agent.leads for name in "abc"]
    assert [[], [full_name("t/m/00_ff")], []] == [
        [record.key for record in in_flight(stage, name)] for name in "abc"
    ]
    perform(stage, "lose b")
    perform(stage, "deafen b")
    perform(stage, "advance 1200ms")
    assert [full_name("t/m/00_ff")] == [record.key for record in in_flight(stage, "c")]
    assert [] == in_flight(stage, "a")


@pytest.mark.parametrize(("silenced", "waits_ms"), [("", 0), ("a", 1_000), ("ab", 2_000)])
def test_each_broker_steps_in_a_second_after_its_elder(silenced: str, waits_ms: int) -> None:
    """Here the elders do nothing because they read nothing."""
    stage = play(
        "cluster a b c with 2 bundles",
        *(f"deafen {name}" for name in silenced),
        "hold c",
        "hold b",
        "hold a",
    )
    perform(stage, "namespace t/m with 1 bundle by admin")
    next_by_age = "abc"[len(silenced)]
    if waits_ms:
        perform(stage, f"advance {waits_ms - 1}ms")
        assert [] == in_flight(stage, next_by_age)
        perform(stage, "advance 1ms")
    assert [full_name("t/m/00_ff")] == [record.key for record in in_flight(stage, next_by_age)]


def test_a_namespace_in_deletion_does_not_delay_others() -> None:
    """Even if its free bundles come first by name."""
    stage = play(
        "brokers a b",
        "hold a",
        f"namespace t/d with {PLACEMENTS_MAX + 1} bundles by admin",
        "deleting t/d by admin",
        "release a",
    )
    assert {"free"} == {bundle.phase for bundle in stage.view.bundles_of("t/d")}
    perform(stage, "namespace t/n with 2 bundles by admin")
    assert ["owned", "owned"] == [bundle.phase for bundle in stage.view.bundles_of("t/n")]


def test_stranded_bundles_are_spread_over_the_other_brokers() -> None:
    """Their destination hangs. All are assigned again in one step, from one view."""
    stage = play(
        "timing prepare_ms 300s",
        "brokers a b",
        "service b hangs prepare",
        "namespace t/n with 32 bundles by admin",
    )
    perform(stage, "brokers c d")
    perform(stage, "advance 60s")
    held = {
        broker.broker: stage.view.held_count(broker.incarnation)
        for broker in stage.view.live_brokers()
    }
    assert {"a": 16, "b": 0, "c": 8, "d": 8} == held


def test_a_bundle_in_deletion_is_not_assigned_again() -> None:
    """Each proposal would be refused."""
    stage = play(
        "timing prepare_ms 300s",
        "brokers a b",
        "service b hangs prepare",
        "namespace t/d with 2 bundles by admin",
    )
    silent = next(bundle for bundle in stage.view.bundles_of("t/d") if bundle.phase == "assigning")
    perform(stage, "deleting t/d by admin")
    perform(stage, "advance 60s")
    about = [
        record
        for _, data in stage.log.entries
        if isinstance(record := decode(data), BundleTransition) and record.key == silent.name
    ]
    assert [silent.owner] == [record.owner for record in about if record.state == "assigning"]


def test_refused_bundles_do_not_delay_others() -> None:
    stage = play(
        "brokers a b",
        "service a refuses prepare",
        "service b refuses prepare",
        f"namespace t/d with {PLACEMENTS_MAX + 1} bundles by admin",
        "service a is well",
        "service b is well",
        "namespace t/n with 2 bundles by admin",
    )
    assert {"free"} == {bundle.phase for bundle in stage.view.bundles_of("t/d")}
    assert ["owned", "owned"] == [bundle.phase for bundle in stage.view.bundles_of("t/n")]


def test_refused_bundles_do_not_delay_a_drain() -> None:
    bundles = TRANSFERS_MAX + 6
    stage = play(
        "brokers a",
        f"namespace t/n with {bundles} bundles by admin",
        "brokers b",
        "service b refuses prepare",
        "drain a",
    )
    offered = {
        record.key
        for entry in stage.log.entries
        if isinstance(record := decode(entry.data), BundleTransition)
        and record.reason == "drain"
        and record.owner is not None
    }
    assert bundles == len(offered)


def test_replayed_refusals_do_not_count() -> None:
    stage = play(
        "brokers a",
        "service a refuses prepare",
        "namespace t/n with 1 bundle by admin",
        "advance 60s",
    )
    for command in (
        "service a is well",
        "advance 60s",
        "brokers b",
        "transfer 00_ff to b by admin",
        "drain b",
    ):
        perform(stage, command)
    assert stage.view.brokers["a"].incarnation == stage.view.bundles[full_name("00_ff")].owner


def test_no_broker_steps_in_while_an_elder_places() -> None:
    """The wait counts from the last placement of the elder."""
    stage = play(
        "cluster a b c with 2 bundles",
        "hold c",
        "hold b",
        "hold a",
        "namespace t/m with 9 bundles by admin",
        "advance 900ms",
    )
    perform(stage, "deliver 1 of a")
    perform(stage, "advance 999ms")
    assert [] == in_flight(stage, "b")
    perform(stage, "advance 1ms")
    assert ["assigning"] * 8 == [record.state for record in in_flight(stage, "b")]
    assert "assigning" not in {record.state for record in in_flight(stage, "c")}


def test_the_wait_for_an_elder_that_skips_a_bundle_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = play("cluster a b with 2 bundles")
    place, view = FewestBundles.place, stage.process("a").agent.view

    def blind(
        self: FewestBundles,
        of: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        seen = [bundle for bundle in bundles if of is not view or bundle.namespace != "t/m"]
        return place(self, of, seen, avoid=avoid, at_most=at_most)

    monkeypatch.setattr(FewestBundles, "place", blind)
    perform(stage, "namespace t/m with 1 bundle by admin")
    phases = []
    for _ in range(63):
        perform(stage, "unload 00_80 by admin")
        perform(stage, "advance 500ms")
        phases.append(stage.view.bundles[full_name("t/m/00_ff")].phase)
    assert ["free"] * 61 == phases[:61]
    assert "owned" == phases[-1]


def test_an_assignment_by_an_operator_delays_no_broker() -> None:
    stage = play(
        "cluster a b with 2 bundles",
        "hold b",
        "hold a",
        "namespace t/m with 2 bundles by admin",
        "advance 900ms",
    )
    perform(stage, "assign t/m/00_80 to b by admin")
    perform(stage, "advance 250ms")
    assert [full_name("t/m/80_ff")] == [
        record.key for record in in_flight(stage, "b") if record.state == "assigning"
    ]


def test_a_lookup_without_a_lease_assigns_nothing() -> None:
    stage = play(
        "cluster a b with 2 bundles", "hold b", "deafen b", "advance 3s", "lookup 00_80 at b"
    )
    assert [] == in_flight(stage, "b")


def test_many_lookups_are_one_proposal() -> None:
    stage = play(
        "brokers a b",
        "hold a",
        "hold b",
        "namespace t/n with 1 bundle by admin",
        "advance 250ms",
        *["lookup 00_ff at b"] * 5,
    )
    assert 1 == len(in_flight(stage, "b"))


def test_a_herd_of_lookups_is_spread_over_the_brokers() -> None:
    """Here the leader is slow, so that another broker places. Lookup after lookup would send all 16
    bundles to one broker.
    """
    stage = play("brokers a b c", "hold a", "hold c", "namespace t/n with 16 bundles by admin")
    names = [bundle.name.rpartition("/")[2] for bundle in stage.view.bundles_of("t/n")]
    lookups = [
        f"lookup t/n/{name[2:4]}_{'ff' if name.endswith('ffffffff') else name[13:15]} at c"
        for name in names
    ]
    for command in lookups:
        perform(stage, command)
    assert [] == in_flight(stage, "c"), "the leader is first"
    perform(stage, "advance 250ms")
    for command in lookups:
        perform(stage, command)
    assert 16 == len(in_flight(stage, "c"))
    perform(stage, "release c")
    assert [5, 5, 6] == sorted(
        stage.view.held_count(broker.incarnation) for broker in stage.view.live_brokers()
    )


def test_lookups_do_not_shorten_the_back_off() -> None:
    stage = play(
        "brokers a b",
        "service a refuses prepare",
        "service b refuses prepare",
        "namespace t/n with 1 bundle by admin",
    )
    asked = len(stage.records)
    for _ in range(20):
        perform(stage, "lookup 00_ff at a")
        perform(stage, "lookup 00_ff at b")
    assert asked == len(stage.records)


def test_an_unload_for_an_operator_is_no_refusal() -> None:
    """A lone broker places the bundle again at once."""
    stage = play("cluster a with 1 bundle")
    perform(stage, "unload 00_ff by a")
    assert ("owned", True) == (
        stage.view.bundles[full_name("00_ff")].phase,
        stage.process("a").agent.handles[full_name("00_ff")].is_open,
    )


def test_placement_is_not_called_without_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    place = FewestBundles.place

    def noting(
        self: FewestBundles,
        view: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        asked.append(len(bundles))
        return place(self, view, bundles, avoid=avoid, at_most=at_most)

    monkeypatch.setattr(FewestBundles, "place", noting)
    play("cluster a b with 2 bundles", "advance 5s", "drain b", "advance 5s")
    assert [2, 1] == asked


def status(stage: Stage) -> str:
    """Return the status of broker a."""
    return stage.view.brokers["a"].status


def test_a_drained_broker_comes_back_without_a_restart() -> None:
    """It first gives everything away, and does not alarm. A broker that does not drain, or stops,
    ignores the order.
    """
    stage = play("brokers a b", "namespace t/n with 4 bundles by admin", "drain a", "undrain b")
    former = stage.view.brokers["a"].incarnation
    assert "draining" == status(stage)
    lines = perform(stage, "undrain a")
    assert [] == [line for line in lines if "raises" in line]
    assert (True, "up") == (stage.view.brokers["a"].incarnation > former, status(stage))
    perform(stage, "namespace t/m with 4 bundles by admin")
    assert 4 == stage.view.held_count(stage.view.brokers["a"].incarnation)
    perform(stage, "drain a")
    assert "draining" == status(stage)
    perform(stage, "leave a")
    assert "left" == status(stage)


# --- maintenance ---


def held(stage: Stage) -> list[int]:
    """Return how many bundles each live broker has, oldest first."""
    return [stage.view.held_count(broker.incarnation) for broker in stage.view.live_brokers()]


def test_a_broker_in_maintenance_gives_its_bundles_away_and_takes_none() -> None:
    """It goes on leading, and says why in each record."""
    stage = play(
        "brokers a b", "namespace t/n with 8 bundles by admin", "maintenance of a for 1h by admin"
    )
    assert [0, 8] == held(stage)
    decoded = [decode(data) for _, data in stage.log.entries]
    transfers = [
        record
        for record in decoded
        if isinstance(record, BundleTransition) and record.source is not None
    ]
    assert {"maintenance/a: new disks"} == {
        record.reason for record in transfers if record.state == "assigning"
    }
    perform(stage, "namespace t/m with 4 bundles by admin")
    assert [0, 12] == held(stage)
    assert stage.process("a").agent.leads


def test_maintenance_survives_a_restart_until_somebody_ends_it() -> None:
    stage = play(
        "brokers a b",
        "maintenance of b for 1h by admin",
        "leave b",
        "start b as b",
        "namespace t/n with 4 bundles by admin",
    )
    assert [4, 0] == held(stage)
    perform(stage, "maintenance of b over by admin")
    perform(stage, "namespace t/m with 4 bundles by admin")
    assert [4, 4] == held(stage)


def test_the_leader_ends_maintenance_at_its_end() -> None:
    """Not before, and once."""
    stage = play("brokers a b", "maintenance of b for 60s by admin", "advance 59s")
    assert ["maintenance/b"] == list(stage.view.policies)
    perform(stage, "advance 2s")
    assert [] == list(stage.view.policies)
    about = [
        record for _, data in stage.log.entries if isinstance(record := decode(data), PolicyRecord)
    ]
    assert ["admin:ops", "a"] == [record.publisher for record in about]


def test_the_leader_removes_controls_that_have_ended() -> None:
    """A freeze without an end stays."""
    stage = play(
        "brokers a b",
        "namespace t/n with 1 bundle by admin",
        "namespace t/m with 1 bundle by admin",
    )
    until_ms = stage.process("a").now().wall_ms + 60_000
    for key, end_ms in (("pause/balancing", until_ms), ("freeze/t/n", until_ms), ("freeze/t/m", 0)):
        stage.ask(
            "a", SetClusterPolicy(policy=key, document=control_document("sale", until_ms=end_ms))
        )
    perform(stage, "advance 59s")
    assert ["freeze/t/m", "freeze/t/n", "pause/balancing"] == sorted(stage.view.policies)
    perform(stage, "advance 2s")
    assert ["freeze/t/m"] == list(stage.view.policies)


def test_the_leader_removes_the_freeze_of_a_deleted_namespace() -> None:
    """Otherwise it would apply to a later namespace of this name."""
    stage = play(
        "brokers a", "namespace t/n with 1 bundle by admin", "namespace t/m with 1 bundle by admin"
    )
    for key in ("freeze/t/n", "freeze/t/m"):
        stage.ask("a", SetClusterPolicy(policy=key, document=control_document("sale")))
    perform(stage, "deleting t/n by admin")
    perform(stage, "unload t/n/00_ff by admin")
    assert ["freeze/t/m", "freeze/t/n"] == sorted(stage.view.policies)
    perform(stage, "delete t/n by admin")
    assert ["freeze/t/m"] == list(stage.view.policies)


def test_bundles_stay_in_maintenance_if_nobody_else_takes_them() -> None:
    stage = play(
        "brokers a b",
        "namespace t/n with 2 bundles by admin",
        "service b refuses prepare",
        "maintenance of a for 1h by admin",
    )
    perform(stage, "advance 60s")
    assert [1, 1] == held(stage)
    perform(stage, "service b is well")
    perform(stage, "advance 60s")
    assert [0, 2] == held(stage)


def test_a_gone_broker_is_removed_after_a_day() -> None:
    """Counted from the start of the leader if that is later."""
    stage = play("brokers a b", "leave b", "snapshot a", "restart a from snapshot")
    stage.now_ms += 24 * 60 * 60 * 1_000 - 3_000
    perform(stage, "advance 2999ms")
    assert ["a", "b"] == sorted(stage.view.brokers)
    perform(stage, "advance 1ms")
    assert ["a"] == sorted(stage.view.brokers)


def test_only_the_leader_removes_gone_brokers() -> None:
    stage = play(
        "timing remove_after_ms 1s", "brokers a b c", "leave c", "hold b", "advance 1400ms"
    )
    assert ["a", "b"] == sorted(stage.view.brokers)
    assert [] == [
        data
        for _, data in stage.hosts["b"].link.in_flight
        if isinstance(decode(data), BrokerRecord)
    ]


def test_a_broker_that_is_back_is_not_removed() -> None:
    stage = play(
        "timing remove_after_ms 5s",
        "brokers a b",
        "leave b",
        "advance 4s",
        "restart b with directory",
        "advance 10s",
    )
    assert ["a", "b"] == sorted(stage.view.brokers)
