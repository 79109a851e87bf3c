"""The logs that tests take away from brokers are away, and come back."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.core.log import Log
from equipoise.channel.log.open_log import open_log
from tests.channels.log_fixtures import OPTION, chosen_kind
from tests.load.log_places import LogPlace, settled_ms

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "hanging"])
def test_nobody_appends_to_a_log_that_is_away(log_place: LogPlace, stopped: bool) -> None:
    """While it is away an append fails, and once it is back the same handle appends, behind what stood there before."""

    async def story(log: Log) -> None:
        (before,) = log.append([b"before"], timeout_ms=settled_ms(log_place.url))
        async with log_place.away(stopped=stopped):
            with pytest.raises(LogUnavailable):
                log.append([b"meanwhile"], timeout_ms=500)
        (after,) = await asyncio.to_thread(log.append, [b"after"], timeout_ms=settled_ms(log_place.url))
        assert before < after

    with closing(open_log(log_place.url)) as log:
        asyncio.run(story(log))


def test_an_unknown_kind_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever misspells the kind of log is told which there are, and runs no test on another one."""
    monkeypatch.setenv(OPTION, "postgres")
    with pytest.raises(pytest.UsageError, match="EQUIPOISE_TEST_LOG is one of sqlite, kafka"):
        chosen_kind()


def test_without_the_option_no_kind_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is empty asks for nothing, as one that is not set."""
    monkeypatch.setenv(OPTION, "")
    assert None is chosen_kind()
