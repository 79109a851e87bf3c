"""Administer a cluster by the library of Pulsar's Go client. It sends null for each field that is
not given.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from tests.load.cluster import READY_MS, running
from tests.pulsar.programs import Language, command, require

# Building the program for the first time takes minutes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

TOOL_S = 60.0
CUTS = ["0x00000000", "0x40000000", "0x80000000", "0xffffffff"]


async def test_the_library_administers_a_cluster(tmp_path: Path) -> None:
    """Tenants, namespaces, policies, groups, isolation, failure domains, bundles. Refusals are
    Pulsar's.
    """
    require(Language.GO)
    program = command(Language.GO)
    settings = ClusterSettings(
        directory=tmp_path / "cluster",
        brokers=2,
        services=("pulsar",),
        pulsar_port=0,
        settings={"balance": "false"},
        ready_ms=READY_MS,
    )
    cluster = LocalCluster(settings)
    async with running(cluster, "acme/orders", bundles=1):
        words = [*program, "administer", "--url", f"http://{cluster.broker_ids[0]}"]
        ended = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, check=False, timeout=TOOL_S
        )
    assert (0, "") == (ended.returncode, ended.stderr), ended.stdout
    answers = dict(line.split(": ", 1) for line in ended.stdout.splitlines())
    refusals = {
        name: answers.pop(name).split(" reason: ")[0]
        for name in ("create tenant again", "get tenant again")
    }
    assert {"create tenant again": "code: 409", "get tenant again": "code: 404"} == refusals
    assert {
        "get tenant": {"adminRoles": ["digger"], "allowedClusters": ["equipoise"]},
        "list namespaces": ["gophers/burrows"],
        "get policies": {"boundaries": CUTS[::2] + CUTS[3:], "numBundles": 2},
        "get publish rate": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1},
        "get anti-affinity": "burrowers",
        "list anti-affinity": ["gophers/burrows"],
        "get isolation": {
            "namespaces": ["gophers/.*"],
            "primary": sorted(cluster.broker_ids)[:1],
            "secondary": [],
            "auto_failover_policy": {
                "policy_type": "min_available",
                "parameters": {"min_limit": "1", "usage_threshold": "100"},
            },
        },
        "list failure domains": 1,
        "get bundles": CUTS,
    } == {name: json.loads(answer) for name, answer in answers.items() if answer != '"done"'}
    assert 26 == len(ended.stdout.splitlines())
