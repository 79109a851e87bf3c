"""Tenures: what this broker does about each bundle that the view names it in (section 3 of the protocol).

May live here: the reconciliation of what the log says with what the service has done. Nothing about membership, and no
choice of who should own what.

Theory of operation. Nothing here reacts to a single record. After anything has changed, `_reconcile` compares the role that
the view gives this broker in a bundle with the stage of its own tenure, and takes the one next step. So replay and tail, a
restart and a repeated event, a call-off in the midst of an opening: all are the same function. One bundle has one operation
of the service under way at a time; what is wanted next waits for its end or its deadline.

A tenure belongs to one transfer. Once the log takes the bundle away, the tenure is over. Its operation runs to its end, the
service closes what is open and discards what it prepared, and the broker forgets the tenure. Only then does the next transfer
begin a tenure of its own, with its own source, its own deadlines and its own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Final

from equipoise.brokers.agent.core import Core
from equipoise.brokers.agent.effects import Abandon, Close, Discard, FindCuts, Open, Prepare, Reshaped
from equipoise.brokers.agent.events import CutsFound
from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.agent.membership import NEVER_MS
from equipoise.brokers.balancing.namespace_policies import serves_on
from equipoise.channel.core import propose
from equipoise.channel.core.difference import Jump
from equipoise.channel.core.entries import BundleChanged, BundleEntry, NamespaceChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import CUTS_MAX, TEXT_CHARACTERS_MAX, BundleTransition, Merge, Split

# How often tenures that are not simply open are looked at again, for proposals that went astray.
_SWEEP_MS: Final = 250

# The same while the log takes no records. Renewals try it several times a second, and the first that is read back ends this
# at once, so that it costs no bundle any time; but with 256 bundles on their way it spares a full disk 1,000 appends a second.
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
    """What the view wants of this broker for a bundle."""

    NONE = "none"
    WARM_UP = "warm up and say so"
    STAND_BY = "be ready, the source is closing"
    SERVE = "serve"
    PART = "close and say so"


_ROLE_OF_OWNER: Final = {
    "assigning": Role.WARM_UP,
    "transferring": Role.WARM_UP,
    "handing_over": Role.STAND_BY,
    "owned": Role.SERVE,
    "splitting": Role.SERVE,
}
_ROLE_OF_SOURCE: Final = {"transferring": Role.SERVE, "handing_over": Role.PART, "unloading": Role.PART}


@dataclass(slots=True, kw_only=True)
class Tenure:
    """One bundle at this broker. `deadline_ms` bounds the operation under way; `problem` says why it was refused or failed.

    `is_over` is set once the log has taken the bundle away: the tenure only ends, and none of it counts for what comes next.
    `handover` is the newest state of the bundle, which its former owner or this broker's own service left. Before it stands the
    token under which the bundle goes on with that state.
    """

    bundle: str
    stage: Stage
    deadline_ms: int = NEVER_MS
    is_over: bool = False
    handle: Handle | None = None
    source: int | None = None
    handover: tuple[int, bytes] | None = None
    problem: str | None = None
    cuts_asked_at: int | None = None
    cuts: tuple[int, ...] | None = None


class Tenures:
    """All tenures of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tenures: dict[str, Tenure] = {}
        self._restless: dict[str, None] = {}
        self._sweep_ms = _SWEEP_MS
        self._sweep_at_ms = NEVER_MS
        self.wake_at_ms = NEVER_MS

    # --- what others ask ---

    @property
    def handles(self) -> dict[str, Handle]:
        """The handles of the bundles that are open or being opened here, by name of bundle."""
        return {name: tenure.handle for name, tenure in self._tenures.items() if tenure.handle is not None}

    def handle(self, bundle: str) -> Handle | None:
        """The handle of one bundle, if it is open or being opened here."""
        tenure = self._tenures.get(bundle)
        return None if tenure is None else tenure.handle

    def is_empty(self) -> bool:
        """Whether the service has nothing left to do or to close."""
        return not self._tenures

    # --- what was read ---

    def folded(self, folded: Folded) -> None:
        """Take note of a record that changed bundles."""
        record = folded.record
        if isinstance(record, Split | Merge):
            self._reshape(folded)
        elif isinstance(record, BundleTransition) and record.handover is not None and folded.verdict.accepted:
            tenure = self._tenures.get(record.key)
            if tenure is not None and record.owner == self._core.serving:
                tenure.handover = folded.offset, record.handover
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and self._concerns(change):
                self._reconcile(change.name)
            elif isinstance(change, NamespaceChanged):
                self._policies_changed(change.name)

    def jumped(self, jump: Jump) -> None:
        """Act on bundles that changed in records that this broker has not read.

        If it is now to warm up for a bundle, another transfer may have begun in those records: the old tenure is over. If it owns
        the bundle, or has said that it is ready for it, the transfer is the one that it knows: that takes a record of its own.
        """
        for change in jump.changes:
            if isinstance(change, BundleChanged):
                tenure = self._tenures.get(change.name)
                if tenure is not None and self._role(change.after) is Role.WARM_UP:
                    tenure.is_over = True
                if self._concerns(change):
                    self._reconcile(change.name)
            elif isinstance(change, NamespaceChanged):
                self._policies_changed(change.name)

    def incarnation_changed(self) -> None:
        """The broker joined, or lost its incarnation, or serves no more: every tenure, and every bundle that names it."""
        for name in list(self._tenures):
            self._reconcile(name)
        if self._core.serving is not None:
            for bundle in self._core.view.held_by(self._core.serving):
                self._reconcile(bundle.name)

    def _policies_changed(self, namespace: str) -> None:
        """What the policies of a namespace say now counts for what is open of it, too."""
        will_serve_on = serves_on(self._core.view, namespace)
        for tenure in self._tenures.values():
            if tenure.handle is not None and tenure.handle.namespace == namespace:
                tenure.handle.serves_on = will_serve_on

    def _concerns(self, change: BundleChanged) -> bool:
        if change.name in self._tenures:
            return True
        me = self._core.serving
        return me is not None and change.after is not None and me in (change.after.owner, change.after.source)

    def _reshape(self, folded: Folded) -> None:
        """A split or a merge: where the service has what is gone open, its heirs are open in the same instant."""
        changes = [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]
        gone = [self._open_tenure(change.name) for change in changes if change.after is None]
        is_busy = any(change.after is not None and change.name in self._tenures for change in changes)
        if not gone or any(handle is None for handle in gone) or is_busy:
            return  # The service has none, or is not done with one of them: reconciled like any other change.
        parents = tuple(handle for handle in gone if handle is not None)
        heirs = tuple(self._new_handle(change.after, is_open=True) for change in changes if change.after is not None)
        for parent in parents:
            parent.is_open = False
            parent.heirs = heirs
            del self._tenures[parent.bundle]
            self._restless.pop(parent.bundle, None)
        for heir in heirs:
            self._tenures[heir.bundle] = Tenure(bundle=heir.bundle, stage=Stage.OPEN, handle=heir)
        self._core.effects.append(Reshaped(gone=parents, heirs=heirs))

    def _open_tenure(self, bundle: str) -> Handle | None:
        tenure = self._tenures.get(bundle)
        return tenure.handle if tenure is not None and tenure.stage is Stage.OPEN else None

    # --- what the service said ---

    def prepared(self, bundle: str, problem: str | None) -> None:
        """The service is warm for the bundle, or refuses it."""
        self._finished(bundle, Stage.PREPARING, Stage.READY if problem is None else Stage.REFUSED, problem)

    def opened(self, bundle: str, problem: str | None) -> None:
        """The service has opened the bundle, or failed to."""
        tenure = self._tenures.get(bundle)
        if tenure is not None and tenure.stage is Stage.OPENING and tenure.handle is not None:
            tenure.handle.is_open = problem is None
        self._finished(bundle, Stage.OPENING, Stage.OPEN if problem is None else Stage.FAILED, problem)

    def closed(self, bundle: str, handover: bytes | None) -> None:
        """The service has closed the bundle."""
        tenure = self._tenures.get(bundle)
        if tenure is not None and tenure.stage is Stage.CLOSING:
            tenure.handover = None if handover is None or tenure.handle is None else (tenure.handle.token, handover)
        self._finished(bundle, Stage.CLOSING, Stage.CLOSED, None)

    def discarded(self, bundle: str) -> None:
        """The service has discarded what it prepared."""
        self._finished(bundle, Stage.DISCARDING, Stage.CLOSED, None)

    def cuts_found(self, found: CutsFound) -> None:
        """The service says where to cut, or that it cannot; an answer to an older question changes nothing."""
        tenure = self._tenures.get(found.bundle)
        if tenure is not None and tenure.cuts_asked_at == found.asked_at:
            tenure.cuts = found.cuts
            tenure.problem = found.problem
            self._reconcile(found.bundle)

    def _finished(self, bundle: str, was: Stage, now: Stage, problem: str | None) -> None:
        """End an operation; an answer that comes after its deadline, or twice, finds another stage and changes nothing."""
        tenure = self._tenures.get(bundle)
        if tenure is None or tenure.stage is not was:
            return
        tenure.stage, tenure.problem, tenure.deadline_ms = now, problem, NEVER_MS
        if now in (Stage.FAILED, Stage.CLOSED):
            tenure.handle = None
        self._reconcile(bundle)

    # --- what is due ---

    def tick(self) -> None:
        """End what overran its deadline, and look at everything unfinished again if it is time for that."""
        now_ms = self._core.now.boot_ms
        if now_ms < self.wake_at_ms:
            return
        is_sweep = now_ms >= self._sweep_at_ms
        for name in list(self._restless):
            tenure = self._tenures.get(name)
            if tenure is not None and tenure.deadline_ms <= now_ms:
                self._overran(tenure)
            elif is_sweep:
                self._reconcile(name)
        if is_sweep:
            self._sweep_at_ms = now_ms + self._sweep_ms if self._restless else NEVER_MS
        deadlines_ms = (self._tenures[name].deadline_ms for name in self._restless if name in self._tenures)
        self.wake_at_ms = min(self._sweep_at_ms, *deadlines_ms, NEVER_MS)

    def append_failed(self) -> None:
        """The log does not take records: what it refused is said again less often."""
        self._sweep_ms = _SWEEP_OF_OUTAGE_MS

    def append_succeeded(self) -> None:
        """A record of this broker was read back: what the log refused meanwhile is said again at once."""
        if self._sweep_ms != _SWEEP_MS:
            self._sweep_ms = _SWEEP_MS
            self._sweep_at_ms = self.wake_at_ms = self._core.now.boot_ms

    def _overran(self, tenure: Tenure) -> None:
        doing = tenure.stage
        after = _STAGE_AFTER_DEADLINE[doing]
        self._core.effects.append(Abandon(bundle=tenure.bundle, doing=doing.value))
        if tenure.handle is not None:
            tenure.handle.is_open = False
        self._finished(tenure.bundle, doing, after, f"the service was not done with {doing.value} it in time")

    # --- reconciliation ---

    def _role(self, bundle: BundleEntry | None) -> Role:
        me = self._core.serving
        if bundle is None or me is None:
            return Role.NONE
        if bundle.owner == me:
            return _ROLE_OF_OWNER[bundle.phase]
        return _ROLE_OF_SOURCE[bundle.phase] if bundle.source == me else Role.NONE

    def _reconcile(self, name: str) -> None:
        """Take the one next step that brings the tenure of `name` nearer to the role that the view gives this broker."""
        bundle = self._core.view.bundles.get(name)
        role = self._role(bundle)
        tenure = self._tenures.get(name)
        if tenure is not None and (tenure.is_over or role is Role.NONE):
            self._wind_up(tenure, bundle)
        elif bundle is not None and role is not Role.NONE:
            _STEPS[role](self, bundle, tenure)
        self._note_restless(name, role)

    def _note_restless(self, name: str, role: Role) -> None:
        tenure = self._tenures.get(name)
        bundle = self._core.view.bundles.get(name)
        at_rest = tenure is None and role is Role.NONE
        if tenure is not None and tenure.stage is Stage.OPEN and role is Role.SERVE:
            at_rest = bundle is not None and bundle.phase != "splitting"
        if at_rest:
            self._restless.pop(name, None)
            return
        self._restless[name] = None
        deadline_ms = NEVER_MS if tenure is None else tenure.deadline_ms
        self._sweep_at_ms = min(self._sweep_at_ms, self._core.now.boot_ms + self._sweep_ms)
        self.wake_at_ms = min(self.wake_at_ms, deadline_ms, self._sweep_at_ms)

    def _wind_up(self, tenure: Tenure, bundle: BundleEntry | None) -> None:
        """Bring a tenure to its end: close what is open, discard what was prepared, and forget it. Only then may another begin."""
        tenure.is_over = True
        if tenure.handle is not None:
            tenure.handle.is_open = False
        if tenure.stage is Stage.OPEN:
            self._close(tenure, bundle)
        elif tenure.stage is Stage.READY:
            tenure.stage, tenure.deadline_ms = Stage.DISCARDING, self._core.now.boot_ms + self._core.timing.close_ms
            self._core.effects.append(Discard(bundle=tenure.bundle, deadline_ms=tenure.deadline_ms))
        elif tenure.stage in (Stage.REFUSED, Stage.FAILED, Stage.CLOSED):
            del self._tenures[tenure.bundle]
            if self._role(bundle) is not Role.NONE:
                self._reconcile(tenure.bundle)

    def _warm_up(self, bundle: BundleEntry, tenure: Tenure | None) -> None:
        core = self._core
        if tenure is None:
            if self._is_overlapped(bundle):
                return
            deadline_ms = core.now.boot_ms + core.timing.prepare_ms
            self._tenures[bundle.name] = Tenure(bundle=bundle.name, stage=Stage.PREPARING, deadline_ms=deadline_ms, source=bundle.source)
            source = None if bundle.source is None else core.view.live.get(bundle.source)
            core.effects.append(Prepare(bundle=bundle, source=source, deadline_ms=deadline_ms))
        elif tenure.stage is Stage.READY:
            ready = propose.opened if bundle.phase == "assigning" else propose.let_go
            core.propose(partial(ready, bundle=bundle))
        elif tenure.stage is Stage.REFUSED:
            problem = _reason(tenure)
            if bundle.phase == "assigning":
                core.propose(partial(propose.refuse, bundle=bundle, reason=problem))
            else:
                core.propose(partial(propose.refuse_transfer, bundle=bundle, problem=problem))

    def _stand_by(self, bundle: BundleEntry, tenure: Tenure | None) -> None:
        """Nothing to do: this broker has said itself that it is ready, and the source's record or death comes next."""

    def _serve(self, bundle: BundleEntry, tenure: Tenure | None) -> None:
        if tenure is None or tenure.stage in (Stage.READY, Stage.REFUSED, Stage.CLOSED):
            self._open(bundle, tenure)
        elif tenure.stage is Stage.OPEN and tenure.handle is not None and tenure.handle.token != bundle.token:
            self._wind_up(tenure, bundle)  # The log gave it away and back meanwhile: this is another tenure.
        elif tenure.stage is Stage.OPEN and bundle.phase == "splitting":
            self._cut(bundle, tenure)
        elif tenure.stage is Stage.FAILED:
            self._give_up(bundle, _reason(tenure))

    def _part(self, bundle: BundleEntry, tenure: Tenure | None) -> None:
        core = self._core
        if tenure is not None and tenure.handle is not None:
            tenure.handle.is_open = False
        if tenure is not None and tenure.stage is Stage.OPEN:
            self._close(tenure, bundle)
        elif tenure is None or tenure.stage in (Stage.READY, Stage.REFUSED, Stage.FAILED, Stage.CLOSED):
            if bundle.phase == "unloading":
                core.propose(partial(propose.released, bundle=bundle))
            else:
                core.propose(partial(propose.hand_over, bundle=bundle, handover=_handover(bundle, tenure)))

    def _open(self, bundle: BundleEntry, prepared: Tenure | None) -> None:
        core = self._core
        if self._is_overlapped(bundle):
            return
        handle = self._new_handle(bundle, is_open=False)
        deadline_ms = core.now.boot_ms + core.timing.open_ms
        self._tenures[bundle.name] = Tenure(bundle=bundle.name, stage=Stage.OPENING, deadline_ms=deadline_ms, handle=handle)
        source = None if prepared is None or prepared.source is None else core.view.live.get(prepared.source)
        core.effects.append(Open(handle=handle, source=source, handover=_handover(bundle, prepared), deadline_ms=deadline_ms))

    def _close(self, tenure: Tenure, bundle: BundleEntry | None) -> None:
        core = self._core
        handle = tenure.handle
        if handle is None:
            return
        # A broker that closes what the log still calls its own (it leaves, or has lost that tenure) knows of nobody else.
        moved_to = None if bundle is None or bundle.owner in (None, core.incarnation) else core.view.live.get(bundle.owner)
        tenure.stage, tenure.deadline_ms = Stage.CLOSING, core.now.boot_ms + core.timing.close_ms
        core.effects.append(Close(handle=handle, moved_to=moved_to, deadline_ms=tenure.deadline_ms))

    def _give_up(self, bundle: BundleEntry, reason: str) -> None:
        """The service failed to open what this broker owns: hand it back, after calling off what is built upon it."""
        core = self._core
        if bundle.phase == "owned":
            core.propose(partial(propose.give_up, bundle=bundle, problem=reason))
        elif bundle.phase == "splitting":
            core.propose(partial(propose.call_off, bundle=bundle, reason=reason))

    def _cut(self, bundle: BundleEntry, tenure: Tenure) -> None:
        core = self._core
        if tenure.cuts_asked_at != bundle.last:
            tenure.cuts_asked_at, tenure.cuts = bundle.last, None
            core.effects.append(FindCuts(bundle=bundle))
            return
        cuts = tenure.cuts
        if cuts is None:
            return
        if cuts and self._are_possible(bundle, cuts):
            core.propose(partial(propose.split, bundle=bundle, cuts=cuts))
        else:
            nonsense = f"the service wants cuts that are not at most {CUTS_MAX}, rising, and strictly inside it"
            reason = tenure.problem or (nonsense if cuts else "the service finds no place to cut it")
            core.propose(partial(propose.call_off, bundle=bundle, reason=_fit_for_a_record(reason)))

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
        """Whether the service is still busy with another bundle over the same points, one that was split or merged away."""
        return any(
            tenure.handle is not None
            and tenure.bundle != bundle.name
            and tenure.handle.namespace == bundle.namespace
            and tenure.handle.low < bundle.high
            and bundle.low < tenure.handle.high
            for tenure in (self._tenures[name] for name in self._restless if name in self._tenures)
        )


def _handover(bundle: BundleEntry, tenure: Tenure | None) -> bytes | None:
    """Return the newest state of a bundle; None if it is not known here, or belongs to another token than the bundle's."""
    token, state = (None, None) if tenure is None or tenure.handover is None else tenure.handover
    return state if token == bundle.token else None


def _reason(tenure: Tenure) -> str:
    return _fit_for_a_record(tenure.problem or "the service refused it")


def _fit_for_a_record(text: str) -> str:
    """What a service says, cut to what a record holds; a lone surrogate, which no record can spell, counts as `?`."""
    return text[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()


_STAGE_AFTER_DEADLINE: Final = {
    Stage.PREPARING: Stage.REFUSED,
    Stage.OPENING: Stage.FAILED,
    Stage.CLOSING: Stage.CLOSED,
    Stage.DISCARDING: Stage.CLOSED,
}

_STEPS: Final[dict[Role, Callable[[Tenures, BundleEntry, Tenure | None], None]]] = {
    Role.WARM_UP: Tenures._warm_up,  # noqa: SLF001 - the table of the class's own steps
    Role.STAND_BY: Tenures._stand_by,  # noqa: SLF001
    Role.SERVE: Tenures._serve,  # noqa: SLF001
    Role.PART: Tenures._part,  # noqa: SLF001
}
