"""The operator's controls on real brokers, by the command line: maintenance, pause, freeze, and a
saved plan.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.brokers.operations.access import opened, until
from equipoise.channel.core.view import View
from tests.load.cluster import counters
from tests.unit.cli.fabricated import run, view_of

pytestmark = pytest.mark.integration

CALM, BUSY = "acme/calm", "acme/busy"
BUNDLES = 4
MERGED = 2  # Two brokers stop here, because each leaves the last merge to the other.
PATIENCE_MS = 30_000

MERGES_AT_ONCE = (
    "balancing.merging=true",
    "balancing.split_interval_ms=200",
    "balancing.shed_interval_ms=200",
    "balancing.rest_ms=0",
    "reports.sample_interval_ms=200",
    "reports.interval_min_ms=200",
    "merge.hits_threshold=0",
    "merge.bundles_min=1",
)


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody with a command line, for the cluster of a log."""

    log: str

    def does(self, *command: str) -> str:
        """Return what a command prints. It must succeed."""
        result = run(*command, log=self.log)
        assert 0 == result.exit_code, (command, result.output)
        return result.stdout

    def cannot(self, *command: str) -> str:
        """Return why a command is refused."""
        result = run(*command, log=self.log)
        assert 1 == result.exit_code, (command, result.output)
        return result.stderr

    def waits(self, condition: Callable[[View], bool], what: str) -> None:
        """Wait until the channel is as it should be."""
        with opened(self.log, timeout_ms=PATIENCE_MS) as access:
            until(access, lambda view: condition(view) or None, what=what)

    def owned(self, *namespaces: str) -> Mapping[str, int]:
        """Return how many bundles of these namespaces each broker owns, without those that own
        none.
        """
        view = view_of(self.log)
        return Counter(
            view.live[bundle.owner].broker
            for name in namespaces
            for bundle in view.bundles_of(name)
            if bundle.owner is not None
        )


def bundles(view: View) -> tuple[int, int]:
    """Return how many bundles the frozen namespace has, and how many the other one."""
    return len(view.bundles_of(CALM)), len(view.bundles_of(BUSY))


def all_owned(view: View) -> bool:
    return bundles(view) == (BUNDLES, BUNDLES) and not any(
        bundle.phase != "owned" for bundle in view.bundles.values()
    )


def test_an_operator_stops_the_balancer_and_carries_out_a_plan(tmp_path: Path) -> None:
    """Merges show what the balancer may do, because bundles without load merge. A pin makes a plan
    that moves bundles.
    """
    with LocalCluster(counters(tmp_path, brokers=2)) as cluster:
        operator, (first, second) = Operator(cluster.log_url), cluster.broker_ids
        for namespace in (CALM, BUSY):
            operator.does("namespaces", "create", namespace, "--bundles", str(BUNDLES))
        operator.waits(all_owned, "owners of all bundles")
        assert {first: BUNDLES, second: BUNDLES} == operator.owned(CALM, BUSY)

        # Maintenance.
        operator.does("brokers", "maintenance", "start", second, "--reason", "new disks")
        assert {first: 2 * BUNDLES} == operator.owned(CALM, BUSY)
        assert "new disks" in operator.does("brokers", "maintenance", "list")

        # A pause stops all merges, and a freeze those of its namespace.
        operator.does("namespaces", "freeze", CALM, "--reason", "a sale")
        operator.does("balancing", "pause", "--reason", "upgrade", "--for", "1h")
        operator.does("balancing", "set", *MERGES_AT_ONCE)
        operator.waits(
            lambda _: "balancing is paused: upgrade" in operator.does("decisions"),
            "the decision to pause",
        )
        assert (BUNDLES, BUNDLES) == bundles(view_of(operator.log))
        operator.does("balancing", "resume")
        operator.waits(
            lambda view: bundles(view) == (BUNDLES, MERGED),
            "the merges of the namespace that is not frozen",
        )
        operator.does("namespaces", "unfreeze", CALM)
        operator.waits(lambda view: bundles(view) == (MERGED, MERGED), "the merges of the other")

        # A saved plan.
        operator.does("balancing", "pause", "--reason", "a plan", "--for", "1h")
        operator.does("brokers", "maintenance", "end", second)
        operator.does("policies", "pin", "calm", "--namespace", CALM, "--brokers", second)
        plan = str(tmp_path / "plan.json")
        assert MERGED == len(json.loads(operator.does("plan", "--output", plan, "--json"))["moves"])
        operator.does("policies", "set-failure-domain", "later", "--brokers", first)
        assert "policy failure-domain/later was changed" in operator.cannot("plan", "--apply", plan)
        assert {first: 2 * MERGED} == operator.owned(CALM, BUSY)
        operator.does("plan", "--output", plan)
        operator.does("plan", "--apply", plan)
        assert ({second: MERGED}, {first: MERGED}) == (operator.owned(CALM), operator.owned(BUSY))
        assert "cannot apply the plan" in operator.cannot("plan", "--apply", plan)
