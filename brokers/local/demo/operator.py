"""Act as an operator: choose moves, request them over the brokers' HTTP as a script for Pulsar would, and run `plan`.

The fold decides whether a move is allowed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

import aiohttp

from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.deadline import Deadline

# The longest that a move may take here. Brokers answer when a move is done or cancelled.
_MOVE_S: Final = 30.0

# How often the view is checked while an operator waits.
_LOOK_S: Final = 0.01

# A dry run folds the channel and reads load reports: one second, more on a busy machine.
_PLAN_S: Final = 20.0
_AS_WIDE: Final = {"COLUMNS": "120"}

# Of each table of a plan: two heads, and six rows.
_PLAN_LINES_MAX: Final = 8

# A bundle of fewer hash points is not split: hardly a key of the demo would be in it.
_WIDTH_MIN: Final = 1 << 20


class Deed(StrEnum):
    """The operations of an operator."""

    TRANSFER = "transfer"
    SPLIT = "split"
    MERGE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An operation on a bundle (the left one of a merge). `to` is the id of a transfer's destination."""

    deed: Deed
    bundle: str
    to: str | None = None

    @property
    def text(self) -> str:
        """The move as text."""
        return f"{self.deed} {self.bundle}" + (f" to {self.to}" if self.to else "")


def choose(deed: Deed, view: View, namespace: str, random: Random) -> Move | None:
    """Return a move that the view allows, or None. If a merge needs a transfer first, return that transfer."""
    owned = [bundle for bundle in view.bundles_of(namespace) if bundle.phase == "owned"]
    if deed is Deed.TRANSFER:
        up = [broker for broker in view.live_brokers() if broker.status == "up"]
        return _transfer(random.choice(owned), up, random) if owned else None
    if deed is Deed.SPLIT:
        wide = [bundle for bundle in owned if bundle.high - bundle.low > _WIDTH_MIN]
        return Move(deed=deed, bundle=random.choice(wide).name) if wide else None
    return _merge(view, owned, random)


def _transfer(bundle: BundleEntry, up: Sequence[BrokerEntry], random: Random) -> Move | None:
    others = [broker.broker for broker in up if broker.incarnation != bundle.owner]
    return Move(deed=Deed.TRANSFER, bundle=bundle.name, to=random.choice(others)) if others else None


def _merge(view: View, owned: Sequence[BundleEntry], random: Random) -> Move | None:
    """Return a merge of two neighbours with one owner, or else a transfer that makes one possible."""
    pairs = [(left, right) for left in owned if (right := view.right_neighbour(left)) is not None and right.phase == "owned"]
    mergeable = [left for left, right in pairs if left.owner == right.owner]
    if mergeable:
        return Move(deed=Deed.MERGE, bundle=random.choice(mergeable).name)
    transfers = [
        Move(deed=Deed.TRANSFER, bundle=right.name, to=broker.broker)
        for left, right in pairs
        if left.owner is not None and (broker := view.live.get(left.owner)) is not None and broker.status == "up"
    ]
    return random.choice(transfers) if transfers else None


def is_settled(view: View, namespace: str, *, without: int | None = None) -> bool:
    """Return whether there are bundles and live brokers other than incarnation `without` own them all."""
    bundles = view.bundles_of(namespace)
    owners = {bundle.owner for bundle in bundles}
    return bool(bundles) and all(bundle.phase == "owned" for bundle in bundles) and owners <= view.live.keys() - {without}


async def settled(table: TableView, namespace: str, *, without: int | None = None, timeout_ms: int) -> None:
    """Wait until `is_settled`. Raises `DeadlineExceeded`."""
    deadline = Deadline.after(timeout_ms=timeout_ms)
    while not is_settled(table.view, namespace, without=without):
        deadline.check(f"a living owner for every bundle of {namespace}")
        await asyncio.sleep(_LOOK_S)


async def make(http: aiohttp.ClientSession, broker: str, move: Move) -> str | None:
    """Request a move from `broker` (a base URL), and wait for its end. Return None on success, or else the problem.

    If no answer came, the move may still have been made.
    """
    namespace, _, hashes = move.bundle.rpartition("/")
    path = "unload" if move.deed is Deed.TRANSFER else move.deed
    query = {"destinationBroker": move.to} if move.to else {}
    return await _ask(http, "PUT", f"{broker}/admin/v2/namespaces/{namespace}/{hashes}/{path}", query=query)


async def drain(http: aiohttp.ClientSession, broker: str) -> str | None:
    """Have `broker` (a base URL) drain. Return as `make`, but do not wait for the end of the moves."""
    return await _ask(http, "POST", f"{broker}/admin/v2/brokers/drain")


async def create_namespace(http: aiohttp.ClientSession, broker: str, namespace: str, *, bundles: int) -> str | None:
    """Have `broker` (a base URL) create a namespace with this many bundles. Return as `make`."""
    return await _ask(http, "PUT", f"{broker}/admin/v2/namespaces/{namespace}", body={"bundles": {"numBundles": bundles}})


async def plan(log_url: str) -> Sequence[str]:
    """Run `equipoise plan`, a dry run, on this log. Return the lines of its tables and its conclusion."""
    command = (sys.executable, "-P", "-m", "equipoise.brokers.cli", "plan", "--log", log_url)
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env={**os.environ, **_AS_WIDE})
    try:
        async with asyncio.timeout(_PLAN_S):
            printed, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return [f"it did not come to an end within {_PLAN_S:.0f} s"]
    return _short(printed.decode(errors="replace").rstrip().split("\n\n"))


def _short(sections: Sequence[str]) -> list[str]:
    """Return the lines of a plan's tables and of its conclusion. An error has one section, which is returned whole."""
    kept = [section.splitlines() for section in sections if section.startswith(("brokers\n", "moves\n"))]
    cut = [
        [*lines[:_PLAN_LINES_MAX], f"and {len(lines) - _PLAN_LINES_MAX} more"] if len(lines) > _PLAN_LINES_MAX + 1 else lines
        for lines in kept
    ]
    return [line for lines in (*cut, sections[-1].splitlines()) for line in lines]


async def _ask(
    http: aiohttp.ClientSession, method: str, url: str, *, query: dict[str, str] | None = None, body: object = None
) -> str | None:
    try:
        timeout = aiohttp.ClientTimeout(total=_MOVE_S)
        async with http.request(method, url, params=query, json=body, timeout=timeout) as response:
            return None if response.ok else f"{response.status} {(await response.text()).strip()}"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return f"{type(error).__name__} {error}".strip()
