"""Callers who administer one cluster at several brokers, whose readers lag behind, until answers
contradict one another.

`python -m tests.channels.admin_hunt --seeds N` prints the first violation and exits with 1, as
`python -m tests.simulation` does; tests.mutants runs it over a product in which
a rule about answers is broken.

Each history is about one tenant and one namespace. Every broker's log is deaf: it reads only when
its broker appends or asks for the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from equipoise.brokers.runtime import snapshots
from tests.channels.linearizable import Call, is_linearizable
from tests.channels.troubled_log import TroubledLog
from tests.unit.http.cluster import Answer, Broker, Cluster, cluster

SCENARIO: Final = "administration"
BROKERS, CALLERS, CALLS = 3, 4, 7
ABSENT: Final[Hashable] = "absent"
# Renewals make a deaf log read, and deletions wait for them.
QUICK: Final = {
    "lease_ms": 1_000,
    "renew_ms": 200,
    "grace_ms": 400,
    "round_trip_ms": 100,
    "reconnect_ms": 500,
    "stall_ms": 200,
}

ROUND_TRIP_S: Final = 0.002

Ask = Callable[[Broker, random.Random, str], Awaitable[tuple[Call, ...]]]


class LaggingLog(TroubledLog):
    """A deaf log whose answer about its end takes a moment, as over a network."""

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self.is_deaf = True

    def end(self) -> int:
        end = super().end()
        time.sleep(ROUND_TRIP_S)
        return end


def step(state: Hashable, call: Call) -> Hashable | None:
    """Return the state of a tenant or a namespace after a call: its value, or that it is absent.
    None if the answer contradicts it.
    """
    is_there = state != ABSENT
    match call.what, call.answer:
        case "create", 204:
            return None if is_there else call.value
        case "update", 204:
            return call.value if is_there else None
        case "delete", 204:
            return ABSENT if is_there else None
        case "create", 409:
            return state if is_there else None
        case _, 404:
            return None if is_there else state
        case "read", value:
            return state if state == value else None
        case "list", listed:
            return state if is_there == listed else None
        case _, None:  # Nobody knows the answer; in this order it had its effect.
            return ABSENT if call.what == "delete" else call.value
    raise AssertionError(call)


async def asked(
    broker: Broker,
    what: str,
    method: str,
    path: str,
    body: object = None,
    *,
    value: Hashable = None,
) -> tuple[Call, ...]:
    """Ask a broker, and return the call if its answer says anything."""
    began = time.monotonic_ns()
    answer = await broker.ask(
        method, path, data=None if body is None else json.dumps(body).encode()
    )
    ended = time.monotonic_ns()
    is_change = method != "GET"
    if (
        (answer.status in (204, 404) and is_change)
        or answer.status == 404
        or (what == "create" and answer.status == 409)
    ):
        return (Call(what=what, value=value, answer=answer.status, began=began, ended=ended),)
    if not is_change and answer.status in (200, 204):
        return (Call(what=what, answer=read_in(what, answer, value), began=began, ended=ended),)
    # A refusal had no effect, and an error may have one.
    return (
        (Call(what=what, value=value, began=began, ended=None),)
        if is_change and answer.status >= 500
        else ()
    )


def read_in(what: str, answer: Answer, name: Hashable) -> Hashable:
    """Return what an answer says of the state."""
    if what == "list":
        listed = answer.json()
        assert isinstance(listed, list)
        return name in listed
    if answer.status == 204:
        return ""
    document = (
        json.loads(answer.body)
        if answer.body.startswith(b"{")
        else {"adminRoles": [answer.body.decode()]}
    )
    return str(document["adminRoles"][0])


async def ask_of_tenant(broker: Broker, rng: random.Random, name: str) -> tuple[Call, ...]:
    """Ask something of a tenant, whose value is its role."""
    path, role = f"/admin/v2/tenants/{name}", f"role-{rng.randrange(10**9)}"
    body = {"adminRoles": [role], "allowedClusters": [broker.worker.config.cluster]}
    match rng.choice(("create", "create", "update", "delete", "read", "read", "list")):
        case "create":
            return await asked(broker, "create", "PUT", path, body, value=role)
        case "update":
            return await asked(broker, "update", "POST", path, body, value=role)
        case "delete":
            return await asked(broker, "delete", "DELETE", path)
        case "read":
            return await asked(broker, "read", "GET", path)
        case _:
            return await asked(broker, "list", "GET", "/admin/v2/tenants", value=name)


async def ask_of_namespace(broker: Broker, rng: random.Random, name: str) -> tuple[Call, ...]:
    """Ask something of a namespace, whose value is its anti-affinity group. Nobody deletes it,
    which takes more than a moment.
    """
    path, group = f"/admin/v2/namespaces/{name}/shop", f"group-{rng.randrange(10**9)}"
    match rng.choice(("create", "update", "read", "read", "list")):
        case "create":
            return await asked(
                broker, "create", "PUT", path, {"bundles": {"numBundles": 1}}, value=""
            )
        case "update":
            return await asked(broker, "update", "POST", f"{path}/antiAffinity", group, value=group)
        case "read":
            return await asked(broker, "read", "GET", f"{path}/antiAffinity")
        case _:
            return await asked(
                broker, "list", "GET", f"/admin/v2/namespaces/{name}", value=f"{name}/shop"
            )


ASKS: Final[Mapping[str, Ask]] = {"tenant": ask_of_tenant, "namespace": ask_of_namespace}


async def contradictions(brokers: Cluster, seed: int) -> list[str]:
    """Return the objects of one history whose answers no order explains."""
    found = []
    for kind, ask in ASKS.items():
        history: list[Call] = []

        async def administer(
            number: int, ask: Ask = ask, kind: str = kind, history: list[Call] = history
        ) -> None:
            rng = random.Random(f"{seed} {kind} {number}")
            for _ in range(CALLS):
                history.extend(await ask(rng.choice(brokers.brokers), rng, f"{kind}-{seed}"))

        await asyncio.gather(*(administer(number) for number in range(CALLERS)))
        if not is_linearizable(history, step, ABSENT):
            in_order = sorted(history, key=lambda call: call.began)
            found.append(
                f"{kind}-{seed}: {[(call.what, call.value, call.answer) for call in in_order]}"
            )
    return found


@asynccontextmanager
async def lagging(folder: Path) -> AsyncIterator[Cluster]:
    """Yield brokers that read only when they must."""
    numbers = iter(range(BROKERS))

    def opened(url: str, _directory: object) -> TroubledLog:
        log = LaggingLog(name=url)
        log.name = f"{url}/{next(numbers)}"  # Otherwise the brokers would share one handle.
        return log

    with patch.object(snapshots, "open_marked", opened):
        async with cluster(folder, brokers=BROKERS, bundles=1, **QUICK) as brokers:
            yield brokers


async def hunt(seeds: range) -> tuple[int, str] | None:
    """Return the first seed with a contradiction, and what it is."""
    with tempfile.TemporaryDirectory() as folder:
        async with lagging(Path(folder)) as brokers:
            for seed in seeds:
                for contradiction in await contradictions(brokers, seed):
                    return seed, contradiction
    return None


def main() -> int:
    """Hunt, seed after seed."""
    parser = argparse.ArgumentParser(prog="tests.channels.admin_hunt")
    parser.add_argument("--seeds", type=int, default=100)
    found = asyncio.run(hunt(range(parser.parse_args().seeds)))
    if found is None:
        return 0
    print(f"scenario {SCENARIO}, seed {found[0]};")
    print(f"VIOLATION of the order of answers: {found[1]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
