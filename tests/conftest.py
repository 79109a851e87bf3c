"""What pytest must know before it looks at any test: fixtures that tests in several folders share, and what some of them run on."""

from __future__ import annotations

import pytest

from tests.kafka.fixtures import kafka, own_kafka, own_kafka_of_module, three_kafkas, three_kafkas_of_module
from tests.log_fixtures import leave_out_all_but_some_on_kafka, log_kind, log_place, log_url, run_on_kinds

__all__ = [
    "kafka",
    "log_kind",
    "log_place",
    "log_url",
    "own_kafka",
    "own_kafka_of_module",
    "three_kafkas",
    "three_kafkas_of_module",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """See `run_on_kinds`."""
    run_on_kinds(metafunc)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """See `leave_out_all_but_some_on_kafka`."""
    leave_out_all_but_some_on_kafka(config, items)
