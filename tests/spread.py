"""Group tests for xdist's workers, start slow tests first, and limit the fast run."""

from __future__ import annotations

import os
import sys
from typing import Final

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

FAST: Final = "EQUIPOISE_TEST_FAST"
"""The variable that requests the fast run. `make test-fast` sets it."""

EXAMPLES_MAX: Final = 10
"""Examples per property in the fast run."""

_SLOW: Final = "slow"
_SPARK: Final = "tests/integration/spark/"
# Half of the Spark tests. Each half shares a session, which takes a gigabyte of memory and 10 s to
# start.
_FIRST_OF_SPARK: Final = tuple(f"{_SPARK}{name}" for name in ("test_archive.py", "test_pulsar.py"))
_SPARKS_COMMANDS: Final = "[spark "
# Files with several slow tests that share nothing expensive.
_APART: Final = tuple(
    f"tests/integration/test_{name}.py::"
    for name in (
        "compaction_crashes",
        "copied_channel",
        "demo",
        "interrupted_commands",
        "pulsar_clients",
        "stress",
        "up",
    )
)
# Where hypothesis keeps a property's settings. It has no public way to reduce the number of
# examples from outside.
_OF_A_PROPERTY: Final = "_hypothesis_internal_use_settings"
_LEFT_OUT: Final = ("os.fork", "os.posix_spawn", "os.system", "subprocess.Popen")


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Give each xdist worker one group of tests after another. Groups start in the order of their
    first tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Return the group of a test: half of the Spark tests, one file (which starts Kafka once),
        or the single test.
        """
        if nodeid.startswith(_SPARK) or _SPARKS_COMMANDS in nodeid:
            return f"{_SPARK}{nodeid.startswith(_FIRST_OF_SPARK)}"
        return nodeid if nodeid.startswith(_APART) else nodeid.partition("::")[0]


def start_slow_ones_first(items: list[pytest.Item]) -> None:
    """Move slow tests to the front, and Spark tests before them, because they take longest."""
    items.sort(
        key=lambda item: (
            not item.nodeid.startswith(_SPARK),
            item.get_closest_marker(_SLOW) is None,
        )
    )


def hurry(items: list[pytest.Item]) -> None:
    """Apply the fast run if requested: few examples per property, and skip tests that start a
    process.
    """
    if not os.environ.get(FAST):
        return
    for item in items:
        test: object = getattr(item, "obj", None)
        own = getattr(test, _OF_A_PROPERTY, None)
        if own is not None:
            setattr(
                test,
                _OF_A_PROPERTY,
                settings(own, max_examples=min(EXAMPLES_MAX, own.max_examples)),
            )
    sys.addaudithook(_skip)


def _skip(event: str, _: tuple[object, ...]) -> None:
    if event in _LEFT_OUT:
        pytest.skip("the fast run starts no process")
