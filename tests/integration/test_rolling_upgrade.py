"""Upgrade a cluster under load from the previous version to this one, and go back: brokers of both
versions share one log.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from equipoise.brokers.local.local_cluster import LocalCluster
from tests.house.house_rules import ROOT
from tests.load.callers import CallerProcess, Plan, Tally, uneven
from tests.load.cluster import counters, running, settle
from tests.load.stress import verified
from tests.load.verdicts import check_calls

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NAMESPACE = "shop/orders"
BROKERS, BUNDLES = 3, 6
KEYS, CALLS_PER_SECOND = 16, 200.0

# A bundle that nobody hands over would stop its callers for a lease. A call that takes this long
# has failed.
LEASE_MS, GRACE_MS, FAILED_MS = 30_000, 2_000, 10_000

PREVIOUS = ROOT / "tests" / "upgrade" / "previous_version"


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in this repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)


def previous_version() -> str:
    """Return the last release before this commit, or the commit in the file if that is newer."""
    commit = PREVIOUS.read_text().strip()
    release = git("describe", "--tags", "--match=v*", "--abbrev=0", "HEAD^").stdout.decode().strip()
    is_newer = bool(release) and git("merge-base", "--is-ancestor", commit, release).returncode == 0
    return release if is_newer else commit


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """A folder with the code of the previous version."""
    if (
        shutil.which("git") is None
        or git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false"
    ):
        pytest.skip(
            "the previous version is in git's history, and this copy has none; in a shallow clone"
            " run: git fetch --unshallow"
        )
    archive = git("archive", previous_version(), "--", ".", ":!docs", ":!tests")
    assert archive.returncode == 0, archive.stderr
    folder = tmp_path / "previous"
    folder.mkdir()
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder


async def test_brokers_are_upgraded_and_downgraded_under_load(
    previous: Path, tmp_path: Path
) -> None:
    """No call fails, no count is wrong, and each owner gets the state of the one before it, of
    whatever version.
    """
    openings = tmp_path / "openings.jsonl"
    tally, cluster = await replace_all(previous, tmp_path, openings)
    verdict = check_calls(
        [tmp_path / "history.jsonl"], store=tmp_path / "counter.db", evidence=cluster.evidence()
    )
    assert ({}, None) == (verdict.violations, verdict.problem)
    assert verdict.totals["pieces_of_work_in_evidence"] > 0
    assert tally.longest_pause_ms < FAILED_MS
    assert () == verified(cluster.log_url).findings
    assert "views_diverge" not in "".join(
        (folder / "broker.log").read_text() for folder in cluster.directories
    )
    owners = owners_of_bundles(openings)
    assert BUNDLES == len(owners)
    for of_bundle in owners.values():
        assert {(str(previous), str(ROOT)), (str(ROOT), str(previous))} <= set(pairwise(of_bundle))


async def replace_all(previous: Path, folder: Path, openings: Path) -> tuple[Tally, LocalCluster]:
    """Run brokers of the previous version under load, replace each by one of this version, and then
    the other way round.
    """
    settings = counters(
        folder,
        brokers=BROKERS,
        declare_dead=False,
        evidence=True,
        balance="false",
        lease_ms=LEASE_MS,
        grace_ms=GRACE_MS,
    )
    environment = {
        **settings.environment,
        "EQUIPOISE_TEST_OPENINGS": str(openings),
        "PYTHONPATH": str(previous),
    }
    cluster = LocalCluster(
        replace(settings, services=("tests.upgrade.passed_on:PassedOn",), environment=environment)
    )
    streams = uneven(NAMESPACE, keys=KEYS, calls_per_second=CALLS_PER_SECOND)
    plan = Plan(brokers=cluster.addresses, streams=streams, history=folder / "history.jsonl")
    async with (
        running(cluster, NAMESPACE, bundles=BUNDLES) as (table, _),
        CallerProcess(plan) as callers,
    ):
        for version in (ROOT, previous):
            environment["PYTHONPATH"] = str(version)
            for number in range(BROKERS):
                await asyncio.to_thread(cluster.restart, number)
                await settle(cluster, table, NAMESPACE)
        await callers.stop()
    return callers.tally, cluster


def owners_of_bundles(openings: Path) -> dict[str, list[str]]:
    """Return the versions of all owners of each bundle, in order. Each must have received the list
    of those before it.
    """
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for opening in sorted(
        map(json.loads, openings.read_text().splitlines()), key=lambda each: each["token"]
    ):
        assert (owners[opening["bundle"]], None) == (opening["owners"], opening["problem"])
        owners[opening["bundle"]].append(opening["owner"])
    return owners
