"""Reconcile each bundle that the view assigns to this broker with its service (section 3 of the
protocol).

Theory of operation:

* After any change, `_reconcile` compares this broker's role in a bundle with the stage of its
  ownership and takes one step. So replay, tailing, restarts, repeated events and cancels run the
  same code.
* A bundle has one service operation at a time. The next one waits for its end or its deadline.
* An ownership belongs to one transfer. When the log takes the bundle away, the operation ends, the
  service closes or discards, and the ownership is forgotten. Only then may another begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Final

from equipoise.brokers.agent.core import NEVER_MS, Core
from equipoise.brokers.agent.effects import (
    Abandon,
    Close,
    Discard,
    FindCuts,
    Open,
    Prepare,
    Reshaped,
)
from equipoise.brokers.agent.events import CutsFound
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.balancing.namespace_policies import serves_on
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BrokerEntry, BundleChanged, BundleEntry, NamespaceChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import (
    CUTS_MAX,
    TEXT_CHARACTERS_MAX,
    BundleTransition,
    Merge,
    Split,
)
from equipoise.channel.core.table import Resync

# How often unfinished ownerships are checked again, for lost proposals.
_SWEEP_MS: Final = 250

# The same while the log takes no records. The first renewal read back ends it, so no bundle loses
# time. It spares a full disk 1,000 appends a second with 256 pending bundles.
_SWEEP_OF_OUTAGE_MS: Final = 10_000


class Stage(Enum):
    """How far the service is with a bundle."""

    PREPARING = "preparing"
    READY = "ready"
    REFUSED = "refused"
    OPENING = "opening"
    OPEN = "open"
    FAILED = "failed"
    CLOSING = "closing"
    CLOSED = "closed"
    DISCARDING = "discarding"


class Role(Enum):
    """What the view wants this broker to do for a bundle."""

    NONE = "none"
    WARM_UP = "warm up and report"
    STAND_BY = "be ready, the source is closing"
    SERVE = "serve"
    RELEASE = "close and report"


_ROLE_OF_OWNER: Final = {
    "assigning": Role.WARM_UP,
    "transferring": Role.WARM_UP,
    "handing_over": Role.STAND_BY,
    "owned": Role.SERVE,
    "splitting": Role.SERVE,
}
_ROLE_OF_SOURCE: Final = {
    "transferring": Role.SERVE,
    "handing_over": Role.RELEASE,
    "unloading": Role.RELEASE,
}


@dataclass(slots=True, kw_only=True)
class _Ownership:
    """One ownership of a bundle by this broker, from its preparation or opening to its end.

    * `deadline_ms`: of the current operation.
    * `problem`: why it was refused or failed.
    * `released_by`: the `source`, if it lived when the log gave the bundle to this broker. It may
      leave before the bundle is opened.
    * `is_over`: the log has taken the bundle away. The next ownership takes nothing from this one.
    * `handover`: the newest state, from the former owner or the own service, and before it the
      token it goes on under.
    """

    bundle: str
    stage: Stage
    deadline_ms: int = NEVER_MS
    is_over: bool = False
    handle: Handle | None = None
    source: int | None = None
    released_by: BrokerEntry | None = None
    handover: tuple[int, bytes] | None = None
    problem: str | None = None
    cuts_asked_at: int | None = None
    cuts: tuple[int, ...] | None = None


class Ownerships:
    """All ownerships of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ownerships: dict[str, _Ownership] = {}
        self._pending: dict[str, None] = {}
        # To open once the data directory notes their tokens.
        self._unnoted: dict[str, BundleEntry] = {}
        self._sweep_ms = _SWEEP_MS
        self._sweep_at_ms = NEVER_MS
        self.wake_at_ms = NEVER_MS

    # --- what others ask ---

    @property
    def handles(self) -> dict[str, Handle]:
        """The handles of bundles that are open or opening here, by name."""
        return {
            name: ownership.handle
            for name, ownership in self._ownerships.items()
            if ownership.handle is not None
        }

    def handle(self, bundle: str) -> Handle | None:
        """Return the handle of a bundle that is open or opening here; None otherwise."""
        ownership = self._ownerships.get(bundle)
        return None if ownership is None else ownership.handle

    def is_empty(self) -> bool:
        """Return whether the service has nothing left to do or to close."""
        return not self._ownerships

    # --- what was read ---

    def folded(self, folded: Folded) -> None:
        """Note a record that changed bundles."""
        record = folded.record
        if isinstance(record, Split | Merge):
            self._reshape(folded)
        elif (
            isinstance(record, BundleTransition)
            and record.handover is not None
            and folded.verdict.accepted
        ):
            ownership = self._ownerships.get(record.key)
            if ownership is not None and record.owner == self._core.serving:
                ownership.handover = folded.offset, record.handover
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and self._concerns(change):
                self._reconcile(change.name)
            elif isinstance(change, NamespaceChanged):
                self._policies_changed(change.name)

    def resynced(self, resync: Resync) -> None:
        """Act on bundles that changed in records that this broker has not read.

        If it is now to warm up, another transfer may have begun, so the old ownership is over. If
        it owns the bundle or has reported ready, the transfer is the known one: both need an own
        record.
        """
        for change in resync.changes:
            if isinstance(change, BundleChanged):
                ownership = self._ownerships.get(change.name)
                if ownership is not None and self._role(change.after) is Role.WARM_UP:
                    ownership.is_over = True
                if self._concerns(change):
                    self._reconcile(change.name)
            elif isinstance(change, NamespaceChanged):
                self._policies_changed(change.name)

    def incarnation_changed(self) -> None:
        """Reconcile all ownerships and bundles after the broker joined, lost its incarnation or
        stopped serving.
        """
        for name in list(self._ownerships):
            self._reconcile(name)
        if self._core.serving is not None:
            for bundle in self._core.view.held_by(self._core.serving):
                self._reconcile(bundle.name)

    def _policies_changed(self, namespace: str) -> None:
        """Apply a namespace's changed policies to its open bundles, too."""
        will_serve_on = serves_on(self._core.view, namespace)
        for ownership in self._ownerships.values():
            if ownership.handle is not None and ownership.handle.namespace == namespace:
                ownership.handle.serves_on = will_serve_on

    def _concerns(self, change: BundleChanged) -> bool:
        if change.name in self._ownerships:
            return True
        me = self._core.serving
        return (
            me is not None
            and change.after is not None
            and me in (change.after.owner, change.after.source)
        )

    def _reshape(self, folded: Folded) -> None:
        """Note a split or a merge: if the parents are open here, the children open in the same
        instant.
        """
        changes = [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]
        gone = [self._open_ownership(change.name) for change in changes if change.after is None]
        is_busy = any(
            change.after is not None and change.name in self._ownerships for change in changes
        )
        if not gone or any(handle is None for handle in gone) or is_busy:
            return  # Not open or still busy: reconcile as usual.
        parents = tuple(handle for handle in gone if handle is not None)
        children = tuple(
            self._new_handle(change.after, is_open=True)
            for change in changes
            if change.after is not None
        )
        for parent in parents:
            parent.is_open = False
            parent.children = children
            del self._ownerships[parent.bundle]
            self._pending.pop(parent.bundle, None)
        for child in children:
            self._ownerships[child.bundle] = _Ownership(
                bundle=child.bundle, stage=Stage.OPEN, handle=child
            )
        self._core.effects.append(Reshaped(gone=parents, children=children))

    def _open_ownership(self, bundle: str) -> Handle | None:
        ownership = self._ownerships.get(bundle)
        return ownership.handle if ownership is not None and ownership.stage is Stage.OPEN else None

    # --- results of the service ---

    def prepared(self, bundle: str, problem: str | None) -> None:
        """Note that the service is warm for the bundle, or refuses it."""
        self._finished(
            bundle, Stage.PREPARING, Stage.READY if problem is None else Stage.REFUSED, problem
        )

    def opened(self, bundle: str, problem: str | None) -> None:
        """Note that the service has opened the bundle, or failed to."""
        ownership = self._ownerships.get(bundle)
        if (
            ownership is not None
            and ownership.stage is Stage.OPENING
            and ownership.handle is not None
        ):
            ownership.handle.is_open = problem is None
        self._finished(
            bundle, Stage.OPENING, Stage.OPEN if problem is None else Stage.FAILED, problem
        )

    def open_continues(self, bundle: str) -> None:
        """Give an opening that receives state its deadline again, unless the log has taken the
        bundle away.
        """
        ownership = self._ownerships.get(bundle)
        if ownership is not None and ownership.stage is Stage.OPENING and not ownership.is_over:
            ownership.deadline_ms = self._core.now.boot_ms + self._core.timing.open_ms

    def closed(self, bundle: str, handover: bytes | None) -> None:
        """Note that the service has closed the bundle."""
        ownership = self._ownerships.get(bundle)
        if ownership is not None and ownership.stage is Stage.CLOSING:
            if ownership.handle is not None:
                ownership.handle.is_settling = False
            ownership.handover = (
                None
                if handover is None or ownership.handle is None
                else (ownership.handle.token, handover)
            )
        self._finished(bundle, Stage.CLOSING, Stage.CLOSED, None)

    def discarded(self, bundle: str) -> None:
        """Note that the service has discarded what it prepared."""
        self._finished(bundle, Stage.DISCARDING, Stage.CLOSED, None)

    def cuts_found(self, found: CutsFound) -> None:
        """Note where the service wants to cut, or that it cannot. Ignore an answer to an older
        question.
        """
        ownership = self._ownerships.get(found.bundle)
        if ownership is not None and ownership.cuts_asked_at == found.asked_at:
            ownership.cuts = found.cuts
            ownership.problem = found.problem
            self._reconcile(found.bundle)

    def _finished(self, bundle: str, was: Stage, now: Stage, problem: str | None) -> None:
        """End an operation. A late or second answer finds another stage and changes nothing."""
        ownership = self._ownerships.get(bundle)
        if ownership is None or ownership.stage is not was:
            return
        ownership.stage, ownership.problem, ownership.deadline_ms = now, problem, NEVER_MS
        if now in (Stage.FAILED, Stage.CLOSED):
            ownership.handle = None
        self._reconcile(bundle)

    def tokens_noted(self) -> None:
        """Open what waited until the data directory notes its token."""
        waiting, self._unnoted = self._unnoted, {}
        for name, bundle in waiting.items():
            ownership = self._ownerships.get(name)
            if ownership is not None and self._is_merged(ownership, bundle):
                self._open(bundle, ownership)
                self._note_pending(name, Role.NONE)
            else:
                self._reconcile(name)

    def _is_merged(self, ownership: _Ownership, unnoted: BundleEntry | None) -> bool:
        """Return whether a bundle was merged away while it waited for its mark. It opens and
        closes: only so the union gets its state.
        """
        if (
            unnoted is None
            or unnoted.owner != self._core.serving
            or unnoted.name in self._core.view.bundles
        ):
            return False
        return ownership.stage in (Stage.READY, Stage.REFUSED, Stage.CLOSED)

    # --- what is due ---

    def tick(self) -> None:
        """End operations past their deadlines. Check all unfinished ownerships when a sweep is
        due.
        """
        now_ms = self._core.now.boot_ms
        if now_ms < self.wake_at_ms:
            return
        is_sweep = now_ms >= self._sweep_at_ms
        for name in list(self._pending):
            ownership = self._ownerships.get(name)
            if ownership is not None and ownership.deadline_ms <= now_ms:
                self._overran(ownership)
            elif is_sweep:
                self._reconcile(name)
        if is_sweep:
            self._sweep_at_ms = now_ms + self._sweep_ms if self._pending else NEVER_MS
        deadlines_ms = (
            self._ownerships[name].deadline_ms for name in self._pending if name in self._ownerships
        )
        self.wake_at_ms = min(self._sweep_at_ms, *deadlines_ms, NEVER_MS)

    def append_failed(self) -> None:
        """Propose less often what the log has refused."""
        self._sweep_ms = _SWEEP_OF_OUTAGE_MS

    def append_succeeded(self) -> None:
        """Propose at once what the log refused, because a record of this broker was read back."""
        if self._sweep_ms != _SWEEP_MS:
            self._sweep_ms = _SWEEP_MS
            self._sweep_at_ms = self.wake_at_ms = self._core.now.boot_ms

    def _overran(self, ownership: _Ownership) -> None:
        doing = ownership.stage
        after = _STAGE_AFTER_DEADLINE[doing]
        self._core.effects.append(Abandon(bundle=ownership.bundle, doing=doing.value))
        if ownership.handle is not None:
            ownership.handle.is_open = ownership.handle.is_settling = False
        self._finished(
            ownership.bundle, doing, after, f"the service did not finish {doing.value} it in time"
        )

    # --- reconciliation ---

    def _role(self, bundle: BundleEntry | None) -> Role:
        me = self._core.serving
        if bundle is None or me is None:
            return Role.NONE
        if bundle.owner == me:
            return _ROLE_OF_OWNER[bundle.phase]
        return _ROLE_OF_SOURCE[bundle.phase] if bundle.source == me else Role.NONE

    def _reconcile(self, name: str) -> None:
        """Take one step that brings the ownership closer to this broker's role."""
        bundle = self._core.view.bundles.get(name)
        role = self._role(bundle)
        ownership = self._ownerships.get(name)
        if ownership is not None and (ownership.is_over or role is Role.NONE):
            self._wind_up(ownership, bundle)
        elif bundle is not None and role is not Role.NONE:
            _STEPS[role](self, bundle, ownership)
        self._note_pending(name, role)

    def _note_pending(self, name: str, role: Role) -> None:
        ownership = self._ownerships.get(name)
        bundle = self._core.view.bundles.get(name)
        at_rest = ownership is None and role is Role.NONE
        if ownership is not None and ownership.stage is Stage.OPEN and role is Role.SERVE:
            at_rest = bundle is not None and bundle.phase != "splitting"
        if at_rest:
            self._pending.pop(name, None)
            return
        self._pending[name] = None
        deadline_ms = NEVER_MS if ownership is None else ownership.deadline_ms
        self._sweep_at_ms = min(self._sweep_at_ms, self._core.now.boot_ms + self._sweep_ms)
        self.wake_at_ms = min(self.wake_at_ms, deadline_ms, self._sweep_at_ms)

    def _wind_up(self, ownership: _Ownership, bundle: BundleEntry | None) -> None:
        """End an ownership: close what is open, discard what was prepared, forget it."""
        ownership.is_over = True
        if ownership.handle is not None:
            ownership.handle.is_open = ownership.handle.is_settling = False
        if ownership.stage is Stage.OPEN:
            self._close(ownership, bundle)
        elif self._is_merged(ownership, self._unnoted.get(ownership.bundle)):
            return
        elif ownership.stage is Stage.READY:
            ownership.stage, ownership.deadline_ms = (
                Stage.DISCARDING,
                self._core.now.boot_ms + self._core.timing.close_ms,
            )
            self._core.effects.append(
                Discard(bundle=ownership.bundle, deadline_ms=ownership.deadline_ms)
            )
        elif ownership.stage in (Stage.REFUSED, Stage.FAILED, Stage.CLOSED):
            del self._ownerships[ownership.bundle]
            if self._role(bundle) is not Role.NONE:
                self._reconcile(ownership.bundle)

    def _warm_up(self, bundle: BundleEntry, ownership: _Ownership | None) -> None:
        core = self._core
        if ownership is None:
            if self._is_overlapped(bundle):
                return
            deadline_ms = core.now.boot_ms + core.timing.prepare_ms
            self._ownerships[bundle.name] = _Ownership(
                bundle=bundle.name,
                stage=Stage.PREPARING,
                deadline_ms=deadline_ms,
                source=bundle.source,
            )
            source = None if bundle.source is None else core.view.live.get(bundle.source)
            core.effects.append(Prepare(bundle=bundle, source=source, deadline_ms=deadline_ms))
        elif ownership.stage is Stage.READY:
            ready = propose.opened if bundle.phase == "assigning" else propose.prepared
            core.propose(partial(ready, bundle=bundle))
        elif ownership.stage is Stage.REFUSED:
            problem = _reason(ownership)
            if bundle.phase == "assigning":
                core.propose(partial(propose.refuse, bundle=bundle, reason=problem))
            else:
                core.propose(partial(propose.refuse_transfer, bundle=bundle, problem=problem))

    def _stand_by(self, bundle: BundleEntry, ownership: _Ownership | None) -> None:
        """Do nothing: the source's record or death comes next."""

    def _serve(self, bundle: BundleEntry, ownership: _Ownership | None) -> None:
        if ownership is None or ownership.stage in (Stage.READY, Stage.REFUSED, Stage.CLOSED):
            self._open(bundle, ownership)
        elif (
            ownership.stage is Stage.OPEN
            and ownership.handle is not None
            and ownership.handle.token != bundle.token
        ):
            self._wind_up(ownership, bundle)  # Moved away and back: another ownership.
        elif ownership.stage is Stage.OPEN and bundle.phase == "splitting":
            self._cut(bundle, ownership)
        elif ownership.stage is Stage.FAILED:
            self._give_up(bundle, _reason(ownership))

    def _release(self, bundle: BundleEntry, ownership: _Ownership | None) -> None:
        core = self._core
        if ownership is not None and ownership.handle is not None:
            ownership.handle.is_open = False
        if ownership is not None and ownership.stage is Stage.OPEN:
            self._close(ownership, bundle)
        elif ownership is None or ownership.stage in (
            Stage.READY,
            Stage.REFUSED,
            Stage.FAILED,
            Stage.CLOSED,
        ):
            if bundle.phase == "unloading":
                core.propose(partial(propose.released, bundle=bundle))
            else:
                core.propose(
                    partial(propose.hand_over, bundle=bundle, handover=_handover(bundle, ownership))
                )

    def _open(self, bundle: BundleEntry, prepared: _Ownership | None) -> None:
        core = self._core
        if self._is_overlapped(bundle):
            return
        if prepared is not None and prepared.source is not None and prepared.released_by is None:
            prepared.released_by = core.view.live.get(prepared.source)
        if not core.mark.covers(bundle.token):
            self._unnoted[bundle.name] = bundle
            return
        handle = self._new_handle(bundle, is_open=False)
        deadline_ms = core.now.boot_ms + core.timing.open_ms
        self._ownerships[bundle.name] = _Ownership(
            bundle=bundle.name, stage=Stage.OPENING, deadline_ms=deadline_ms, handle=handle
        )
        source = None if prepared is None else prepared.released_by
        core.effects.append(
            Open(
                handle=handle,
                source=source,
                handover=_handover(bundle, prepared),
                deadline_ms=deadline_ms,
            )
        )

    def _close(self, ownership: _Ownership, bundle: BundleEntry | None) -> None:
        core = self._core
        handle = ownership.handle
        if handle is None:
            return
        # A closing broker that is still the owner on the log (it leaves, or lost this ownership)
        # knows no next owner.
        moved_to = (
            None
            if bundle is None or bundle.owner in (None, core.incarnation)
            else core.view.live.get(bundle.owner)
        )
        handle.is_settling = not ownership.is_over
        ownership.stage, ownership.deadline_ms = (
            Stage.CLOSING,
            core.now.boot_ms + core.timing.close_ms,
        )
        core.effects.append(
            Close(handle=handle, moved_to=moved_to, deadline_ms=ownership.deadline_ms)
        )

    def _give_up(self, bundle: BundleEntry, reason: str) -> None:
        """Hand back a bundle that the service failed to open. First cancel a move that builds on
        it.
        """
        core = self._core
        if bundle.phase == "owned":
            core.propose(partial(propose.give_up, bundle=bundle, problem=reason))
        elif bundle.phase == "splitting":
            core.propose(partial(propose.cancel, bundle=bundle, reason=reason))

    def _cut(self, bundle: BundleEntry, ownership: _Ownership) -> None:
        core = self._core
        if ownership.cuts_asked_at != bundle.last:
            ownership.cuts_asked_at, ownership.cuts = bundle.last, None
            core.effects.append(FindCuts(bundle=bundle))
            return
        cuts = ownership.cuts
        if cuts is None:
            return
        if cuts and self._are_possible(bundle, cuts):
            core.propose(partial(propose.split, bundle=bundle, cuts=cuts))
        else:
            nonsense = (
                f"the service returned cuts that are more than {CUTS_MAX}, not rising, or not"
                " strictly inside it"
            )
            reason = ownership.problem or (
                nonsense if cuts else "the service found no point at which to split it"
            )
            core.propose(partial(propose.cancel, bundle=bundle, reason=_fit_for_a_record(reason)))

    @staticmethod
    def _are_possible(bundle: BundleEntry, cuts: Sequence[int]) -> bool:
        edges = (bundle.low, *cuts, bundle.high)
        return len(cuts) <= CUTS_MAX and all(low < high for low, high in pairwise(edges))

    def _new_handle(self, bundle: BundleEntry, *, is_open: bool) -> Handle:
        return Handle(
            bundle=bundle.name,
            namespace=bundle.namespace,
            low=bundle.low,
            high=bundle.high,
            token=bundle.token,
            lease=self._core.lease,
            is_open=is_open,
            serves_on=serves_on(self._core.view, bundle.namespace),
        )

    def _is_overlapped(self, bundle: BundleEntry) -> bool:
        """Return whether the service is busy with another bundle over the same points, after a
        split or a merge.
        """
        return any(
            ownership.handle is not None
            and ownership.bundle != bundle.name
            and ownership.handle.namespace == bundle.namespace
            and ownership.handle.low < bundle.high
            and bundle.low < ownership.handle.high
            for ownership in (
                self._ownerships[name] for name in self._pending if name in self._ownerships
            )
        )


def _handover(bundle: BundleEntry, ownership: _Ownership | None) -> bytes | None:
    """Return the newest state of a bundle; None if it is unknown here or belongs to another
    token.
    """
    token, state = (
        (None, None) if ownership is None or ownership.handover is None else ownership.handover
    )
    return state if token == bundle.token else None


def _reason(ownership: _Ownership) -> str:
    return _fit_for_a_record(ownership.problem or "the service refused it")


def _fit_for_a_record(text: str) -> str:
    """Fit a service's message into a record: cut it, and replace lone surrogates with `?`."""
    return text[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()


_STAGE_AFTER_DEADLINE: Final = {
    Stage.PREPARING: Stage.REFUSED,
    Stage.OPENING: Stage.FAILED,
    Stage.CLOSING: Stage.CLOSED,
    Stage.DISCARDING: Stage.CLOSED,
}

_STEPS: Final[dict[Role, Callable[[Ownerships, BundleEntry, _Ownership | None], None]]] = {
    Role.WARM_UP: Ownerships._warm_up,  # noqa: SLF001 - the table of the class's own steps
    Role.STAND_BY: Ownerships._stand_by,  # noqa: SLF001
    Role.SERVE: Ownerships._serve,  # noqa: SLF001
    Role.RELEASE: Ownerships._release,  # noqa: SLF001
}
