"""The events of the benchmark of peers, and what is measured of each.

The programs of a system live through one event after the other. Between two events all shards have
one owner each for a while.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from equipoise.channel.system.clocks import Deadline, boot_ns
from equipoise.channel.system.free_ports import free_ports
from tests.benchmarks.frame import cpu_s, machine, percentile
from tests.benchmarks.peers.callers import PATIENCE_S, Callers, session
from tests.benchmarks.peers.hub import Hub
from tests.benchmarks.peers.judge import Pause, judge
from tests.benchmarks.peers.program import SHARDS
from tests.benchmarks.peers.servers import Server, server
from tests.benchmarks.peers.systems import NODE, System
from tests.house.house_rules import ROOT
from tests.kafka.topics import leader_of

PROGRAMS: Final = 3
QUIET_S: Final = 2.0
STEADY_S: Final = 10.0
AFTER_S: Final = 6.0
SLOW_MS: Final = 500.0
_HOT_S, _HOT_US = 30.0, 2_000
_OUTLASTING_S: Final = 4.0
_SETTLED_MS: Final = 120_000
_END_MS: Final = 30_000
_LOOK_S: Final = 0.05
_NS: Final = 1_000_000_000


@dataclass(kw_only=True, eq=False)
class Running:
    """A program that runs."""

    name: str
    slot: int
    process: asyncio.subprocess.Process


class Life:
    """The programs of one system with their callers."""

    def __init__(self, system: System, running: Server, folder: Path, callers: Callers) -> None:
        self.hub = Hub()
        self.callers = callers
        self.programs: list[Running] = []
        self.server = running
        self.system = system
        self._folder = folder
        self._numbers = count(1)
        self._cpu_before_s: dict[int, float] = {}
        self._cpu_of_dead_s = 0.0

    async def start(self, slot: int) -> Running:
        """Start a program, and wait until it has joined."""
        name, (port,) = f"program-{next(self._numbers)}", free_ports(1)
        options = {
            "name": name,
            "slot": slot,
            "port": port,
            "store": self.hub.port,
            "adapter": self.system.adapter,
            "settings": self._settings(),
        }
        with (self._folder / f"{name}.txt").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.benchmarks.peers.program",
                json.dumps(options),
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
            )
        program = Running(name=name, slot=slot, process=process)
        self.programs.append(program)
        await self.hub.started[name].wait()
        self.callers.addresses[name] = f"http://127.0.0.1:{port}"
        return program

    def _settings(self) -> Mapping[str, Any]:
        settings = {**self.server.settings, **self.system.settings}
        if "client" in settings:
            address = {"bootstrap.servers": self.server.settings["bootstrap.servers"]}
            settings["client"] = {**address, **settings["client"]}
        return settings

    async def end(self, program: Running, number: signal.Signals) -> float:
        """End a program by a signal. Return how long it took, in seconds."""
        pid, began_ns = program.process.pid, boot_ns()
        used_s = cpu_s(pid)
        self._cpu_of_dead_s += used_s - self._cpu_before_s.pop(pid, 0)
        program.process.send_signal(number)
        async with asyncio.timeout(_END_MS / 1_000):
            await program.process.wait()
        ended_ns = boot_ns()
        self.programs.remove(program)
        self.callers.addresses.pop(program.name)
        # What it had sent by then comes first.
        await asyncio.sleep(_LOOK_S)
        self.hub.died(program.name, began_ns if number is signal.SIGKILL else ended_ns)
        return (ended_ns - began_ns) / _NS

    async def settled(self) -> bool:
        """Wait until each shard has one owner, each program has a shard, and nothing changes any
        more. Return whether that came.
        """
        began_ns, deadline = boot_ns(), Deadline.after(timeout_ms=_SETTLED_MS)
        while deadline.remaining_ms() > 0:
            owners = self.hub.owners()
            busy = {name for names in owners.values() for name in names}
            is_even = [len(names) for names in owners.values()] == [1] * SHARDS
            is_complete = busy == {each.name for each in self.programs}
            quiet_ns = boot_ns() - max(began_ns, self.hub.changed_ns)
            if is_even and is_complete and quiet_ns > QUIET_S * _NS:
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    def held_by(self, program: Running) -> int:
        """Return how many shards a program has."""
        return sum(program.name in each for each in self.hub.owners().values())

    def cpu_spent_s(self) -> float:
        """Return the CPU time of programs and servers since the last call."""
        pids = [*(each.process.pid for each in self.programs), *self.server.pids]
        now = {pid: cpu_s(pid) for pid in pids}
        spent_s = sum(used_s - self._cpu_before_s.get(pid, 0) for pid, used_s in now.items())
        spent_s, self._cpu_of_dead_s = spent_s + self._cpu_of_dead_s, 0.0
        self._cpu_before_s = now
        return spent_s

    def figures_of_calls(self, from_ns: int, to_ns: int) -> dict[str, object]:
        """Return the figures of the calls that were due in a time."""
        calls = [each for each in self.callers.calls if from_ns <= each.due_ns < to_ns]
        lengths = sorted(each.length_ms for each in calls) or [0.0]
        late = [each.served for each in calls if each.due_ns >= to_ns - AFTER_S * _NS]
        shares = Counter(name for name in late if name is not None)
        return {
            "calls": len(calls),
            "failed": sum(each.served is None for each in calls),
            "slow": sum(each.length_ms > SLOW_MS for each in calls),
            "call_ms": {f"p{each}": round(percentile(lengths, each), 2) for each in (50, 99, 100)},
            "shares_of_calls": [
                round(number / max(1, shares.total()), 3) for _, number in shares.most_common()
            ],
        }


# --- the events ---


async def _join(life: Life) -> dict[str, object]:
    await life.start(PROGRAMS)
    return {"needed": SHARDS // (PROGRAMS + 1)}


async def _term(life: Life) -> dict[str, object]:
    program = life.programs[-1]
    needed = life.held_by(program)
    return {"needed": needed, "end_s": round(await life.end(program, signal.SIGTERM), 2)}


async def _kill(life: Life) -> dict[str, object]:
    program = life.programs[0]
    needed = life.held_by(program)
    await life.end(program, signal.SIGKILL)
    return {"needed": needed}


async def _stop(life: Life, seconds: float) -> dict[str, object]:
    program = life.programs[0]
    needed, from_ns = life.held_by(program), boot_ns()
    program.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    to_ns = boot_ns()
    program.process.send_signal(signal.SIGCONT)
    life.hub.pauses.append(Pause(program=program.name, from_ns=from_ns, to_ns=to_ns))
    return {"needed": needed}


async def _rolling(life: Life) -> dict[str, object]:
    needed, ends_s = 0, []
    for program in list(life.programs):
        needed += life.held_by(program)
        ends_s.append(await life.end(program, signal.SIGTERM))
        await life.start(program.slot)
        await life.settled()
    return {"needed": needed, "end_s": round(max(ends_s), 2)}


async def _hot(life: Life) -> dict[str, object]:
    life.callers.hot, life.callers.us = True, _HOT_US
    await asyncio.sleep(_HOT_S)
    return {}


async def _node(life: Life, *, kills: bool = False) -> dict[str, object]:
    """Kill the leading node, and a program while all serve past their leases if it `kills`. Return
    once another node leads.
    """
    kafka, topic = life.server.kafka, life.system.topic
    assert kafka is not None, "only systems on Kafka have this event"
    number, began_ns = await asyncio.to_thread(leader_of, kafka.address, topic), boot_ns()
    await asyncio.to_thread(kafka.node(number).kill)
    found: dict[str, object] = {"needed": 0}
    if kills:
        await asyncio.sleep(_OUTLASTING_S)
        found = await _kill(life)
    await asyncio.to_thread(partial(leader_of, kafka.address, topic, other_than=number))
    return {**found, "another_leads_s": round((boot_ns() - began_ns) / _NS, 1)}


_EVENTS: Final[Mapping[str, Callable[[Life], Awaitable[dict[str, object]]]]] = {
    "join": _join,
    "term": _term,
    "kill": _kill,
    "stop10": lambda life: _stop(life, 10),
    "stop20": lambda life: _stop(life, 20),
    "rolling": _rolling,
    "hot": _hot,
    "node": _node,
    "node_kill": lambda life: _node(life, kills=True),
}


Results = dict[str, dict[str, Any]]
"""The figures of each event."""


async def measure(system: System, events: Sequence[str], folder: Path, results: Results) -> None:
    """Let events happen to a system. Put the figures of each, and of the time before, into
    `results`.
    """
    nodes = {"nodes": 3} if events[0] in NODE else {}
    async with _living(system, folder, nodes) as life:
        if not nodes and "steady" not in results:
            results["steady"] = await _measured(life, _steady)
        for event in events:
            await _restored(life)
            results[event] = await _measured(life, _EVENTS[event])
            print(f"peers: {system.title}, {event}: {results[event]}", file=sys.stderr)


async def _steady(_: Life) -> dict[str, object]:
    await asyncio.sleep(STEADY_S)
    return {}


async def _measured(
    life: Life, event: Callable[[Life], Awaitable[dict[str, object]]]
) -> dict[str, object]:
    """Return the figures from the beginning of an event until nothing has changed for a while."""
    life.cpu_spent_s()
    from_ns = boot_ns()
    found = await event(life)
    await asyncio.sleep(AFTER_S)
    is_settled = await life.settled()
    to_ns = boot_ns()
    spent_s = life.cpu_spent_s()
    life.callers.hot, life.callers.us = False, 0
    await asyncio.sleep(PATIENCE_S)  # The last calls end.
    verdict = judge(life.hub.holdings(), life.hub.writes, from_ns=from_ns, to_ns=to_ns)
    return {
        **verdict.figures(),
        **found,
        **life.figures_of_calls(from_ns, to_ns),
        "settled": is_settled,
        "seconds": round((to_ns - from_ns) / _NS, 1),
        "cpu_s_per_minute": round(60 * spent_s * _NS / (to_ns - from_ns), 1),
        "machine": machine(),
    }


async def _restored(life: Life) -> None:
    """Start what is missing, and come to rest."""
    for slot in range(PROGRAMS):
        if all(each.slot != slot for each in life.programs):
            await life.start(slot)
    assert await life.settled(), Counter(map(tuple, life.hub.owners().values()))


@asynccontextmanager
async def _living(system: System, folder: Path, more: Mapping[str, Any]) -> AsyncIterator[Life]:
    async with (
        server(system.server, folder, {**system.options, **more}) as running,
        session() as calling,
    ):
        callers = Callers(calling)
        life = Life(system, running, folder, callers)
        async with life.hub.running():
            try:
                await asyncio.gather(*(life.start(slot) for slot in range(PROGRAMS)))
                await _restored(life)
                task = asyncio.create_task(callers.run())
                yield life
                task.cancel()
                await asyncio.wait([task])
            finally:
                for each in life.programs:
                    each.process.kill()
                    await each.process.wait()
