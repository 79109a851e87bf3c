"""The addresses of brokers: no limit applies to them, and each is called."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.brokers.runtime.loops import addresses
from equipoise.brokers.runtime.loops.addresses import PeerAddresses, call_next_address, resolve
from equipoise.brokers.security.limits import of_host, of_role
from tests.unit.http.cluster import Broker, cluster
from tests.unit.security.signing import SETTINGS
from tests.waiting import until

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


def unreachable(broker: Broker) -> float:
    return broker.sample("address_unreachable", whose="next")


@pytest.mark.parametrize("settings", [{}, SETTINGS], ids=["open", "authenticated"])
async def test_each_broker_is_called_by_the_one_before_it(
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It reports an address at which nobody answers, until the broker is gone."""
    calls: list[str] = []

    async def found_at(url: str, *args: object, **kwargs: object) -> str | None:
        found = await found_before(url, *args, **kwargs)  # type: ignore[arg-type]
        calls.append(url)
        return found

    found_before = addresses._found_at  # noqa: SLF001
    monkeypatch.setattr(addresses, "_found_at", found_at)
    monkeypatch.setattr(addresses, "_CALL_S", 0.01)
    async with cluster(tmp_path, brokers=3, **settings) as made:
        oldest, second, youngest = made.brokers
        calling = [asyncio.create_task(call_next_address(each.worker)) for each in made.brokers]
        asked = {f"{each.url}/health" for each in made.brokers}
        await until(lambda: asked <= set(calls), "each broker was called")
        assert [0, 0, 0] == [unreachable(each) for each in made.brokers]
        await second.shut()
        await until(lambda: unreachable(oldest) == 1, "the broker before it reports it")
        assert 0 == unreachable(youngest)
        (line,) = (each for each in caplog.messages if "cannot reach a broker" in each)
        assert second.url in line
        await second.worker.stop()
        await until(lambda: unreachable(oldest) == 0, "it has left")
        for task in calling:
            task.cancel()
        await asyncio.gather(*calling, return_exceptions=True)
