"""The log of a test that does not care what keeps it; tests/conftest.py makes the fixtures known.

May live here: which kinds of log such a test runs on. Without the option that is SQLite, and, for tests marked `on_every_log`,
Kafka too; with `EQUIPOISE_TEST_LOG=kafka` (or `sqlite`) it is that kind alone, for all of them.

* `log_url`: a log for the brokers of one test.
* `log_place`: one that the test may take away from them.
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
    """The kind that the option asks for; None if it is not given. Raises `pytest.UsageError` if there is no such kind."""
    given = os.environ.get(OPTION)
    try:
        return LogKind(given) if given else None
    except ValueError as error:
        raise pytest.UsageError(f"{OPTION} is one of {', '.join(LogKind)}: {error}") from error


def run_on_kinds(metafunc: pytest.Metafunc) -> None:
    """Have a test that takes some log run on the kind that is asked for, or on each."""
    if _PARAMETER in metafunc.fixturenames:
        chosen = chosen_kind()
        metafunc.parametrize(_PARAMETER, list(LogKind) if chosen is None else [chosen], indirect=True, ids=str)


def leave_out_all_but_some_on_kafka(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unless a kind is asked for, keep of the tests on Kafka only those that are marked so: each of its leases takes 15 s."""
    if chosen_kind() is not None:
        return
    left_out = [item for item in items if kind_of(item) is LogKind.KAFKA and item.get_closest_marker(ON_EVERY_LOG) is None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def kind_of(item: pytest.Item) -> LogKind | None:
    """On which kind of log a test runs; None if it does not take some log."""
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    kind = given.get(_PARAMETER)
    return kind if isinstance(kind, LogKind) else None


@pytest.fixture
def log_kind(request: pytest.FixtureRequest) -> LogKind:
    """What keeps the log of this test."""
    return LogKind(request.param)


@pytest.fixture
def log_url(log_kind: LogKind, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log that is this test's alone, beside its other files if it is one."""
    if log_kind is LogKind.SQLITE:
        return LogFile(path=tmp_path / "channel.db").url
    kafka = request.getfixturevalue("kafka")
    assert isinstance(kafka, Kafka)
    return f"kafka://{kafka.address}/{kafka.topic(request.node.name)}"


@pytest.fixture
def log_place(log_kind: LogKind, request: pytest.FixtureRequest, tmp_path: Path) -> LogPlace:
    """The same, and the test may take it away."""
    if log_kind is LogKind.SQLITE:
        return LogFile(path=tmp_path / "channel.db")
    own_kafka = request.getfixturevalue("own_kafka")
    assert isinstance(own_kafka, OwnKafka)
    return LogTopic(cluster=own_kafka.cluster, topic=own_kafka.topic(request.node.name))
