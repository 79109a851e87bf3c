"""Act as an operator: choose moves, request them over the brokers' HTTP, and change settings on
the channel.

The fold decides whether a move is allowed. `docs/reference/settings.md` describes each setting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import aiohttp

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.balancing.settings.settings_records import Changes
from equipoise.brokers.operations.access import opened
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.brokers.operations.verbs import change_settings
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import ADMIN_PREFIX
from equipoise.channel.core.view import View
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import Deadline

OPERATOR: Final = f"{ADMIN_PREFIX}demo"
"""The author of the operator's changes of settings."""

QUICK: Final[Changes] = {
    "balancing.shed_interval_ms": 1_000,
    "balancing.split_interval_ms": 1_000,
    "balancing.rest_ms": 4_000,
    "reports.sample_interval_ms": 500,
    "reports.interval_min_ms": 500,
    "reports.interval_max_ms": 1_000,
    # After 5 seconds a tenth of an average is left, not nine tenths, so that the demo does not take
    # minutes.
    "reports.history": "0.1",
    "reports.cost_window_ms": 12_000,
}
"""A balancing round every second, each with fresh measurements."""

CPU_ONLY: Final[Changes] = {"weights.bandwidth_in": 0, "weights.bandwidth_out": 0}
"""Measure the brokers' use of processors. All brokers of a machine share its network, so its use
does not distinguish them."""

CORES: Final = "0.25"
"""The share of a processor that a broker claims to have: small enough that a few dozen calls a
second show in its use."""

_SET_MS: Final = 20_000

# Limit of one request. Brokers answer when the move is done or cancelled.
_MOVE_S: Final = 30.0

# Interval at which a waiting operator checks the view.
_LOOK_S: Final = 0.01

# In the answer of a broker that is not a member yet, or not any more.
_NOT_READY: Final = '"NotReady"'

# A bundle of fewer hash points is not split: it would contain hardly any key of the demo.
_WIDTH_MIN: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A transfer, split or merge of a bundle (the left one of a merge). `to` is the id of a
    transfer's destination.
    """

    kind: MoveKind
    bundle: str
    to: str | None = None

    @property
    def text(self) -> str:
        """The move as text."""
        return f"{self.kind} {self.bundle}" + (f" to {self.to}" if self.to else "")


def choose(kind: MoveKind, view: View, namespace: str, random: Random) -> Move | None:
    """Return a transfer, split or merge that the view allows, or None. If a merge needs a transfer
    first, return that transfer.
    """
    owned = [bundle for bundle in view.bundles_of(namespace) if bundle.phase == "owned"]
    if kind is MoveKind.MERGE:
        moves = _merges(view, owned)
    elif kind is MoveKind.SPLIT:
        moves = [
            Move(kind=kind, bundle=bundle.name)
            for bundle in owned
            if bundle.high - bundle.low > _WIDTH_MIN
        ]
    else:
        up = [broker for broker in view.live_brokers() if broker.status == "up"]
        moves = [
            _transfer(bundle, broker.broker)
            for bundle in owned
            for broker in up
            if broker.incarnation != bundle.owner
        ]
    return random.choice(moves) if moves else None


def _transfer(bundle: BundleEntry, to: str) -> Move:
    return Move(kind=MoveKind.TRANSFER, bundle=bundle.name, to=to)


def _merges(view: View, owned: Sequence[BundleEntry]) -> Sequence[Move]:
    """Return the possible merges of two neighbours with one owner. If there are none, return
    transfers that make a merge possible.
    """
    pairs = [
        (left, right)
        for left in owned
        if (right := view.right_neighbour(left)) is not None and right.phase == "owned"
    ]
    merges = [
        Move(kind=MoveKind.MERGE, bundle=left.name)
        for left, right in pairs
        if left.owner == right.owner
    ]
    owners = [(right, view.live.get(left.owner or -1)) for left, right in pairs]
    return merges or [
        _transfer(right, owner.broker)
        for right, owner in owners
        if owner is not None and owner.status == "up"
    ]


def is_settled(view: View, namespace: str, *, without: int | None = None) -> bool:
    """Return whether `namespace` has bundles, and live brokers other than incarnation `without` own
    all of them.
    """
    bundles = view.bundles_of(namespace)
    owners = {bundle.owner for bundle in bundles}
    return (
        bool(bundles)
        and all(bundle.phase == "owned" for bundle in bundles)
        and owners <= view.live.keys() - {without}
    )


async def settled(
    table: TableView, namespace: str, *, without: int | None = None, timeout_ms: int
) -> None:
    """Wait until `is_settled`. Raises `DeadlineExceeded`."""
    deadline = Deadline.after(timeout_ms=timeout_ms)
    while not is_settled(table.view, namespace, without=without):
        deadline.check(f"a living owner for every bundle of {namespace}")
        await asyncio.sleep(_LOOK_S)


async def make(http: aiohttp.ClientSession, broker: str, move: Move) -> str | None:
    """Request a move from `broker` (a base URL), and wait for its end. Return None on success, or
    else the problem.

    If no answer came, the move may still have been made.
    """
    namespace, _, hashes = move.bundle.rpartition("/")
    path = "unload" if move.kind is MoveKind.TRANSFER else move.kind
    query = {"destinationBroker": move.to} if move.to else {}
    return await _send(
        http, "PUT", f"{broker}/admin/v2/namespaces/{namespace}/{hashes}/{path}", query=query
    )


async def drain(http: aiohttp.ClientSession, broker: str) -> str | None:
    """Have `broker` (a base URL) drain. Return as `make`, but do not wait for the end of the
    moves.
    """
    return await _send(http, "POST", f"{broker}/admin/v2/brokers/drain")


async def create_namespace(
    http: aiohttp.ClientSession, broker: str, namespace: str, *, bundles: int
) -> str | None:
    """Have `broker` (a base URL) create a namespace with this many bundles. Return as `make`."""
    return await _send(
        http,
        "PUT",
        f"{broker}/admin/v2/namespaces/{namespace}",
        body={"bundles": {"numBundles": bundles}},
    )


async def _send(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    query: dict[str, str] | None = None,
    body: object = None,
) -> str | None:
    """Send a request. Repeat it while the broker is not ready: the channel may say that it is a
    member before it has read so itself.
    """
    deadline = Deadline.after(timeout_ms=int(_MOVE_S * 1_000))
    try:
        while True:
            timeout = aiohttp.ClientTimeout(total=deadline.remaining_ms() / 1_000)
            async with http.request(
                method, url, params=query, json=body, timeout=timeout
            ) as response:
                problem = (
                    None if response.ok else f"{response.status} {(await response.text()).strip()}"
                )
            if problem is None or _NOT_READY not in problem or not deadline.remaining_ms():
                return problem
            await asyncio.sleep(_LOOK_S)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return f"{type(error).__name__} {error}".strip()


def tune(log_url: str, changes: Changes) -> Sequence[str]:
    """Set settings on the channel; None removes one. Return each change as text. Raises what
    `change_settings` and `opened` raise.
    """
    with opened(log_url, timeout_ms=_SET_MS, publisher=OPERATOR) as access:
        return [str(change) for change in run(change_settings(ChannelPort(access), changes)).made]
