"""Moves as an operator asks for them: proposed straight to the channel, and waited for until they have ended one way or another.

May live here: the moves of bundles, the making and the deletion of a namespace, as steps on the channel. Each takes an `Access` and
raises `Rejected` if the channel refuses it, `CalledOff` if it was accepted and came to nothing, `DeadlineExceeded` if it
had not ended in time; it may still end then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from brokers.admin.access import Access, submit, until
from brokers.agent.intents import (
    CreateNamespace,
    DeleteNamespace,
    Intent,
    MergeBundles,
    SplitBundle,
    StartDeletingNamespace,
    Transfer,
    Unload,
)
from brokers.agent.requests import record_of
from channel.entries import BundleChanged, BundleEntry, Verdict
from channel.errors import CalledOff, Rejected
from channel.propose import Author
from channel.reader import Folded
from channel.records import AnyRecord, BundleTransition, Reason
from channel.story import Names, describe, standing
from channel.view import View

_BY_ADMIN = "asked for by an admin"
_MOVING = frozenset({"assigning", "transferring", "handing_over", "unloading", "splitting"})


def request(access: Access, intent: Intent) -> Folded:
    """Propose what `intent` wants; the record that the channel accepted. Raises as `brokers.admin.access.submit` does."""
    return submit(access, partial(_spelled, intent))


def _spelled(intent: Intent, view: View, author: Author) -> AnyRecord:
    make = record_of(view, intent)
    if isinstance(make, Verdict):
        assert make.reason is not None, "what can be spelled is no verdict"
        key = getattr(intent, "bundle", None) or getattr(intent, "left", None) or getattr(intent, "name", None)
        raise Rejected(key=str(key), reason=make.reason, problem=make.problem, offset=None)
    return make(author)


def transfer(access: Access, bundle: str, destination: str) -> Folded:
    """Begin to move `bundle` to the broker `destination`; the record that the channel accepted."""
    return request(access, Transfer(bundle=bundle, destination=destination, reason=_BY_ADMIN))


def await_transfer(access: Access, accepted: Folded) -> BundleEntry:
    """Wait until the bundle of a transfer that was accepted is owned by its destination; the bundle as it is then."""
    record = accepted.record
    assert isinstance(record, BundleTransition), "a transfer is a transition"
    bundle, destination = record.key, record.owner

    def end(view: View, folded: Folded | None) -> BundleEntry | None:
        now = view.bundles.get(bundle)
        if now is not None and now.phase in _MOVING:
            return None
        if now is None or now.owner != destination:
            raise CalledOff(bundle=bundle, move="transfer", problem=_why(view, now, folded))
        return now

    return until(access, end, what=f"the transfer of {bundle}")


def unload(access: Access, bundle: str) -> Folded:
    """Begin to take `bundle` from its owner; the record that the channel accepted."""
    return request(access, Unload(bundle=bundle, reason=_BY_ADMIN))


def await_released(access: Access, unloads: dict[str, int]) -> None:
    """Wait until each bundle has been let go of by its owner. `unloads` maps its name to the offset of its unload."""
    waiting = {
        name: None for name, offset in unloads.items() if (bundle := access.view.bundles.get(name)) is not None and bundle.last == offset
    }

    def all_released(_: View, folded: Folded | None) -> bool | None:
        for change in () if folded is None else folded.verdict.changes:
            waiting.pop(change.name if isinstance(change, BundleChanged) else "", None)
        return None if waiting else True

    until(access, all_released, what=f"the release of {len(unloads)} bundles")


def split(access: Access, bundle: str, algorithm: str, positions: tuple[int, ...] | None) -> Folded:
    """Ask the owner of `bundle` to cut it; the record that the channel accepted."""
    return request(access, SplitBundle(bundle=bundle, algorithm=algorithm, positions=positions, reason=_BY_ADMIN))


def await_split(access: Access, bundle: str) -> list[BundleEntry]:
    """Wait until the owner has cut `bundle`; its children."""
    parent = access.view.bundles[bundle]

    def cut(view: View, folded: Folded | None) -> list[BundleEntry] | None:
        now = view.bundles.get(bundle)
        if now is None:
            return [child for child in view.bundles_of(parent.namespace) if parent.low <= child.low < parent.high]
        if now.phase != "splitting":
            raise CalledOff(bundle=bundle, move="split", problem=_why(view, now, folded))
        return None

    return until(access, cut, what=f"the split of {bundle}")


def merge(access: Access, left: str) -> Folded:
    """Make one bundle of `left` and its right neighbour, at once; the record that the channel accepted."""
    bundle = access.bundle(left)
    right = access.view.right_neighbour(bundle)
    if right is not None and bundle.phase == right.phase == "owned" and bundle.owner != right.owner:
        problem = f"they belong to {owner_of(access.view, bundle)} and {owner_of(access.view, right)}; transfer one of them first"
        raise Rejected(key=f"{left} and {right.name}", reason=Reason.ILLEGAL_TRANSITION, problem=problem, offset=None)
    return request(access, MergeBundles(left=left, reason=_BY_ADMIN))


def create_namespace(access: Access, name: str, boundaries: Sequence[int]) -> Folded:
    """Create a namespace with bundles between each two of `boundaries`; the record that the channel accepted."""
    if name in access.view.namespaces:
        problem = f"it exists already, with {len(access.view.bundles_of(name))} bundles"
        raise Rejected(key=name, reason=Reason.ILLEGAL_TRANSITION, problem=problem, offset=None)
    return request(access, CreateNamespace(name=name, boundaries=boundaries))


def delete_namespace(access: Access, name: str, *, progress: Callable[[str], None]) -> Folded:
    """Delete a namespace with all its bundles; the record that did it. What was begun before is gone on with.

    1. Set it to deleting, so that nothing of it is assigned any more.
    2. Unload what is owned, and wait until all is free; what is on the move is waited for, and unloaded then.
    3. Delete it.
    """
    if access.view.namespaces[name].status != "deleting":
        accepted = request(access, StartDeletingNamespace(name=name))
        progress(f"{name} is being deleted since offset {accepted.offset}; its bundles are unloaded")
    while True:
        owned = until(access, lambda view, _: _owned_or_free(view, name), what=f"the release of all bundles of {name}")
        if not owned:
            return request(access, DeleteNamespace(name=name))
        for bundle in owned:
            _unload_if_still_there(access, bundle)


def _owned_or_free(view: View, name: str) -> list[str] | None:
    """The bundles of a namespace that can be unloaded; none if all are free; None while the rest must be waited for."""
    bundles = view.bundles_of(name)
    owned = [bundle.name for bundle in bundles if bundle.phase == "owned"]
    return None if not owned and any(bundle.phase in _MOVING for bundle in bundles) else owned


def _unload_if_still_there(access: Access, name: str) -> None:
    try:
        unload(access, name)
    except Rejected:
        # Somebody else moved it meanwhile, which the next look takes account of. Anything else would be refused again.
        bundle = access.view.bundles.get(name)
        if bundle is not None and bundle.phase == "owned":
            raise


def owner_of(view: View, bundle: BundleEntry) -> str:
    """The id of the broker that `bundle` names as its owner."""
    return "nobody" if bundle.owner is None else view.live[bundle.owner].broker


def _why(view: View, bundle: BundleEntry | None, ended_by: Folded | None) -> str:
    """Why a move came to nothing: the record that ended it, and where the bundle is now."""
    names = Names(view)
    told = () if ended_by is None else (describe(ended_by, view, names),)
    return "; ".join((*told, "it is gone" if bundle is None else f"now {standing(bundle, names)}"))
