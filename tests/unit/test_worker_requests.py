"""What a worker tells those who ask it for something that the log does not take.

May live here: `brokers.runtime.worker.Worker.request` over a log in memory that has the trouble that a test wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import CreateNamespace
from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime import worker as workers
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import EquipoiseError, LogReplaced, LogStorageFull, LogUnavailable, OutcomeUnknown
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX
from tests.troubled_log import TroubledLog

# Far longer than a test may take: whoever waits for it, fails.
PATIENCE_MS = 600_000

INTENT = CreateNamespace(name="tenant/ns", boundaries=even_boundaries(1))
FULL = LogStorageFull(log="memory:troubled")
AWAY = LogUnavailable(log="memory:troubled", problem="it is locked", in_doubt=False)
LOST = LogReplaced(log="memory:troubled", path="troubled")
SILENT = LogUnavailable(log="memory:troubled", problem="it gave no answer")


def config_in(folder: Path) -> WorkerConfig:
    """The configuration of the only broker."""
    return WorkerConfig(log_url="memory:troubled", data_dir=folder / "a", broker_id="a:1", balance=False)


def with_worker(folder: Path, monkeypatch: pytest.MonkeyPatch, test: Callable[[Worker, TroubledLog], Coroutine[None, None, None]]) -> None:
    """Run a test with a worker that is ready, and its log."""
    log = TroubledLog(name="memory:troubled")
    monkeypatch.setattr(workers, "open_log", lambda _url: log)

    async def run() -> None:
        worker = Worker(config_in(folder), {}, addresses={"http": "http://a:1"})
        await worker.start()
        try:
            await worker.ready(timeout_ms=30_000)
            await test(worker, log)
        finally:
            await worker.abort()

    asyncio.run(run())


@pytest.mark.parametrize("error", [FULL, AWAY], ids=lambda error: type(error).__name__)
def test_a_record_that_was_not_appended_is_told_at_once(error: EquipoiseError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked gets the very error of the log, long before its deadline, and may ask again."""

    async def test(worker: Worker, log: TroubledLog) -> None:
        log.append_error = error
        with pytest.raises(type(error)) as raised:
            await worker.request(INTENT, timeout_ms=PATIENCE_MS)
        assert raised.value is error
        log.append_error = None
        await worker.request(INTENT, timeout_ms=PATIENCE_MS)
        assert ["tenant/ns"] == list(worker.view.namespaces)

    with_worker(tmp_path, monkeypatch, test)


def test_what_is_in_doubt_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can tell whether the record is on the log, only reading tells: here it never came, and the deadline ends it."""

    async def test(worker: Worker, log: TroubledLog) -> None:
        log.keeps_what_is_in_doubt = False
        log.append_error = SILENT
        with pytest.raises(OutcomeUnknown):
            await worker.request(INTENT, timeout_ms=200)

    with_worker(tmp_path, monkeypatch, test)


def test_the_end_of_a_broker_is_told_to_who_asks_and_who_has_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request under way when the log is lost is unknown at once, long before its deadline; a later one gets what ended the broker."""

    async def test(worker: Worker, log: TroubledLog) -> None:
        log.keeps_what_is_in_doubt = False
        log.append_error = SILENT
        pending = asyncio.ensure_future(worker.request(INTENT, timeout_ms=PATIENCE_MS))
        await asyncio.sleep(0)
        log.read_error = LOST
        log.wake()
        with pytest.raises(OutcomeUnknown) as unknown:
            await pending
        assert isinstance(unknown.value.__cause__, WorkerEnded)
        with pytest.raises(WorkerEnded) as ended:
            await worker.request(INTENT, timeout_ms=PATIENCE_MS)
        assert ended.value.__cause__ is LOST

    with_worker(tmp_path, monkeypatch, test)


def test_the_version_goes_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker says on joining which version it is."""

    async def test(worker: Worker, _log: TroubledLog) -> None:
        assert version("equipoise") == worker.view.brokers["a:1"].joined.version

    with_worker(tmp_path, monkeypatch, test)


def test_an_address_that_no_record_holds_is_refused_at_the_start(tmp_path: Path) -> None:
    """Such a worker would be rejected by the channel for ever: it is never made."""
    with pytest.raises(InvalidConfig, match="addresses"):
        Worker(config_in(tmp_path), {}, addresses={"http": "x" * (TEXT_CHARACTERS_MAX + 1)})
