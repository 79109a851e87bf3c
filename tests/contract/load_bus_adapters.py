"""Every log that has a `LoadBus`, for tests/contract/test_load_bus_contract.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise.channel.log.open_log import open_log
from tests.kafka.fixtures import Kafka


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One kind of load bus.

    `url_in` is the URL of a new log beside which it is, given a folder and what fixtures there are.
    """

    id: str
    url_in: Callable[[Path, pytest.FixtureRequest], str]
    is_slow: bool = False


def embedded_url(folder: Path) -> str:
    url = f"sqlite:{folder}/log.db?synchronous=normal"
    open_log(url).close()
    return url


def topic_url(request: pytest.FixtureRequest) -> str:
    kafka = request.getfixturevalue("kafka")
    assert isinstance(kafka, Kafka)
    return f"kafka://{kafka.address}/{kafka.topic('loads')}"


ADAPTERS = (
    Adapter(id="memory", url_in=lambda folder, _: f"memory:{folder}"),
    Adapter(id="files", url_in=lambda folder, _: embedded_url(folder)),
    Adapter(
        id="kafka",
        url_in=lambda _, request: topic_url(request),
        is_slow=True,
    ),
)
