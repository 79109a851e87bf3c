"""Define the operations that move, split and merge bundles.

All raise what `brokers.operations.verbs` names, `PeerError` if a move was accepted and then
cancelled, and `OutcomeUnknown` if a truncation removed the records about its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from equipoise.brokers.agent.requests import (
    STOPPABLE,
    Cancel,
    Intent,
    MergeBundles,
    MoveAway,
    SplitBundle,
    Transfer,
    Unload,
    subject_of,
)
from equipoise.brokers.balancing.moves import KIND_OF_PHASE
from equipoise.brokers.balancing.named import bundle_named, namespace_named
from equipoise.brokers.balancing.placement import in_turns, places_elsewhere
from equipoise.brokers.balancing.quarantine import why_quarantined
from equipoise.brokers.balancing.splitting.split_points import (
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.brokers.errors import counted
from equipoise.brokers.operations.checks import (
    broker_named,
    check_destination,
    check_split,
    owner_of,
)
from equipoise.brokers.operations.outcomes import (
    PLACED_MS,
    Answer,
    BundleOutcome,
    Outcomes,
    accepted_at,
    begun_by,
    followed,
)
from equipoise.brokers.operations.port import Port, propose_each
from equipoise.channel.core.entries import BundleChanged, BundleEntry
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.core.ranges import check_broker_id
from equipoise.channel.core.view import View
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.plan import Move

T = TypeVar("T")

UNLOADS_AT_ONCE: Final = 64
"""Bundles unloaded at a time: enough to keep the log's group commit busy, few enough that clients
do not all reconnect at once."""

BY_OPERATOR: Final = "asked for by an admin"
"""The reason of a move that an operator requested."""

CANCELLED_BY_OPERATOR: Final = "cancelled by an admin"
"""The reason of a cancel by an operator."""

_LEAVING: Final = frozenset({"transferring", "handing_over", "unloading"})


# --- moves of one bundle ---


async def transfer(
    port: Port,
    bundle: str,
    destination: str,
    *,
    force: bool = False,
    wait: bool = True,
    reason: str = BY_OPERATOR,
) -> Answer:
    """Transfer `bundle` to the broker `destination`, and wait until an owner keeps it.

    Raises `CallerError` if policies exclude the destination, unless `force` is set.
    """
    entry = bundle_named(port.view, bundle)
    check_broker_id(destination)
    if not force:
        check_destination(port.view, entry, destination)
    intent = Transfer(bundle=bundle, destination=destination, reason=reason)
    return await _moved(port, intent, wait=wait)


async def unload(port: Port, bundle: str, *, wait: bool = True) -> Answer:
    """Move `bundle` away from its owner, to another broker if one is allowed, and wait until an
    owner keeps it.
    """
    return await _moved(port, MoveAway(bundle=bundle, reason=BY_OPERATOR), wait=wait)


async def _moved(port: Port, intent: Transfer | MoveAway, *, wait: bool) -> Answer:
    bundle = await _placed(port, intent.bundle, wait=wait)
    with followed(port, [bundle]) as outcomes:
        accepted = await port.propose(intent)
        begun, source = begun_by(accepted), outcomes.begun(accepted, port.view)
        if begun.destination is None:
            return await _released(port, bundle.name, source, begun.offset, outcomes, wait=wait)
        destination = broker_named(port.view, begun.destination)
        if not wait:
            sentence = f"{bundle.name} is on its way to {destination}"
            return accepted_at(
                begun.offset, sentence, bundle=bundle.name, destination=destination, done=False
            )
        (made,) = await port.until(
            partial(outcomes.made, begun), f"the {begun.kind} of {bundle.name} to {destination}"
        )
        outcome = outcomes.check(
            bundle.name,
            await _settled(port, outcomes),
            destination=intent.destination if isinstance(intent, Transfer) else None,
        )
    return Answer(
        sentence=f"accepted at offset {begun.offset}, done at {made.last}: {outcome.sentence()}",
        document={
            "offset": begun.offset,
            "destination": destination,
            "done": True,
            **outcome.document(),
        },
        outcomes=[outcome],
    )


async def _released(
    port: Port, bundle: str, source: str, offset: int, outcomes: Outcomes, *, wait: bool
) -> Answer:
    """Wait for the end of an unload that names no new owner."""
    if not wait:
        return accepted_at(
            offset, f"{source} releases {bundle}", bundle=bundle, source=source, done=False
        )
    await port.until(all_released({bundle: offset}), f"the release of {bundle}")
    outcome = outcomes.of(bundle, await _settled(port, outcomes))
    return Answer(
        sentence=f"accepted at offset {offset}: {outcome.sentence()}",
        document={"offset": offset, "done": True, **outcome.document()},
        outcomes=[outcome],
    )


async def split(
    port: Port,
    bundle: str,
    algorithm: str | None = None,
    positions: Sequence[int] | None = None,
    *,
    wait: bool = True,
    reason: str = BY_OPERATOR,
) -> Answer:
    """Have the owner of `bundle` split it, and wait for the children. Without `algorithm`, cut at
    `positions` or in the middle.

    Raises what `check_split` raises.
    """
    entry = bundle_named(port.view, bundle)
    cuts = None if positions is None else tuple(sorted(positions))
    algorithm = algorithm or (RANGE_EQUALLY_DIVIDE if cuts is None else SPECIFIED_POSITIONS_DIVIDE)
    check_split(entry, algorithm, cuts)
    await _placed(port, bundle, wait=wait)
    intent = SplitBundle(bundle=bundle, algorithm=algorithm, positions=cuts, reason=reason)
    if not wait:
        accepted = await port.propose(intent)
        return accepted_at(
            accepted.offset, f"{bundle} is being split", bundle=bundle, children=[], done=False
        )
    offset, made = await move(port, intent, f"the split of {bundle}")
    children = [child.name for child in made]
    return accepted_at(
        offset,
        f"{bundle} is split into {', '.join(children)}",
        bundle=bundle,
        children=children,
        done=True,
    )


async def merge(port: Port, left: str, *, wait: bool = True, reason: str = BY_OPERATOR) -> Answer:
    """Merge `left` with its right neighbour, which must have the same owner."""
    entry = await _placed(port, left, wait=wait)
    right = port.view.right_neighbour(entry)
    if right is not None:
        await _placed(port, right.name, wait=wait)
    accepted = await port.propose(MergeBundles(left=left, reason=reason))
    whole = port.view.bundle_at(entry.namespace, entry.low)
    union = left if whole is None else whole.name
    return accepted_at(
        accepted.offset, f"{left} and its right neighbour are {union} now", bundle=left, union=union
    )


async def cancel(port: Port, bundle: str) -> Answer:
    """Cancel a transfer or a split of `bundle` that is not complete. The source owns the bundle
    again.
    """
    bundle_named(port.view, bundle)
    accepted = await port.propose(Cancel(bundle=bundle, reason=CANCELLED_BY_OPERATOR))
    change = accepted.verdict.changes[0]
    assert isinstance(change, BundleChanged), "a transition changes its bundle"
    before, after = change.before, change.after
    assert before is not None, "a move is of a bundle that was there"
    assert after is not None, "and it goes on"
    kind, owner = KIND_OF_PHASE[before.phase].value, owner_of(port.view, after)
    sentence = f"the {kind} of {bundle} is cancelled; {owner} owns it, token {after.token}"
    return accepted_at(
        accepted.offset, sentence, bundle=bundle, move=kind, owner=owner, token=after.token
    )


async def move(port: Port, intent: Intent, what: str) -> tuple[int, tuple[BundleEntry, ...]]:
    """Request a transfer, an unload or a split, and wait for its end. Return the offset of its
    record, and the resulting bundles.
    """
    entry = port.view.bundles.get(subject_of(intent))
    with followed(port, [] if entry is None else [entry]) as outcomes:
        begun = begun_by(await port.propose(intent))
        return begun.offset, await port.until(partial(outcomes.made, begun), what)


async def _placed(port: Port, name: str, *, wait: bool) -> BundleEntry:
    """Return a bundle. With `wait`, wait first for the owner of one that is being placed, such as a
    new one, for at most `PLACED_MS`.
    """
    if wait and _is_being_placed(name, port.view):
        deadline = Deadline.after(timeout_ms=PLACED_MS)
        await _until(
            port, lambda view: not _is_being_placed(name, view), f"an owner of {name}", deadline
        )
    return bundle_named(port.view, name)


def _is_being_placed(name: str, view: View) -> bool:
    """Return whether the leader gives a bundle an owner now, as far as the view shows."""
    bundle = view.bundles.get(name)
    if bundle is None or bundle.phase != "free":
        return bundle is not None and bundle.phase == "assigning"
    return (
        view.namespaces[bundle.namespace].status == "created"
        and bool(view.takers(bundle.namespace))
        and why_quarantined(view, name) is None
    )


async def _settled(port: Port, outcomes: Outcomes) -> View:
    """Wait until the moved bundles are open at their owners, for at most `PLACED_MS` and until the
    deadline. Return the view.

    Ask again when a bundle has another owner, because the first one failed to open it. Of an owner
    that does not answer, see for `SETTLED_MS` whether it keeps the bundle.
    """
    deadline, unanswered = Deadline.after(timeout_ms=PLACED_MS), dict[str, int]()
    while True:
        await _until(port, outcomes.are_owned, "an owner for each", deadline)
        view = port.view
        unopened = outcomes.unopened(view)
        if not unopened or not deadline.remaining_ms():
            return view
        if unopened == unanswered:
            await _until(port, outcomes.are_settled, "an owner that stays for each", deadline)
            return port.view
        answer = await port.opened(unopened, within_ms=deadline.remaining_ms())
        outcomes.opened({name: token for name, token in unopened.items() if name in answer.bundles})
        unanswered = {name: token for name, token in unopened.items() if name not in answer.bundles}
        # An owner has read its own failure before this operation has.
        is_read = partial(_is_read, answer.offset)
        await _until(port, is_read, f"offset {answer.offset} being read", deadline)


def _is_read(offset: int, view: View) -> bool:
    return view.offset >= offset


async def _until(
    port: Port, condition: Callable[[View], bool], what: str, deadline: Deadline
) -> None:
    """Wait for a condition until `deadline`, and no longer."""
    with suppress(DeadlineExceeded):
        await port.until(
            lambda view: condition(view) or None, what, within_ms=deadline.remaining_ms()
        )


# --- all bundles of a namespace ---


async def unload_all(port: Port, namespace: str, *, wait: bool = True) -> Answer:
    """Unload all bundles of `namespace` that have an owner. Skip those that somebody else moves at
    the same moment.

    Plan and unload them in batches. With `wait`, owners must release one batch before the next.
    """
    bundles = port.view.bundles_of(namespace_named(port.view, namespace).name)
    owned = [bundle for bundle in bundles if bundle.phase == "owned"]
    unloads: dict[str, int] = {}
    with followed(port, owned) as outcomes:
        for batch in _batches(iter(in_turns(owned))):
            planned = places_elsewhere(port.view, batch, port.placement)
            begun = await propose_each(
                port,
                [
                    MoveAway(
                        bundle=bundle.name, reason=BY_OPERATOR, planned=planned.get(bundle.name)
                    )
                    for bundle in batch
                ],
            )
            if wait:
                await port.until(all_released(begun), f"the unload of all bundles of {namespace}")
            unloads |= begun
        view = await _settled(port, outcomes) if wait else port.view
    skipped = len(bundles) - len(unloads)
    rest = f"{skipped} had no owner, or were on the move already"
    document: dict[str, object] = {
        "namespace": namespace,
        "offsets": unloads,
        "skipped": skipped,
        "done": wait,
    }
    if not wait:
        return Answer(
            sentence=f"{counted(len(unloads), 'bundle')} of {namespace} are being unloaded; {rest}",
            document=document,
        )
    found = [outcomes.of(name, view) for name in unloads]
    document["bundles"] = [outcome.document() for outcome in found]
    moved = sum(not outcome.is_stuck for outcome in found)
    sentence = f"{counted(moved, 'bundle')} of {namespace} moved to another owner; {rest}"
    return Answer(sentence=sentence, document=document, outcomes=found)


async def transfer_batch(port: Port, moves: Sequence[Move]) -> Sequence[BundleOutcome]:
    """Transfer bundles to the destinations of a plan, all at once, and wait until their owners keep
    them.

    Leave out those that somebody else moves at the same moment.
    """
    bundles = [bundle_named(port.view, move.bundle) for move in moves]
    intents = [
        Transfer(bundle=move.bundle, destination=move.destination or "", reason=move.reason)
        for move in moves
    ]
    with followed(port, bundles) as outcomes:
        begun = await propose_each(port, intents)
        await port.until(all_released(begun), "the moves of the plan")
        view = await _settled(port, outcomes)
    return [outcomes.of(name, view) for name in begun]


async def cancel_all(port: Port, namespace: str) -> Answer:
    """Cancel those moves of a namespace's bundles that can be cancelled."""
    view = port.view
    bundles = view.bundles_of(namespace_named(view, namespace).name)
    moving = sum(bundle.phase not in ("owned", "free") for bundle in bundles)
    ended: dict[str, int] = {}
    for batch in cancels_of(bundles):
        ended |= await propose_each(port, batch)
    late = moving - len(ended)
    sentence = f"{counted(len(ended), 'move')} of {namespace} cancelled; {late} too far on, or over"
    return Answer(
        sentence=sentence, document={"namespace": namespace, "offsets": ended, "late": late}
    )


def unloads_of(bundles: Iterable[BundleEntry]) -> Iterator[tuple[Unload, ...]]:
    """Yield the unloads of the owned `bundles`, which leave them free, in batches. Owners must
    release one batch before the next.
    """
    return _batches(
        Unload(bundle=bundle.name, reason=BY_OPERATOR)
        for bundle in bundles
        if bundle.phase == "owned"
    )


def cancels_of(bundles: Iterable[BundleEntry]) -> Iterator[tuple[Cancel, ...]]:
    """Yield the cancels of the moves of `bundles` in batches."""
    return _batches(
        Cancel(bundle=bundle.name, reason=CANCELLED_BY_OPERATOR)
        for bundle in bundles
        if bundle.phase in STOPPABLE
    )


def _batches(intents: Iterator[T]) -> Iterator[tuple[T, ...]]:
    while batch := tuple(islice(intents, UNLOADS_AT_ONCE)):
        yield batch


def all_released(unloads: Mapping[str, int]) -> Callable[[View], bool | None]:
    """Return a condition that holds once each unload has ended. `unloads` maps bundle names to
    offsets of unload records.
    """
    waiting = dict(unloads)

    def released(view: View) -> bool | None:
        for name, offset in list(waiting.items()):
            bundle = view.bundles.get(name)
            if bundle is None or (bundle.last != offset and bundle.phase not in _LEAVING):
                del waiting[name]
        return None if waiting else True

    return released
