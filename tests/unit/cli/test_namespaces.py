"""`equipoise namespaces` beyond the transcript of moves: owners that are late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import Intent
from equipoise.brokers.operations import moves, on_channel
from equipoise.brokers.operations.access import Access
from equipoise.channel.core import propose
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import Listener, read_on
from equipoise.channel.system.clocks import Deadline
from tests.channels.compacting import reader_at_end
from tests.channels.folding import NAMESPACE
from tests.unit.cli.fabricated import (
    LEFT,
    LEFT_RANGE,
    Actors,
    owned_channel,
    run,
    view_of,
    write,
)
from tests.unit.cli.worlds import ACTORS


def unload(log: str, *arguments: str) -> tuple[str, str, int]:
    """What `namespaces unload` prints, and its exit code."""
    result = run("namespaces", "unload", NAMESPACE, *arguments, log=log)
    return result.stdout, result.stderr, result.exit_code


def test_an_unload_without_another_broker_waits_for_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "PLACED_MS", 10)
    channel = owned_channel()
    for other in "bc":
        channel.die(other)
    url = write(channel.entries, tmp_path)
    with Actors(url):
        told = unload(url, "--bundle", LEFT_RANGE)
    assert (
        f"accepted at offset 12: a has released {LEFT}, and nobody owns it now: it is free\n",
        "",
        0,
    ) == told
    assert "free" == view_of(url).bundles[LEFT].phase
    *_, error, code = unload(url, "--bundle", LEFT_RANGE)
    look = f"look at its present state before you try again: equipoise bundles show {LEFT}"
    assert (f"error: cannot move {LEFT}: it is free, not owned; {look}\n", 1) == (error, code)


def test_a_refusal_is_noted_while_other_bundles_are_requested(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose_once = on_channel.submit

    def submit(
        channel: Access,
        make_record: Callable[[View, propose.Author], AnyRecord],
        *,
        intent: Intent,
        listener: Listener,
    ) -> Folded:
        accepted = propose_once(channel, make_record, intent=intent, listener=listener)
        deadline = Deadline.after(timeout_ms=10_000)
        reader = reader_at_end(channel.log)
        while (
            left := reader.view.bundles[LEFT]
        ).phase != "owned" or left.owner != reader.view.brokers["a"].incarnation:
            channel.log.wait(reader.position, timeout_ms=deadline.remaining_ms())
            read_on(channel.log, reader, deadline=deadline)
        return accepted

    monkeypatch.setattr(on_channel, "submit", submit)
    with ACTORS["brokers give up"](log):
        out, _, code = unload(log)
    assert out.endswith("b could not open it: no disk\n"), out
    assert code == 1
