"""Handovers of any size between two runners of services."""

from __future__ import annotations

import logging

import pytest

from equipoise.brokers.agent.effects import Close
from equipoise.brokers.agent.events import Closed
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.runtime.service_runner import FetchSpilled
from equipoise.brokers.runtime.state_stream import Note, Spilled
from equipoise.channel.core.errors import PeerError
from tests.channels.folding import channel_with
from tests.unit.runtime.service_bench import BUNDLE, Bench, settled

LARGE = b"x" * 16_385
CHANNEL = channel_with("source", "destination")


async def closed(bench: Bench, leaves: object) -> bytes | None:
    """Close a bundle whose service returns `leaves`. Return what the record carries."""
    handle = bench.open(1)
    await settled()
    bench.service.leaves = leaves
    bench.runner.carry_out(
        Close(handle=handle, moved_to=CHANNEL.broker("destination"), deadline_ms=0)
    )
    await settled()
    last = bench.events[-1]
    assert isinstance(last, Closed)
    return last.handover


async def opened(
    bench: Bench, handover: bytes | None, source: str | None = "source"
) -> tuple[bytes | None, str | None]:
    """Open a bundle with this record. Return what the service gets, and the reason for a lost
    handover.
    """
    bench.open(2, handover=handover, source=None if source is None else CHANNEL.broker(source))
    await settled()
    (ownership,) = bench.runner.ownerships.values()
    return bench.service.given, ownership.handover_problem


def fetching_from(source: Bench) -> FetchSpilled:
    """Return a function that fetches from the runner of another broker."""

    async def fetch(_source: Peer, bundle: str, digest: str) -> bytes | None:
        pieces = await source.runner.fetch_released(bundle, digest, offset=None)
        return None if pieces is None else b"".join([piece async for piece in pieces])

    return fetch


async def test_a_handover_of_any_size_reaches_the_next_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that is too large for a record is fetched from the source. So is one that looks like the
    note in its place.
    """
    caplog.set_level(logging.INFO)
    note = Note(digest="x").encode()
    for leaves in (None, b"", b"state", LARGE, note):
        source = Bench()
        recorded = await closed(source, leaves)
        assert recorded is None or len(recorded) <= 16_384
        destination = Bench(fetch_spilled=fetching_from(source))
        assert (leaves, None) == await opened(destination, recorded)
        # The destination died, and it comes back.
        assert (leaves, None) == await opened(source, recorded)
    assert f"handover of {BUNDLE} kept for its next owner: 16385 bytes" in caplog.messages


async def test_the_next_owner_gets_the_reason_of_a_lost_handover(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a death there is no reason."""

    async def refuse(_source: Peer, bundle: str, _digest: str) -> bytes | None:
        raise PeerError(f"broker source does not hand over the state of {bundle}: it answers 404")

    async def another(_source: Peer, _bundle: str, _digest: str) -> bytes | None:
        return b"of another bundle"

    async def nothing(_source: Peer, _bundle: str, _digest: str) -> bytes | None:
        return None

    spilled = await closed(Bench(), LARGE)
    for recorded, destination, source, problem in (
        (
            await closed(Bench(serves_peers=False), LARGE),
            Bench(),
            "source",
            "it has 16385 bytes, a record takes 16384, and its broker",
        ),
        (await closed(Bench(), "text"), Bench(), "source", "close returned str, not bytes"),
        (spilled, Bench(fetch_spilled=refuse), "source", "it answers 404"),
        (spilled, Bench(fetch_spilled=another), "source", "keeps it no more"),
        (spilled, Bench(fetch_spilled=nothing), "source", "keeps it no more"),
        (spilled, Bench(), None, "its former owner is gone"),
        (spilled[:-1] if spilled else None, Bench(), "source", "cannot be read"),
    ):
        given, reason = await opened(destination, recorded, source)
        assert (None, True) == (given, problem in (reason or "")), (problem, reason)
    assert (None, None) == await opened(Bench(), None, None)
    assert f"handover of {BUNDLE} lost: it has 16385 bytes" in caplog.text
    assert f"handover of {BUNDLE} not received: " in caplog.text


async def test_a_failed_close_is_a_lost_handover() -> None:
    async def failing() -> None:
        raise RuntimeError("no disk")

    source = Bench()
    source.service.closing = failing
    assert (None, "its close failed: RuntimeError: no disk") == await opened(
        Bench(), await closed(source, b"state")
    )


async def test_kept_handovers_are_bounded() -> None:
    """Fetched ones make room. Nothing waits for expired ones."""
    kept = Spilled(bytes_max=10, kept_ms=60_000)
    first, second = kept.keep(b"123456"), None
    assert first is not None
    assert kept.keep(b"12345") is None
    assert kept.keep(b"123456") == first
    assert b"123456" == kept.get(first)
    second = kept.keep(b"12345")
    assert second is not None
    assert (None, b"12345") == (kept.get(first), kept.get(second))
    await kept.all_fetched(timeout_ms=60_000)
    expiring = Spilled(kept_ms=1)
    digest = expiring.keep(b"state")
    assert digest is not None
    await expiring.all_fetched(timeout_ms=60_000)
    assert expiring.get(digest) is None
