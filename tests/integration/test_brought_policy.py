"""A policy of 30 lines in a package of its own: installed, tried in the laboratory, and run in a
cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.local.local_cluster import LocalCluster
from tests.house.house_rules import ROOT
from tests.integration.test_controls import Operator
from tests.load.cluster import counters

pytestmark = pytest.mark.integration

PACKAGE = ROOT / "tests/examples/fewest_shedder"
NAMESPACE = "acme/even"
SOON = "balancing.shed_interval_ms=200", "balancing.rest_ms=0", "reports.interval_min_ms=200"


def installed(folder: Path) -> dict[str, str]:
    """Install the package into a folder, and return an environment that has it."""
    uv = Path(sys.executable).with_name("uv")
    options = ["--offline", "--no-build-isolation", "--no-deps", "--quiet", "--target"]
    subprocess.run([uv, "pip", "install", *options, folder, PACKAGE], check=True)
    return {"PYTHONPATH": str(folder)}


def equipoise(environment: dict[str, str], *arguments: str) -> str:
    """Return what a command prints where the package is installed."""
    command = [sys.executable, "-m", "equipoise.brokers.cli", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, check=True, text=True, stdout=subprocess.PIPE).stdout


def test_a_policy_of_another_package_runs_in_the_laboratory_and_in_a_cluster(
    tmp_path: Path,
) -> None:
    environment = installed(tmp_path / "site")
    tried = equipoise(
        environment,
        *("lab", "run", "broker-added", "--policy", "FewestShedder", "--set"),
        *("fewest.difference_max=2", "--brokers", "3", "--bundles", "30", "--for", "5m"),
        *("--every", "5", "--json"),
    )
    assert 0 < json.loads(tried)["moves"]

    settings = counters(tmp_path / "cluster", brokers=2)
    settings = replace(settings, environment={**settings.environment, **environment})
    with LocalCluster(settings) as cluster:
        operator, (first, second) = Operator(cluster.log_url), cluster.broker_ids
        operator.does("namespaces", "create", NAMESPACE, "--bundles", "8")
        operator.does("brokers", "maintenance", "start", second, "--reason", "new disks")
        assert {first: 8} == operator.owned(NAMESPACE)
        changes = "balancing.shedder=FewestShedder", "fewest.difference_max=2", *SOON
        equipoise(environment, "balancing", "set", *changes, "--log", cluster.log_url)
        operator.does("brokers", "maintenance", "end", second)
        operator.waits(lambda _: {first: 5, second: 3} == operator.owned(NAMESPACE), "five here")
        decided = operator.does("decisions", "--json")
        assert "FewestShedder" in decided
        assert f"{first} has 4 bundles more than {second}" in decided
