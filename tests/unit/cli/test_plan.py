"""`equipoise plan` beyond its transcript: it changes nothing, and a saved plan is carried out by
brokers.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.balancing.saved_plans import SavedPlan, facts_of
from equipoise.brokers.decision_log import newest_decisions
from equipoise.brokers.load.bus import LoadBus
from equipoise.channel.core import propose
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.log.open_log import log_path
from equipoise.shedder.loads import Declared
from equipoise.shedder.plan import Move
from tests.load.loaded import loaded, sample, uneven_channel
from tests.unit.cli.fabricated import run, view_of, write
from tests.unit.http.cluster import PATIENCE_MS, Broker, started, until

UNEVEN = {"a": 90.0, "b": 35.0, "c": 5.0}
TRANSFER = ("--shedder", "TransferShedder")


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Three brokers, the first of which has most of the load."""
    return loaded(uneven_channel(), tmp_path, UNEVEN)


def test_a_plan_changes_nothing(log: str) -> None:
    before = view_of(log)
    run("plan", log=log)
    assert (before.offset, before.digest()) == (view_of(log).offset, view_of(log).digest())
    assert [] == list(newest_decisions(log, 1))


def test_a_plan_does_not_need_readable_decisions(log: str) -> None:
    with closing(sqlite3.connect(log_path(log) or "")) as connection:
        connection.execute("CREATE TABLE decisions (id INTEGER)")
        connection.commit()
    result = run("plan", *TRANSFER, log=log)
    assert ("there is no recorded decision about moves" in result.stdout, 0) == (
        True,
        result.exit_code,
    )


def test_a_plan_names_the_namespaces_that_no_broker_serves(tmp_path: Path) -> None:
    channel = uneven_channel(brokers="ab")
    channel.join("c", serves=["tenant/*"])
    channel.create(namespace="shop/carts")
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
    log = loaded(channel, tmp_path / "before", UNEVEN)
    assert "serves" not in run("plan", log=log).stdout
    for broker in "ab":
        channel.accept(propose.draining(channel.author(broker), channel.broker(broker)))
    log = loaded(channel, tmp_path / "after", UNEVEN)
    assert "no broker that is up serves shop/carts\n" in run("plan", log=log).stdout


def test_a_plan_names_what_has_no_room(tmp_path: Path) -> None:
    log = loaded(uneven_channel(), tmp_path, UNEVEN, memory={"c": 91.0})
    result = " ".join(run("plan", log=log).stdout.split())
    assert (
        "its memory is 91 % full; moves may bring it to 85 % (placement.memory_percent_max)"
        in result
    )
    page = run("plan", "--set", "placement.memory_percent_max=95", log=log).stdout
    assert ("full" in page, "balanced: a has 261 % of the mean load, c has 0 %" in page) == (
        False,
        True,
    )


def test_a_plan_says_what_declared_units_count_as(tmp_path: Path) -> None:
    channel = uneven_channel()
    log = write(channel.entries, tmp_path)
    for broker, percent in UNEVEN.items():
        load = sample(channel, broker, percent)
        declared = {"tenant/ns": Declared(unit="seats", amount=100, rate=0.015)}
        limits = {} if broker == "a" else {"tokens/s": 2_000.0}
        LoadBus(log).publish(replace(load, declared=declared, capacities=limits))
    page = " ".join(run("plan", log=log).stdout.split())
    assert "how much of a broker seats take is not known, so all together count as half" in page
    assert "1 tokens/s counts as 0.0005 of a core, by the capacities of the brokers" in page
    units = json.loads(run("plan", "--json", log=log).stdout)["units"]
    assert {"rate": 0.0005, "basis": "capacities"} == units["tokens/s"]
    shown = json.loads(run("brokers", "show", "b", "--json", log=log).stdout)
    assert [{"tenant/ns": "100 seats"}, {"tokens/s": 2_000}, None, 0] == [
        shown[name] for name in ("declared", "capacities", "load_problem", "memory")
    ]


# --- plans that are carried out ---


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
