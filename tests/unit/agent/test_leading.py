"""Leading: how much is done at once, by which broker, and when another steps in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from equipoise.brokers.agent import leading
from equipoise.brokers.agent.requests import SetClusterPolicy
from equipoise.brokers.balancing.placement import FewestBundles
from equipoise.brokers.balancing.policies import control_document
from equipoise.brokers.balancing.quarantine import is_quarantined
from equipoise.channel.core.codec import decode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.records import BundleTransition
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


@pytest.mark.parametrize("free", ["refused", "in deletion"])
def test_free_bundles_that_nobody_takes_delay_no_others(free: str) -> None:
    """Even if they come first by name, and fill a step."""
    refuses = ("service a refuses prepare", "service b refuses prepare")
    stage = play(
        "brokers a b",
        *(refuses if free == "refused" else ("hold a",)),
        f"namespace t/d with {PLACEMENTS_MAX + 1} bundles by admin",
        *(
            ("service a is well", "service b is well")
            if free == "refused"
            else ("deleting t/d by admin", "release a")
        ),
        "namespace t/n with 2 bundles by admin",
    )
    assert {"free"} == {bundle.phase for bundle in stage.view.bundles_of("t/d")}
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


def test_the_leader_removes_controls_that_have_ended() -> None:
    """A freeze without an end lasts as long as its namespace. It would apply to a later namespace
    of this name.
    """
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
    left = []
    for command in (
        "advance 59s",
        "advance 2s",
        "deleting t/m by admin",
        "unload t/m/00_ff by admin",
        "delete t/m by admin",
    ):
        perform(stage, command)
        left.append(len(stage.view.policies))
    assert [3, 1, 1, 1, 0] == left


def test_no_step_looks_at_bundles_that_no_broker_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be tens of thousands, for days. The first broker that serves them gets them."""
    stage = play("program of a serves t/m", "brokers a", "namespace t/n with 64 bundles by admin")
    looked: list[str] = []

    def noted(view: View, bundle: str) -> bool:
        looked.append(bundle)
        return is_quarantined(view, bundle)

    monkeypatch.setattr(leading, "is_quarantined", noted)
    for command in ("namespace t/m with 1 bundle by admin", "advance 10s", "lookup 00_04 at a"):
        perform(stage, command)
    assert {full_name("t/m/00_ff")} == set(looked)
    perform(stage, "brokers b")
    assert {"owned"} == {bundle.phase for bundle in stage.view.bundles.values()}
