"""The logs that tests take away from brokers."""

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
def test_a_log_that_was_taken_away_comes_back(log_place: LogPlace, stopped: bool) -> None:
    """Meanwhile appends fail. Afterwards the same handle appends behind the earlier records."""

    async def story(log: Log) -> None:
        (before,) = log.append([b"before"], timeout_ms=settled_ms(log_place.url))
        async with log_place.away(stopped=stopped):
            with pytest.raises(LogUnavailable):
                log.append([b"meanwhile"], timeout_ms=500)
        (after,) = await asyncio.to_thread(
            log.append, [b"after"], timeout_ms=settled_ms(log_place.url)
        )
        assert before < after

    with closing(open_log(log_place.url)) as log:
        asyncio.run(story(log))


def test_an_unknown_kind_of_log_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTION, "postgres")
    with pytest.raises(pytest.UsageError, match="EQUIPOISE_TEST_LOG is one of sqlite, kafka"):
        chosen_kind()


def test_an_empty_option_asks_for_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTION, "")
    assert None is chosen_kind()
