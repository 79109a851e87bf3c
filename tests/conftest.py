"""Configure pytest: shared fixtures and time limits for all tests."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import Final

import pytest
from hypothesis import settings

from equipoise.channel.system import free_ports
from tests.channels.log_fixtures import (
    leave_out_all_but_some_on_kafka,
    log_kind,
    log_place,
    log_url,
    run_on_kinds,
)
from tests.kafka.fixtures import (
    kafka,
    own_kafka,
    own_kafka_of_module,
    three_kafkas,
    three_kafkas_of_module,
)
from tests.planted import Watch
from tests.spread import GroupScheduling, hurry, start_slow_ones_first

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

pytest_plugins = ["equipoise.pytest"]

# On a shared machine the time of one example means nothing. pytest's timeout stops an example that
# hangs.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# Spark's JVMs live for minutes at most. Little optimisation, no garbage collector threads and no
# check of the bytecode of Spark's jars save half of their start time.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions"
    " -XX:-BytecodeVerificationRemote",
)

# Workers that draw from one range sometimes start two servers on the same port.
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_part = len(free_ports.PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
free_ports.PORTS = free_ports.PORTS[_worker * _part : (_worker + 1) * _part]


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """Make SIGINT raise `KeyboardInterrupt` here and in child processes, even if pytest was started
    with SIGINT ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on a loop of its own, which its fixture `new_loop`
    may make.
    """
    test, given = pyfuncitem.obj, pyfuncitem.funcargs
    if not inspect.iscoroutinefunction(test):
        return None
    # The fixture returns it.
    with asyncio.Runner(loop_factory=given.get("new_loop")) as runner:  # type: ignore[arg-type]
        runner.run(test(**{name: given[name] for name in inspect.signature(test).parameters}))
    return True


WATCH: Final = Watch()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Watch the log lines of the test. Tests may have removed the handler before."""
    logging.getLogger().addHandler(WATCH)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test whose log lines contain a planted secret."""
    report = yield
    leaks = WATCH.take()
    if leaks and report.passed:
        report.outcome = "failed"
        report.longrepr = f"log lines contain planted secrets: {leaks}"
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """See `run_on_kinds`."""
    run_on_kinds(metafunc)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """See `leave_out_all_but_some_on_kafka`, `hurry` and `start_slow_ones_first`."""
    leave_out_all_but_some_on_kafka(config, items)
    hurry(items)
    start_slow_ones_first(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling | None:
    """See `GroupScheduling`. It replaces xdist's own grouping by scope."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadscope" else None
