"""`equipoise plan`: the page and the document of a round, their input, and refusals."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.balancing.policies import (
    control_document,
    quarantine_document,
    quarantine_key,
)
from equipoise.brokers.balancing.saved_plans import SavedPlan, facts_of
from equipoise.brokers.cli.moments import local_time
from equipoise.brokers.decision_log import DecisionLog, newest_decisions
from equipoise.brokers.load.bus import LoadBus
from equipoise.channel.core import propose
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.log.open_log import log_path
from equipoise.shedder.plan import Budget, Move
from tests.channels.folding import Channel
from tests.decisions import idle, outcome, shed, with_plan
from tests.load.loaded import loaded, sample, uneven_channel
from tests.unit.cli.fabricated import run, view_of, write
from tests.unit.http.cluster import PATIENCE_MS, Broker, started, until

UNEVEN = {"a": 90.0, "b": 35.0, "c": 5.0}
FAR_MS = 2_000_000_000_000
TRANSFER = ("--shedder", "TransferShedder")


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Three brokers, the first of which has most of the load."""
    return loaded(uneven_channel(), tmp_path, UNEVEN)


def isolated(channel: Channel) -> Channel:
    """The channel with a policy that keeps its namespace at a and b."""
    document = {"namespaces.0": "tenant/ns", "primary.0": "a", "primary.1": "b"}
    channel.accept(
        propose.set_policy(channel.admin(), channel.view, name="isolation/first", document=document)
    )
    return channel


TRANSFERRED = """\

brokers
broker  capacity  bundles  use           MB/s          messages/s
a       100       6 -> 3   90 % -> 64 %  21.0 -> 15.0  21,000 -> 15,000
b       100       2        35 %          3.0           3,000
c       100       0 -> 3   5 % -> 31 %   0.0 -> 6.0    0 -> 6,000
deviation 35 % -> 15 % around the mean use of 43 %

moves
bundle                           from  to  MB/s  messages/s
tenant/ns/0x00000000_0x20000000  a     c   1.0   1,000
tenant/ns/0x20000000_0x40000000  a     c   2.0   2,000
tenant/ns/0x40000000_0x60000000  a     c   3.0   3,000

why
transfer: use is 90 % at a and 5 % at c

why not more
b: use is 35 % (mean: 43 %)
c: use is 5 % (mean: 43 %)
tenant/ns/0x60000000_0x80000000: its traffic is 4 MB/s, but a should give only 3.92 MB/s more

3 bundles would move, 6.0 MB/s and 6,000 messages/s, 25 % of all throughput; the deviation would fall from 35 % to 15 %.
"""  # noqa: E501


def test_a_plan_is_printed_on_one_page(log: str) -> None:
    result = run("plan", *TRANSFER, log=log)
    preface, page = result.stdout.split("\n\nbrokers", 1)
    assert (TRANSFERRED, 0) == (f"\nbrokers{page}", result.exit_code)
    first, *rest = preface.split("\n")
    assert first.startswith("TransferShedder, at 2")
    assert f", offset {view_of(log).offset}; leader: a; plan " in first
    assert "settings (defaults): balancing.shedder TransferShedder (BalancedShedder)" == rest[0]
    assert rest[1].startswith("planned as if the load had been uneven")
    assert "there is no recorded decision about moves" == rest[2]


def test_a_plan_changes_nothing(log: str) -> None:
    before = view_of(log)
    run("plan", log=log)
    assert (before.offset, before.digest()) == (view_of(log).offset, view_of(log).digest())
    assert [] == list(newest_decisions(log, 1))


def test_a_plan_by_cost_shows_costs(log: str) -> None:
    result = run("plan", log=log)
    assert "broker  capacity  bundles  use           cost" in result.stdout
    assert "of the mean cost per capacity" in result.stdout
    assert "as if the load" not in result.stdout
    assert "all settings are the defaults" in result.stdout


def test_a_move_without_a_destination_shows_the_choice_of_placement(log: str) -> None:
    result = run(
        "plan", "--shedder", "ThresholdShedder", "--set", "threshold.bytes_min=0", "--json", log=log
    )
    first, *_ = json.loads(result.stdout)["moves"]
    assert ("a", True, "c") == (first["source"], first["placed"], first["destination"])
    assert (
        "  c (by placement)  "
        in run(
            "plan", "--shedder", "ThresholdShedder", "--set", "threshold.bytes_min=0", log=log
        ).stdout
    )


def test_a_plan_as_json_has_all_of_the_page(log: str) -> None:
    document = json.loads(run("plan", *TRANSFER, "--json", log=log).stdout)
    assert ("TransferShedder", "use", "a") == (
        document["shedder"],
        document["measure"],
        document["leader"],
    )
    assert {
        "balancing.shedder": {"value": "TransferShedder", "default": "BalancedShedder"}
    } == document["settings"]
    assert ["a", "b", "c"] == [broker["broker"] for broker in document["brokers"]]
    assert [(6, 3), (2, 2), (0, 3)] == [
        (broker["before"]["bundles"], broker["after"]["bundles"]) for broker in document["brokers"]
    ]
    assert [1_000_000.0, 2_000_000.0, 3_000_000.0] == [
        move["bytes_per_second"] for move in document["moves"]
    ]
    assert {
        "bytes_per_second": 6_000_000.0,
        "messages_per_second": 6_000.0,
        "share": 0.25,
    } == document["moved"]
    assert document["after"]["deviation"] < document["before"]["deviation"]
    assert "3 bundles would move" in document["conclusion"]
    assert {"b", "c", "tenant/ns/0x60000000_0x80000000"} == {
        stay["subject"] for stay in document["stays"]
    }


def test_moves_that_policies_forbid_are_shown(tmp_path: Path) -> None:
    log = loaded(isolated(uneven_channel()), tmp_path, UNEVEN)
    result = run("plan", *TRANSFER, "--set", "transfer.with_policies=true", log=log)
    assert "kept by policies\n6 bundles (" in result.stdout
    assert (
        " and 3 more) not to c: isolation/first gives this namespace other brokers\n"
        in result.stdout
    )
    assert "Nothing would move: " in result.stdout
    (rule,) = json.loads(run("plan", *TRANSFER, "--json", log=log).stdout)["forbidden"]
    assert (6, ["c"]) == (len(rule["bundles"]), rule["brokers"])


def test_brokers_that_take_no_part_are_shown_with_the_reason(tmp_path: Path) -> None:
    channel = uneven_channel(brokers="abcde")
    log = loaded(channel, tmp_path, UNEVEN)
    LoadBus(log).publish(sample(channel, "d", 50.0, age_ms=60_000))
    LoadBus(log).publish(sample(channel, "e", float("nan")))
    result = run("plan", *TRANSFER, log=log)
    assert (
        "* d takes no part: its last load report was made 60 s ago (limit: 15 s)\n" in result.stdout
    )
    assert (
        "* e takes no part: its load report is not plausible and does not count: its "
        in result.stdout
    )
    assert "3 bundles would move" in result.stdout


def test_the_last_decision_of_the_leader_is_shown(log: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    decisions = DecisionLog(log)
    decisions.write(shed(now_ms - 240_000))
    assert (
        "last decision: 4 m ago by a (TransferShedder): 2 moves: a is used by 90 %, b by 10 % (0)\n"
        in run("plan", log=log).stdout
    )
    decisions.write(idle(now_ms - 125_000))
    assert (
        "last decision: 2 m ago by a (TransferShedder): Skip, HitCount: the load is even\n"
        in run("plan", log=log).stdout
    )
    assert "HitCount" == json.loads(run("plan", "--json", log=log).stdout)["last_decision"]["cause"]


def test_a_plan_says_what_the_budget_blocks_and_until_when(tmp_path: Path) -> None:
    """The last decision of the leader has what is used of it. That of a former leader does not
    count.
    """
    log, now_ms = (
        loaded(uneven_channel("aaaabb"), tmp_path, {"a": 90.0, "b": 35.0}),
        time.time_ns() // 1_000_000,
    )
    assert "1 bundle would move" in run("plan", log=log).stdout
    used = Budget(most=1.0, used=1.0)
    DecisionLog(log).write(with_plan(idle(now_ms, broker="b"), budget=used))
    assert "1 bundle would move" in run("plan", log=log).stdout
    DecisionLog(log).write(with_plan(idle(now_ms), budget=used))
    page = run("plan", log=log).stdout
    assert "Nothing would move" in page
    assert (
        "the budget of moved load, 100 % of all load per hour (balanced.churn_max), is used up; the"
        " next bundle may move in " in page
    )
    assert json.loads(run("plan", "--json", log=log).stdout)["budget"]["blocks"]


def test_the_last_outcome_is_shown(log: str) -> None:
    DecisionLog(log).write(outcome(time.time_ns() // 1_000_000 - 125_000))
    loads = (
        "a had 160 % of the mean load, 120 % was predicted, 125 % was measured; "
        "b had 40 % of the mean load, 80 % was predicted, not measured: t/n/7 moved, too"
    )
    assert (
        f"last outcome: 2 m ago: the moves took 12 ms at the median; {loads}\n"
        in run("plan", log=log).stdout
    )
    DecisionLog(log).write(
        replace(
            with_plan(outcome(time.time_ns() // 1_000_000 - 65_000), moves=()),
            brokers=(),
            durations_ms={},
        )
    )
    assert "last outcome: 1 m ago: the moves were not done\n" in run("plan", log=log).stdout


def test_a_program_gets_predictions_and_the_last_outcome(log: str) -> None:
    DecisionLog(log).write(outcome())
    document = json.loads(run("plan", "--json", log=log).stdout)
    assert 1.25 == document["last_outcome"]["brokers"][0]["measured"]
    assert all(
        move["predicted"]["source"][0] > move["predicted"]["source"][1]
        for move in document["moves"]
    )
    assert document["moves"]


def test_a_plan_does_not_need_readable_decisions(log: str) -> None:
    with closing(sqlite3.connect(log_path(log) or "")) as connection:
        connection.execute("CREATE TABLE decisions (id INTEGER)")
        connection.commit()
    result = run("plan", *TRANSFER, log=log)
    assert ("there is no recorded decision about moves" in result.stdout, 0) == (
        True,
        result.exit_code,
    )


def test_a_plan_says_that_balancing_is_off(log: str) -> None:
    result = run("plan", *TRANSFER, "--set", "balancing.shedding=false", log=log)
    assert result.stdout.endswith(" But the balancer moves nothing: balancing.shedding is false.\n")


def test_controls_are_shown_with_their_reasons(tmp_path: Path) -> None:
    """Also in the lists of brokers, namespaces and bundles, which otherwise have no column for
    them.
    """
    channel = uneven_channel()
    held = min(channel.view.bundles)
    for key, document in (
        ("freeze/tenant/ns", control_document("a sale")),
        ("maintenance/c", control_document("new disks")),
        (
            quarantine_key(held),
            quarantine_document(
                "2 owners in a row died", hold_ms=60_000, until_ms=FAR_MS, evidence=()
            ),
        ),
        ("pause/balancing", control_document("upgrade", until_ms=FAR_MS)),
    ):
        channel.accept(
            propose.set_policy(channel.admin(), channel.view, name=key, document=document)
        )
    log = loaded(channel, tmp_path, UNEVEN)
    page = run("plan", log=log).stdout
    stopped = [
        "tenant/ns is frozen: a sale",
        "c is in maintenance: new disks",
        f"{held} is in quarantine until {local_time(FAR_MS)}: 2 owners in a row died",
    ]
    assert (
        f"balancing is paused until {local_time(FAR_MS)}: upgrade\n{chr(10).join(stopped)}\n"
        in page
    )
    assert stopped == [
        line for line in run("balancing", "show", log=log).stdout.splitlines() if line in stopped
    ]
    assert 4 == len(json.loads(run("plan", "--json", log=log).stdout)["controls"])
    for command, lines in (
        ("brokers", ["lease ms  maintenance", "3000      new disks"]),
        ("namespaces", ["frozen", "a sale"]),
    ):
        header, *rows = run(command, "list", log=log).stdout.splitlines()
        assert [True, True] == [header.endswith(lines[0]), rows[-1].endswith(lines[1])]
    header, first, *_ = run("bundles", "list", log=log).stdout.splitlines()
    assert [True, True] == [
        header.endswith("frozen  quarantine"),
        first.endswith("a sale  2 owners in a row died"),
    ]


def test_even_load_moves_nothing(tmp_path: Path) -> None:
    log = loaded(uneven_channel("abcabc"), tmp_path, {"a": 40.0, "b": 41.0, "c": 40.0})
    result = run("plan", *TRANSFER, log=log)
    assert "\nmoves\n" not in result.stdout
    assert (
        "\nNothing would move: the load is even: the deviation is 0 % around a mean of 40 %"
        in result.stdout
    )


def test_a_plan_needs_fresh_load_reports(tmp_path: Path) -> None:
    channel = uneven_channel()
    log = write(channel.entries, tmp_path)
    result = run("plan", *TRANSFER, log=log)
    assert (1, "") == (result.exit_code, result.stdout)
    assert "no broker has a fresh load report" in result.stderr
    assert "read what the brokers log about their reports" in result.stderr
    LoadBus(log).publish(sample(channel, "a", 90.0, age_ms=100_000))
    document = json.loads(run("plan", "--json", log=log).stderr)
    assert "NoFreshLoad" == document["error"]
    assert "likewise 2 others" in document["problem"]


def test_a_plan_needs_brokers(tmp_path: Path) -> None:
    channel = Channel()
    channel.genesis()
    result = run("plan", log=write(channel.entries, tmp_path))
    assert (1, True) == (result.exit_code, "no broker is alive; start one" in result.stderr)


def test_a_plan_uses_a_broker_conf(log: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "loadBalancerLoadSheddingStrategy=org.apache.pulsar.broker.loadbalance.impl.OverloadShedder\n"
    )
    document = json.loads(run("plan", "--broker-conf", str(file), "--json", log=log).stdout)
    assert "OverloadShedder" == document["shedder"]
    assert (
        "AvgShedder"
        == json.loads(
            run(
                "plan", "--broker-conf", str(file), "--shedder", "AvgShedder", "--json", log=log
            ).stdout
        )["shedder"]
    )


@pytest.mark.parametrize(
    "given",
    [
        ("--shedder", "Shredder"),
        ("--set", "transfer.target=1"),
        ("--set", "transfer.target_deviation=much"),
    ],
)
def test_an_invalid_setting_ends_the_plan(log: str, given: tuple[str, str]) -> None:
    result = run("plan", *given, log=log)
    assert (2, "") == (result.exit_code, result.stdout)


# --- plans that are carried out ---


def test_a_plan_is_refused_once_the_cluster_has_changed(log: str, tmp_path: Path) -> None:
    """Here by a new policy. The refusal names it, and nothing moves."""
    path = str(tmp_path / "plan.json")
    assert 0 == run("plan", *TRANSFER, "--output", path, log=log).exit_code
    assert (
        0
        == run(
            "policies", "pin", "late", "--namespace", "tenant/ns", "--brokers", "a", log=log
        ).exit_code
    )
    before = view_of(log).offset
    result = run("plan", "--apply", path, log=log)
    assert (1, before) == (result.exit_code, view_of(log).offset)
    assert (
        f"cannot apply the plan {json.loads(Path(path).read_text())['id']}: policy pin/late was"
        " changed at offset" in result.stderr
    )
    assert "(in the plan: absent)" in result.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{}", "it is no file that"),
        (b"no JSON", "it is no file that"),
        (b"\xff", "it is no file that"),
        (None, "it was changed"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(
    content: bytes | None, problem: str, log: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    run("plan", *TRANSFER, "--output", str(path), log=log)
    path.write_bytes(
        path.read_bytes().replace(b'"destination": "c"', b'"destination": "b"')
        if content is None
        else content
    )
    result = run("plan", "--apply", str(path), log=log)
    assert (2, True) == (result.exit_code, problem in result.stderr)


@pytest.mark.parametrize("option", ["--output", "--apply"])
def test_a_file_in_a_missing_folder_is_named(option: str, log: str, tmp_path: Path) -> None:
    path = str(tmp_path / "missing" / "plan.json")
    result = run("plan", *(TRANSFER if option == "--output" else ()), option, path, log=log)
    assert 2 == result.exit_code
    assert path in result.stderr
    assert "No such file or directory" in result.stderr
    assert "Errno" not in result.stderr


def test_a_plan_is_carried_out_as_it_is(log: str) -> None:
    assert 2 == run("plan", *TRANSFER, "--apply", "plan.json", log=log).exit_code


@pytest.mark.integration
async def test_a_saved_plan_moves_what_it_says(tmp_path: Path) -> None:
    """One move at once. A second time the plan is refused."""
    async with to_apply(tmp_path) as stage:
        names = [move.bundle for move in stage.moves]
        code, printed = await ended(await stage.apply())
        owned = [f"{name} is owned by {stage.destination.id}" for name in names]
        assert (0, owned) == (code, [line.split(",")[0] for line in printed.splitlines()])
        await until(lambda: stage.owners() == {stage.destination.id})
        code, printed = await ended(await stage.apply())
        assert (1, True) == (code, "cannot apply the plan" in printed)


@pytest.mark.integration
async def test_an_interrupted_plan_stops_after_the_moves_in_flight(tmp_path: Path) -> None:
    async with to_apply(tmp_path) as stage:
        stage.destination.service.taking.clear()
        process = await stage.apply()
        first, second = (stage.source.worker.view.bundles[move.bundle] for move in stage.moves)
        await until(lambda: stage.phase_of(first.name) == "transferring")
        process.send_signal(signal.SIGINT)
        stage.destination.service.taking.set()
        code, printed = await ended(process)
        assert (130, [f"{first.name} is owned by {stage.destination.id}"]) == (
            code,
            [line.split(",")[0] for line in printed.splitlines()],
        )
        assert second.last == stage.source.worker.view.bundles[second.name].last


@dataclass
class ToApply:
    """Two brokers, and a plan in a file that moves the bundles of the first to the second, one
    after the other.
    """

    source: Broker
    destination: Broker
    moves: Sequence[Move]
    path: Path

    async def apply(self) -> Process:
        """Start `plan --apply`."""
        log_url = self.source.worker.config.log_url
        command = (
            sys.executable,
            "-m",
            "equipoise.brokers.cli",
            "plan",
            "--apply",
            str(self.path),
            "--log",
            log_url,
            "--as",
            "erin",
        )
        return await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )

    def phase_of(self, bundle: str) -> str:
        return self.source.worker.view.bundles[bundle].phase

    def owners(self) -> set[str]:
        """Return the brokers that have bundles."""
        view = self.source.worker.view
        return {
            broker.id
            for broker in (self.source, self.destination)
            if list(view.held_by(view.brokers[broker.id].incarnation))
        }


@asynccontextmanager
async def to_apply(tmp_path: Path) -> AsyncIterator[ToApply]:
    """Yield two brokers with two bundles each, and a plan."""
    log_url, path = f"sqlite:{tmp_path / 'log.db'}", tmp_path / "plan.json"
    async with (
        started(tmp_path, log_url, {}) as source,
        started(tmp_path, log_url, {}) as destination,
    ):
        for broker in (source, destination):
            await broker.worker.ready(timeout_ms=PATIENCE_MS)
        await source.worker.request(
            CreateNamespace(name="t/n", boundaries=even_boundaries(4)), timeout_ms=PATIENCE_MS
        )
        view = source.worker.view
        await until(lambda: [bundle.phase for bundle in view.bundles_of("t/n")] == ["owned"] * 4)
        names = [bundle.name for bundle in view.held_by(view.brokers[source.id].incarnation)]
        moves = [
            Move(bundle=name, source=source.id, destination=destination.id, reason="test")
            for name in names
        ]
        path.write_text(
            SavedPlan(
                moves=moves, moves_max=1, broker_moves_max=16, facts=facts_of(view, names)
            ).text()
        )
        yield ToApply(source=source, destination=destination, moves=moves, path=path)


async def ended(process: Process) -> tuple[int | None, str]:
    """Return the exit code and the output of a process, once it has ended."""
    printed, _ = await process.communicate()
    return process.returncode, printed.decode()
