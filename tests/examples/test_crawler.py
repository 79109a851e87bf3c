"""A test of the program in equipoise/examples/crawler.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from equipoise import SqliteStore, Tasks
from equipoise.examples import crawler
from equipoise.pytest import MakeCluster

SITES = [f"site-{number}.example" for number in range(12)]


def test_each_site_has_one_visitor_and_another_after_its_death(
    equipoise_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    visited = Counter[str]()

    async def fetch(site: str) -> bytes:
        visited[site] += 1
        return b"page"

    monkeypatch.setattr(crawler, "fetch", fetch)
    monkeypatch.setattr(crawler, "SITES", SITES)
    monkeypatch.setattr(crawler, "pages", SqliteStore(tmp_path / "pages.db"))
    cluster = equipoise_cluster(lambda: Tasks(crawler.NAMESPACE, crawler.crawl), patience_ms=100)
    cluster.create(crawler.NAMESPACE, bundles=6)
    assert dict.fromkeys(SITES, 1) == visited
    lost = {
        site
        for site in SITES
        if cluster.owner(cluster.bundle(crawler.NAMESPACE, site)) == "broker-2"
    }
    cluster.kill("broker-2")
    cluster.advance(10_000)
    assert {site: 2 if site in lost else 1 for site in SITES} == visited
