"""Costs that services declare, in two programs: the balancer evens them out by the capacities of
the programs, and brings none above its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from equipoise import Bundle, BundleLoad, Deadline, Equipoise, Ownership, Peer, Service
from equipoise.brokers.decision_log import last_outcome_and_stay
from tests.unit.http.cluster import until

pytestmark = pytest.mark.integration

NAMESPACE = "llm/conversations"


class Models(Service):
    """Computes 100 tokens/s for each bundle, however many calls that are."""

    def __init__(self) -> None:
        self.bundles = set[str]()
        self.most = 0

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.bundles.add(ownership.bundle.name)
        self.most = max(self.most, len(self.bundles))

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        self.bundles.discard(bundle.name)
        return None

    def load(self) -> Mapping[str, BundleLoad]:
        return {name: BundleLoad(cost=100, unit="tokens/s") for name in self.bundles}


def program(log_url: str, models: Models, capacity: float) -> Equipoise:
    return Equipoise(
        log_url,
        {NAMESPACE: models},
        cluster="models",
        capacities={"tokens/s": capacity},
        balance_interval_ms=100,
    )


async def test_a_program_takes_what_it_has_capacity_for() -> None:
    """Ten bundles take more than both have. The second would have less than its share with two of
    them, and cannot take three.
    """
    log_url, one, two = f"memory:{uuid.uuid4()}", Models(), Models()
    async with program(log_url, one, 600) as first:
        await first.create_namespace(NAMESPACE, bundles=10)
        await until(lambda: len(one.bundles) == 10)
        async with program(log_url, two, 250):
            await until(lambda: len(two.bundles) == 2)

            def told() -> str:
                _, stay = last_outcome_and_stay(log_url, sorted(one.bundles), [first.broker_id])
                return stay or ""

            await until(lambda: "has 200 of 250 tokens/s, and 300 with it (capacities)" in told())
    assert (2, 10) == (two.most, one.most)
