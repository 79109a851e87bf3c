"""A worker whose log is truncated before it reads on, its callers and its listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from equipoise.brokers.balancing.splitting.split_points import SPECIFIED_POSITIONS_DIVIDE
from equipoise.brokers.http.assignment import AssignmentFeed
from equipoise.brokers.operations.in_worker import Operations
from equipoise.brokers.operations.moves import split
from equipoise.channel.core import propose
from equipoise.channel.core.errors import OutcomeUnknown
from equipoise.channel.core.propose import Author
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.system.clocks import Deadline
from equipoise.compaction.copying import begin_above, empty_target
from tests.channels.carried import soon
from tests.channels.folding import channel_with
from tests.unit.runtime.worker_bench import NAMESPACE, PATIENCE_MS, Bench, Benches, benches

__all__ = ["benches"]


def unload(bench: Bench) -> Callable[[Author], AnyRecord]:
    """Return an unload of the only bundle by an admin."""
    (bundle,) = bench.worker.view.bundles_of(NAMESPACE)
    return lambda author: propose.unload(author, bundle, reason="operator")


@pytest.mark.parametrize("changed", ["a bundle", "the namespace"])
async def test_a_resync_wakes_the_followers_of_a_namespace(changed: str, benches: Benches) -> None:
    """The namespace has changed at the offset of the unread record."""
    async with benches.started() as bench:
        await bench.serve()
        view = bench.worker.view
        feed = AssignmentFeed(bench.worker.listen, broker="a")
        before = feed.offset_of(view, NAMESPACE)
        (bundle,) = view.bundles_of(NAMESPACE)
        policies = partial(
            propose.set_namespace_policies, view=view, name=NAMESPACE, policies={"limit": 1}
        )
        with feed.follower(NAMESPACE) as follower:
            await bench.cut_off(unload(bench) if changed == "a bundle" else policies)
            assert await follower.wait(timeout_ms=PATIENCE_MS)
            assert [bundle.name] * (changed == "a bundle") == follower.take()
            assert feed.offset_of(bench.worker.view, NAMESPACE) > before
        feed.close()


async def test_a_move_whose_end_was_truncated_is_unknown(benches: Benches) -> None:
    async with benches.started() as bench:
        await bench.serve()
        (bundle,) = bench.worker.view.bundles_of(NAMESPACE)
        port = Operations(bench.worker).port(Deadline.after(timeout_ms=PATIENCE_MS))
        splitting = asyncio.ensure_future(
            split(port, bundle.name, SPECIFIED_POSITIONS_DIVIDE, (1 << 31,))
        )
        await bench.until(lambda: bench.worker.view.bundles[bundle.name].phase == "splitting")
        now = bench.worker.view.bundles[bundle.name]
        await bench.cut_off(lambda author: propose.cancel(author, now, reason="too long"))
        with pytest.raises(OutcomeUnknown, match="truncated"):
            await splitting


async def test_a_worker_on_an_empty_log_resyncs_into_a_copy(
    benches: Benches, caplog: pytest.LogCaptureFixture
) -> None:
    """It was started on the new log before the channel was copied there."""
    bench = Bench(benches.folder)
    bench.log.append_error = bench.away
    async with asyncio.timeout(60), benches.started(bench):
        view = channel_with(bundles=4).view
        view.cluster = bench.worker.config.cluster
        view.go_on_above(1_000, level=view.level, level_last=view.level_last)
        begin_above(
            bench.writer, empty_target(bench.writer, deadline=soon()), view, deadline=soon()
        )
        await bench.until(lambda: bench.worker.view.base == 1_000)
        bench.log.append_error = None
        await bench.worker.ready(timeout_ms=PATIENCE_MS)
        assert 4 == len(bench.worker.view.bundles)
        assert (1_001, True) == (bench.worker.view.genesis, min(bench.worker.view.live) > 1_000)
    assert [] == [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
