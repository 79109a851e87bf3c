"""Provide the log for tests that run on any kind of log; tests/conftest.py registers the fixtures.

* `log_url`: a log for the brokers of one test.
* `log_place`: a log that the test may make unavailable.

By default tests run on SQLite, and those marked `on_every_log` on Kafka too.
`EQUIPOISE_TEST_LOG=kafka` (or `sqlite`) runs all of them on that kind only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from tests.kafka.fixtures import Kafka, OwnKafka
from tests.load.log_places import LogFile, LogKind, LogPlace, LogTopic

OPTION: Final = "EQUIPOISE_TEST_LOG"
ON_EVERY_LOG: Final = "on_every_log"

_PARAMETER: Final = "log_kind"


def chosen_kind() -> LogKind | None:
    """Return the kind that the variable requests; None if it is not set. Raises `pytest.UsageError`
    for an unknown kind.
    """
    given = os.environ.get(OPTION)
    try:
        return LogKind(given) if given else None
    except ValueError as error:
        raise pytest.UsageError(f"{OPTION} is one of {', '.join(LogKind)}: {error}") from error


def run_on_kinds(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes a log on the requested kind, or on every kind."""
    if _PARAMETER in metafunc.fixturenames:
        chosen = chosen_kind()
        metafunc.parametrize(
            _PARAMETER, list(LogKind) if chosen is None else [chosen], indirect=True, ids=str
        )


def leave_out_all_but_some_on_kafka(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a requested kind, deselect Kafka tests that are not marked `on_every_log`: each lease
    on Kafka takes 15 s.
    """
    if chosen_kind() is not None:
        return
    left_out = [
        item
        for item in items
        if kind_of(item) is LogKind.KAFKA and item.get_closest_marker(ON_EVERY_LOG) is None
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def kind_of(item: pytest.Item) -> LogKind | None:
    """Return the kind of log that a test runs on; None if it takes no log."""
    given = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    kind = given.get(_PARAMETER)
    return kind if isinstance(kind, LogKind) else None


@pytest.fixture
def log_kind(request: pytest.FixtureRequest) -> LogKind:
    """Return the kind of this test's log."""
    return LogKind(request.param)


@pytest.fixture
def log_url(log_kind: LogKind, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a log for this test only. A log file is next to the test's other files."""
    if log_kind is LogKind.SQLITE:
        return LogFile(path=tmp_path / "channel.db").url
    kafka = request.getfixturevalue("kafka")
    assert isinstance(kafka, Kafka)
    return f"kafka://{kafka.address}/{kafka.topic(request.node.name)}"


@pytest.fixture
def log_place(log_kind: LogKind, request: pytest.FixtureRequest, tmp_path: Path) -> LogPlace:
    """Return a log for this test only that the test may make unavailable."""
    if log_kind is LogKind.SQLITE:
        return LogFile(path=tmp_path / "channel.db")
    own_kafka = request.getfixturevalue("own_kafka")
    assert isinstance(own_kafka, OwnKafka)
    return LogTopic(cluster=own_kafka.cluster, topic=own_kafka.topic(request.node.name))
