"""A deadline tells what is left of it, and ends what waits."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.system.clocks import Deadline


def past() -> Deadline:
    """A deadline that came long ago."""
    return Deadline(started_ns=time.monotonic_ns() - 60_000_000_000, timeout_ms=7)


def test_the_last_millisecond_counts_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a millisecond is rounded up, so that nobody who waits for what remains wakes too
    early.
    """
    monkeypatch.setattr(
        "equipoise.channel.system.clocks.time", SimpleNamespace(monotonic_ns=lambda: 7_999_999)
    )
    assert [60_000, 59_999] == [
        Deadline(started_ns=started_ns, timeout_ms=60_000).remaining_ms()
        for started_ns in (7_000_000, 6_999_999)
    ]


def test_a_check_names_what_did_not_happen() -> None:
    """A deadline that has come raises a typed error with what was waited for; one that has not lets
    pass.
    """
    Deadline.after(timeout_ms=60_000).check("reading")
    with pytest.raises(DeadlineExceeded, match="reading did not happen within 7 ms") as caught:
        past().check("reading")
    assert ("reading", 7) == (caught.value.what, caught.value.waited_ms)


def test_a_wait_that_ends_in_time_has_its_result() -> None:
    """What is awaited returns through the wait, even at a deadline that has come if it is there
    already.
    """

    async def scenario() -> tuple[int, int]:
        there: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        there.set_result(2)
        return await Deadline.after(timeout_ms=60_000).wait(
            asyncio.sleep(0, 1), what="it"
        ), await past().wait(there, what="it")

    assert (1, 2) == asyncio.run(scenario())


def test_a_timeout_of_what_is_awaited_is_its_own() -> None:
    """A socket's timeout within a minute's wait is no minute that has passed: it is raised as it
    is.
    """

    async def flush() -> None:
        raise TimeoutError(110, "Connection timed out")

    async def scenario() -> None:
        await Deadline.after(timeout_ms=60_000).wait(flush(), what="the flush")

    with pytest.raises(TimeoutError, match="Connection timed out"):
        asyncio.run(scenario())


def test_a_wait_that_does_not_end_is_cancelled() -> None:
    """At the deadline what is awaited is cancelled, and the error says what it was."""

    async def scenario() -> bool:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with pytest.raises(DeadlineExceeded, match="the thing"):
            await Deadline.after(timeout_ms=1).wait(never, what="the thing")
        return never.cancelled()

    assert asyncio.run(scenario())
