"""The addresses of brokers, to which no limit applies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.runtime.loops.addresses import PeerAddresses, resolve
from equipoise.brokers.security.limits import of_host, of_role
from tests.unit.http.cluster import cluster
from tests.unit.security.signing import SETTINGS

pytestmark = pytest.mark.integration


async def test_no_limit_applies_to_the_hosts_of_live_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, brokers=2, **SETTINGS) as made:
        worker = made.brokers[0].worker
        addresses = {
            "http": "http://b1.example:8080",
            "pulsar": "pulsar://[2001:db8::7]:6650",
            "other": "http://[",
            "name": "none",
        }
        monkeypatch.setattr(worker, "profile", replace(worker.profile, addresses=addresses))
        asked: list[str] = []

        async def found(host: str) -> Sequence[str]:
            asked.append(host)
            if asked.count("b1.example") == 1 and host == "b1.example":
                raise OSError("no such name, for now")
            return {"b1.example": ["10.0.0.7", "10.0.0.8"]}.get(host, [host])

        peers = PeerAddresses(worker, resolve=found)
        await peers.look()
        known = {of_role("broker"), of_host("127.0.0.1"), of_host("2001:db8::7")}
        assert known == worker.access.limits.unlimited
        await peers.look()
        assert known | {of_host("10.0.0.7"), of_host("10.0.0.8")} == worker.access.limits.unlimited
        count = len(asked)
        await peers.look()
        assert count == len(asked), "a name is resolved once for each incarnation"
        monkeypatch.setattr(worker, "profile", replace(worker.profile, addresses={}))
        await peers.look()
        assert {of_role("broker"), of_host("127.0.0.1")} == worker.access.limits.unlimited


async def test_the_system_resolves_addresses() -> None:
    assert ["127.0.0.1"] == await resolve("127.0.0.1")
    assert ["::1"] == await resolve("::1")
