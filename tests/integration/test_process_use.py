"""The use of resources by real processes that burn CPU, through psutil."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from equipoise.brokers.load.process_use import ProcessUse
from equipoise.channel.system.clocks import boot_ns

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
BURN = "while True: pass"
BURN_IN_A_GRANDCHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
BURN_HALF_A_SECOND = "import time\nwhile time.process_time() < 0.5: pass"


def now_ms() -> int:
    return boot_ns() // 1_000_000


@pytest.fixture(params=[BURN, BURN_IN_A_GRANDCHILD], ids=["child", "grandchild"])
def burning(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A child that burns CPU, or has a child that does."""
    with subprocess.Popen([sys.executable, "-c", request.param], start_new_session=True) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_descendants_count(burning: subprocess.Popen[bytes]) -> None:
    """CPU and memory, in percent of what the broker may use."""
    alone = psutil.Process().memory_info().rss / (1 << 20)
    use = ProcessUse(broker="a", cpu_cores=0.5)
    assert use.look(at_ms=now_ms()) is None
    give_up_s = time.monotonic() + DEADLINE_S
    while (found := use.look(at_ms=now_ms())) is None or (
        found.cpu.used < 20 and time.monotonic() < give_up_s
    ):
        time.sleep(0.2)
    assert found.cpu.used >= 20
    assert 50 == found.cpu.limit
    assert alone < found.memory.used < found.memory.limit


def test_a_child_that_has_ended_counts() -> None:
    """Although it is gone at the next measurement."""
    use = ProcessUse(broker="a", cpu_cores=1)
    use.look(at_ms=0)
    subprocess.run([sys.executable, "-c", BURN_HALF_A_SECOND], check=True)
    found = use.look(at_ms=1_000)
    assert found is not None
    assert 45 <= found.cpu.used <= 300


def test_two_looks_at_one_moment_are_one() -> None:
    use = ProcessUse(broker="a")
    use.look(at_ms=0)
    found = use.look(at_ms=100)
    assert found is not None
    assert found is use.look(at_ms=100)


def test_limits_are_those_of_the_system() -> None:
    """Without a setting, a broker may use all CPUs and memory that the system allows."""
    use = ProcessUse(broker="a")
    use.look(at_ms=0)
    found = use.look(at_ms=100)
    assert found is not None
    assert 0 < found.cpu.limit <= 100 * len(psutil.Process().cpu_affinity() or ())
    assert 0 < found.memory.limit <= psutil.virtual_memory().total / (1 << 20)


def test_a_network_of_unknown_speed_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as unused, and the log line names the setting for it."""
    monkeypatch.setattr(psutil, "net_if_stats", dict)
    use = ProcessUse(broker="a")
    with caplog.at_level(logging.INFO):
        found = [use.look(at_ms=at_ms, reported_in=1_000) for at_ms in (0, 100, 200)][-1]
    assert found is not None
    assert (8.0, 0.0, 0.0) == (
        found.bandwidth_in.used,
        found.bandwidth_in.limit,
        found.bandwidth_in.percent,
    )
    (line,) = (
        record for record in caplog.records if record.name == "equipoise.brokers.load.process_use"
    )
    assert "reports.nic_speed_gbps" in line.message
