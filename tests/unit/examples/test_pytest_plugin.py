"""The pytest plugin, in sessions of pytest as its users start them."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from equipoise import Cluster
from equipoise.pytest import MakeCluster
from stock import Stock

pytest_plugins = ["equipoise.pytest"]

@pytest.fixture
def cluster(equipoise_cluster: MakeCluster) -> Cluster[Stock]:
    cluster = equipoise_cluster(Stock, brokers=2)
    cluster.create("shop/stock", bundles=1)
    return cluster
"""

STOCK = """
import asyncio
from collections import Counter
from equipoise import Service

class Stock(Service):
    def __init__(self):
        self.sold = Counter()

    async def open(self, ownership, handover):
        self.sold["tea"] = int(handover or b"0")

    async def close(self, bundle, moved_to, deadline):
        return str(self.sold.pop("tea", 0)).encode()

    async def sell(self, ownership):
        with ownership.begin("tea"):
            sold = self.sold["tea"]
            await asyncio.sleep(0)
            self.sold["tea"] = sold + 1
            return self.sold["tea"]
"""

MOVES = """
from equipoise import Peer
from equipoise.errors import OwnershipLost
from stock import Stock

async def sell(cluster):
    broker = "broker-1"
    while True:
        served = await cluster.host(broker).route("shop/stock", "tea", timeout_ms=5_000)
        if isinstance(served, Peer):
            broker = served.broker
            continue
        try:
            return await cluster.service(broker).sell(served)
        except OwnershipLost:
            continue

def test_no_sale_is_lost(equipoise_moves):
    for cluster in equipoise_moves(Stock, "shop/stock", "tea"):
        cluster.create("shop/stock", bundles=1)
        assert [1, 2, 3] == [cluster.call(sell(cluster)) for _ in range(3)]
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a project with a service, and with the plugin in its conftest.py. Its sessions have no
    other plugin.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\npythonpath = .")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(stock=STOCK)
    return pytester


def test_a_cluster_runs_until_its_test_ends(project: pytest.Pytester) -> None:
    """Also with warnings as errors, and where conftest.py imports the types of the plugin before
    pytest sees it.
    """
    project.makepyfile("""
        import pytest
        from equipoise.errors import CallerError

        seen = []

        def test_one(cluster):
            assert cluster.owner(cluster.bundle("shop/stock", "tea")) == "broker-1"
            seen.append(cluster)

        def test_two(cluster):
            assert cluster is not seen[0]
            with pytest.raises(CallerError, match="it has ended"):
                seen[0].advance(1)
    """)
    result = project.runpytest_subprocess("-W", "error")
    result.assert_outcomes(passed=2)
    assert "equipoise: the channel" not in result.stdout.str()


@pytest.mark.parametrize("place", ["test", "fixture"])
def test_a_failure_shows_the_story_of_the_channel(project: pytest.Pytester, place: str) -> None:
    """Without renewals, and as a person reads it."""
    project.makepyfile(f"""
        import pytest

        def check(cluster):
            cluster.give(cluster.bundle("shop/stock", "tea"), "broker-2")
            cluster.advance(10_000)
            assert False

        @pytest.fixture
        def checked(cluster):
            check(cluster)

        def test_it({"checked" if place == "fixture" else "cluster"}):
            {"pass" if place == "fixture" else "check(cluster)"}
    """)
    result = project.runpytest_subprocess()
    result.assert_outcomes(**({"errors": 1} if place == "fixture" else {"failed": 1}))
    result.stdout.fnmatch_lines(
        [
            "*- equipoise: the channel -*",
            " * join * broker-1 * by broker-1*",
            " * create * shop/stock  1 bundle *",
            " * transfer * broker-1 -> broker-2 * by *",
            " * reason: given by the test",
            " * handover * broker-1 -> broker-2, token *",
        ]
    )
    result.stdout.no_fnmatch_line("* renew *")


def test_a_long_story_ends_with_the_newest_records(project: pytest.Pytester) -> None:
    project.makepyfile("""
        def test_it(cluster):
            bundle = cluster.bundle("shop/stock", "tea")
            for _ in range(100):
                cluster.give(bundle, "broker-2")
                cluster.give(bundle, "broker-1")
            assert False
    """)
    result = project.runpytest_subprocess()
    result.stdout.fnmatch_lines(["*- equipoise: the channel -*", "... * earlier lines"])
    assert sum(" handover " in line for line in result.outlines) < 100


def test_a_right_service_passes_with_a_move_at_each_await(project: pytest.Pytester) -> None:
    project.makepyfile(MOVES)
    project.runpytest_subprocess("-W", "error").assert_outcomes(passed=1)


def test_a_wrong_service_fails_with_the_place_and_a_command_that_repeats_it(
    project: pytest.Pytester,
) -> None:
    """The service does not check its ownership, so the former owner counts a sale that nobody
    sees.
    """
    project.makepyfile(stock=STOCK.replace('with ownership.begin("tea"):', "if True:"))
    project.makepyfile(MOVES)
    result = project.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- equipoise: move 1 -*",
            (
                "shop/stock/0x* moved from broker-1 to broker-2 while this code waited at"
                " stock.py:18 in Stock.sell:"
            ),
            '  File "*", line *, in sell',
            "    return await cluster.service(broker).sell(served)",
            '  File "*stock.py", line 18, in Stock.sell',
            "    await asyncio.sleep(0)",
            "Repeat only this run:",
            "  pytest *::test_no_sale_is_lost --equipoise-move=1",
            "*- equipoise: the channel -*",
            " * reason: moved at an await point",
        ]
    )
    (command,) = (line.split() for line in result.outlines if line.startswith("  pytest "))
    again = project.runpytest_subprocess(*command[1:])
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*- equipoise: move 1 -*"])


def test_a_test_module_may_load_the_plugin(project: pytest.Pytester) -> None:
    """Without the option, which pytest takes from the conftest.py at the root only."""
    project.makeconftest("")
    project.makepyfile('pytest_plugins = ["equipoise.pytest"]\n' + MOVES)
    project.runpytest_subprocess("-W", "error").assert_outcomes(passed=1)


def test_one_move_can_be_asked_for(project: pytest.Pytester) -> None:
    """A point that the scenario does not have is an error, and so is a number below 1."""
    project.makepyfile(MOVES)
    project.runpytest_subprocess("--equipoise-move=3").assert_outcomes(passed=1)
    beyond = project.runpytest_subprocess("--equipoise-move=4")
    beyond.assert_outcomes(failed=1)
    beyond.stdout.fnmatch_lines(
        ["*CallerError: the scenario has not reached its await point 4: it has 3.*"]
    )
    refused = project.runpytest_subprocess("--equipoise-move=0")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(
        ["*--equipoise-move: '0' is no await point; they are counted from 1*"]
    )


def test_a_scenario_that_fails_without_a_move_says_so(project: pytest.Pytester) -> None:
    project.makepyfile(MOVES.replace("[1, 2, 3]", "[1, 2]"))
    result = project.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*- equipoise: no move -*", "No bundle moved in this run before the test failed."]
    )


def test_a_failure_after_the_scenario_shows_no_move(project: pytest.Pytester) -> None:
    project.makepyfile(MOVES + "    assert False\n")
    result = project.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*equipoise: *move*")


def test_a_session_imports_nothing_that_its_tests_do_not_need(project: pytest.Pytester) -> None:
    project.makeconftest("pytest_plugins = ['equipoise.pytest']")
    project.makepyfile("""
        import sys

        def test_it():
            assert "equipoise.pytest" in sys.modules
            assert not {"aiohttp.web", "equipoise.brokers.testing", "equipoise.brokers.local", "pydantic"} & sys.modules.keys()
    """)  # noqa: E501
    project.runpytest_subprocess().assert_outcomes(passed=1)


@pytest.mark.integration
def test_processes_run_until_their_test_ends(project: pytest.Pytester) -> None:
    """Three brokers by default. A failed test shows what happened to each, and its log."""
    project.makepyfile("""
        import os

        def test_it(equipoise_processes):
            cluster = equipoise_processes("stock:Stock", environment={"PYTHONPATH": os.getcwd()}, settings={"balance": "false"})
            assert len(cluster.broker_ids) == 3
            print("PIDS", *(cluster.pid(number) for number in range(3)))
            cluster.kill(1)
            assert False
    """)  # noqa: E501
    result = project.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- equipoise: what happened to the brokers -*",
            "127.0.0.1:* started as process *",
            "127.0.0.1:* is a member, incarnation *",
            "*- equipoise: */equipoise-1/broker-0/broker.log -*",
            '{*"event"*}',
            "*- equipoise: */equipoise-1/broker-2/broker.log -*",
        ]
    )
    (pids,) = (line.split()[1:] for line in result.outlines if line.startswith("PIDS "))
    for pid in map(int, pids):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
