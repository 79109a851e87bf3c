"""What a worker answers to requests whose records the log does not take."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import CreateNamespace, Transfer
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import (
    EquipoiseError,
    LogReplaced,
    LogStorageFull,
    LogUnavailable,
    OutcomeUnknown,
)
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX
from tests.channels.folding import joined
from tests.unit.runtime.worker_bench import PATIENCE_MS, Benches, benches

__all__ = ["benches"]

# Far longer than a test may take.
LONG_MS = 600_000

INTENT = CreateNamespace(name="tenant/ns", boundaries=even_boundaries(1))
FULL = LogStorageFull(log="memory:troubled")
AWAY = LogUnavailable(log="memory:troubled", problem="it is locked", in_doubt=False)
LOST = LogReplaced(log="memory:troubled", path="troubled")
SILENT = LogUnavailable(log="memory:troubled", problem="it gave no answer")


@pytest.mark.parametrize("error", [FULL, AWAY], ids=lambda error: type(error).__name__)
async def test_an_error_of_the_log_answers_a_request_at_once(
    error: EquipoiseError, benches: Benches
) -> None:
    """The request can be made again."""
    async with benches.started() as bench:
        await bench.worker.ready(timeout_ms=PATIENCE_MS)
        bench.log.append_error = error
        with pytest.raises(type(error)) as raised:
            await bench.worker.request(INTENT, timeout_ms=LONG_MS)
        assert raised.value is error
        bench.log.append_error = None
        await bench.worker.request(INTENT, timeout_ms=LONG_MS)
        assert ["tenant/ns"] == list(bench.worker.view.namespaces)


async def test_the_end_of_a_broker_answers_all_requests(benches: Benches) -> None:
    """A pending request is unknown at once. A later one raises the end of the broker."""
    async with benches.started() as bench:
        await bench.worker.ready(timeout_ms=PATIENCE_MS)
        bench.log.keeps_what_is_in_doubt = False
        bench.log.append_error = SILENT
        pending = asyncio.ensure_future(bench.worker.request(INTENT, timeout_ms=LONG_MS))
        await asyncio.sleep(0)
        bench.log.read_error = LOST
        bench.log.wake()
        with pytest.raises(OutcomeUnknown) as unknown:
            await pending
        assert isinstance(unknown.value.__cause__, WorkerEnded)
        with pytest.raises(WorkerEnded) as ended:
            await bench.worker.request(INTENT, timeout_ms=LONG_MS)
        assert ended.value.__cause__ is LOST


async def test_a_transfer_follows_a_destination_that_joins_again(benches: Benches) -> None:
    """The worker reads of the new incarnation only after its first proposal."""
    async with benches.started() as bench:
        await bench.serve()
        view = bench.worker.view
        bench.writer.append([encode(joined("b", view, instance_id="first"))], timeout_ms=0)
        await bench.until(lambda: "b" in view.brokers)
        former = view.brokers["b"].incarnation
        again = joined("b", view, instance_id="second", replaces="first")
        bench.log.gate.clear()
        bench.log.at_gate.clear()
        (bundle,) = view.bundles
        pending = asyncio.ensure_future(
            bench.worker.request(
                Transfer(bundle=bundle, destination="b", reason="test"), timeout_ms=PATIENCE_MS
            )
        )
        assert await asyncio.to_thread(bench.log.at_gate.wait, PATIENCE_MS / 1_000)
        bench.writer.append([encode(again)], timeout_ms=0)
        bench.log.gate.set()
        await pending
        owner = view.bundles[bundle].owner
        assert owner is not None
        assert (view.brokers["b"].incarnation, True) == (owner, owner > former)


async def test_a_broker_publishes_its_version(benches: Benches) -> None:
    async with benches.started() as bench:
        await bench.worker.ready(timeout_ms=PATIENCE_MS)
        assert version("equipoise") == bench.worker.view.brokers["a"].joined.version


def test_an_address_that_no_record_can_carry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="addresses"):
        Worker(
            WorkerConfig(log_url="memory:x", data_dir=tmp_path),
            {},
            addresses={"http": "x" * (TEXT_CHARACTERS_MAX + 1)},
        )
