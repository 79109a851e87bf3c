"""Define the answers of operations. Follow moves to their end, and report where their bundles went
and why a bundle is not at its destination.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from equipoise.brokers.agent.requests import nobody_else
from equipoise.brokers.balancing.moves import KIND_OF_PHASE, MoveKind
from equipoise.brokers.errors import cancelled
from equipoise.brokers.operations.checks import owner_of
from equipoise.brokers.operations.port import Port
from equipoise.channel.core.entries import BundleChanged, BundleEntry
from equipoise.channel.core.errors import OutcomeUnknown
from equipoise.channel.core.lifecycle import PHASE_OF_SHAPE
from equipoise.channel.core.propose import is_refusal
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import Names, describe, standing, why_unserved
from equipoise.channel.system.clocks import Deadline

PLACED_MS: Final = 5_000
"""How long an operation waits for the owner of a bundle that is being placed: a new bundle before
it moves, splits or merges, and a released one after it.

A service that refuses is asked again after 0.75 s, 1.5 s, and so on. If a bundle has no owner by
then, the operation reports the reason.
"""

SETTLED_MS: Final = 500
"""How long a new owner must keep a bundle if it does not answer whether it has opened it."""

# The channel keeps the full reason.
_PROBLEM_CHARACTERS_MAX: Final = 256

# On the way to the destination of a transfer, even if the source has died.
_ON_ITS_WAY: Final = frozenset({"assigning", "transferring", "handing_over"})


# --- one move ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedMove:
    """A transfer, unload or split accepted at `offset`. `destination` is the future owner's
    incarnation.
    """

    bundle: str
    kind: MoveKind
    offset: int
    destination: int | None


def begun_by(accepted: Folded) -> RequestedMove:
    """Return the move that an accepted record began. Call it for no other record."""
    record = accepted.record
    assert isinstance(record, BundleTransition), "a move begins with a transition"
    kind = KIND_OF_PHASE[
        PHASE_OF_SHAPE[record.state, record.owner is not None, record.source is not None]
    ]
    return RequestedMove(
        bundle=record.key, kind=kind, offset=accepted.offset, destination=record.owner
    )


def made_by(move: RequestedMove, folded: Folded, view: View) -> tuple[BundleEntry, ...] | None:
    """Return the result of a move once `folded` has ended it; None before its end, and for earlier
    records.

    Transfer: the bundle. Split: the children. Unload: nothing; any next record of the bundle ends
    it. Pass all records after `move.offset` in order.

    Raise `PeerError` if the move failed, with the cause and the bundle's state in `view`.
    """
    change = next(
        (
            change
            for change in folded.verdict.changes
            if isinstance(change, BundleChanged) and change.name == move.bundle
        ),
        None,
    )
    if change is None or folded.offset <= move.offset:
        return None
    after = change.after
    if move.kind is MoveKind.UNLOAD:
        return ()
    if move.kind is MoveKind.SPLIT and after is None:
        return tuple(
            other.after
            for other in folded.verdict.changes
            if isinstance(other, BundleChanged) and other.after is not None
        )
    if move.kind is MoveKind.TRANSFER and after is not None and after.owner == move.destination:
        if after.phase == "owned":
            return (after,)
        if after.phase in _ON_ITS_WAY:
            return None
    raise cancelled(
        bundle=move.bundle, move=move.kind.value, problem=_failure(folded, view, move.bundle)
    )


def _failure(folded: Folded, view: View, name: str) -> str:
    """Return the record that ended a move, and the state of its bundle now."""
    names, bundle = Names(view), view.bundles.get(name)
    record = "; ".join(" ".join(line.split()) for line in describe(folded, view, names))
    return (
        f"record {folded.offset}: {record};"
        f" {f'{name} no longer exists' if bundle is None else standing(bundle, names)}"
    )


# --- where bundles went ---


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOutcome:
    """What became of one bundle: `source` owned it before, `owner` owns it now under `token` (None:
    no owner).

    `problem` is why the bundle is back at its source, why it has no owner, or which broker refused
    it. `is_refused`: a destination refused the bundle or gave it up.
    """

    bundle: str
    source: str
    owner: str | None = None
    token: int | None = None
    problem: str | None
    is_refused: bool

    @property
    def is_stuck(self) -> bool:
        """Whether the bundle is back at its source or has no owner."""
        return self.owner in (None, self.source)

    def document(self) -> dict[str, str | int | None]:
        """Return this outcome as a JSON object."""
        return {
            "bundle": self.bundle,
            "source": self.source,
            "owner": self.owner,
            "token": self.token,
            "problem": self.problem,
        }

    def sentence(self) -> str:
        """Return this outcome as a sentence."""
        if self.owner is None:
            sentence = f"{self.source} has released {self.bundle}, and nobody owns it now"
        elif self.owner == self.source:
            sentence = f"{self.bundle} came back to {self.source}, token {self.token}"
        else:
            sentence = f"{self.bundle} is owned by {self.owner}, token {self.token}"
        return sentence if self.problem is None else f"{sentence}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an operation did, as a sentence for people and as a document for programs.

    `outcomes` says what became of each bundle that was moved and waited for.
    """

    sentence: str
    document: Mapping[str, object]
    outcomes: Sequence[BundleOutcome] = ()

    @property
    def stuck(self) -> Sequence[BundleOutcome]:
        """The bundles that are back at their source or have no owner."""
        return [outcome for outcome in self.outcomes if outcome.is_stuck]

    @property
    def failed(self) -> Sequence[BundleOutcome]:
        """The `stuck` bundles that a destination refused."""
        return [outcome for outcome in self.stuck if outcome.is_refused]


def accepted_at(offset: int, sentence: str, **document: object) -> Answer:
    """Return the answer about a record that was accepted at `offset`."""
    return Answer(
        sentence=f"accepted at offset {offset}: {sentence}", document={"offset": offset, **document}
    )


class Outcomes:
    """Follows bundles from before their moves are requested, so that no end is missed. The caller
    passes all news to `heard`.
    """

    def __init__(self, view: View, bundles: Iterable[BundleEntry], *, log: str) -> None:
        """Take the `bundles` to be moved. `begun` adds the source of one that gets its owner later.
        `log` is its name for errors.
        """
        self._log = log
        bundles = tuple(bundles)
        self._sources = {
            bundle.name: view.live[bundle.owner].broker
            for bundle in bundles
            if bundle.owner is not None
        }
        self._news: dict[str, deque[Folded | Resync]] = {bundle.name: deque() for bundle in bundles}
        self._refusals: dict[str, str] = {}
        self._opened: dict[str, int] = {}
        self._quiet = Deadline.after(timeout_ms=SETTLED_MS)

    def heard(self, news: Folded | Resync) -> None:
        """Note a record, or a resync."""
        for change in news.verdict.changes if isinstance(news, Folded) else news.changes:
            if isinstance(change, BundleChanged) and change.name in self._news:
                self._quiet = Deadline.after(timeout_ms=SETTLED_MS)
                self._news[change.name].append(news)
                refusal = _refusal(news, change) if isinstance(news, Folded) else None
                if refusal is not None:
                    self._refusals[change.name] = refusal

    def begun(self, accepted: Folded, view: View) -> str:
        """Return the source of the move that an accepted record began."""
        change = accepted.verdict.changes[0]
        assert isinstance(change, BundleChanged), "a transition changes its bundle"
        assert change.before is not None, "a move is of a bundle that was there"
        if change.name not in self._sources:  # It had no owner yet when it was taken.
            self._sources[change.name] = owner_of(view, change.before)
        return self._sources[change.name]

    def made(self, move: RequestedMove, view: View) -> tuple[BundleEntry, ...] | None:
        """Return the result of a move as `made_by` does; None before its end.

        Raises `PeerError` as `made_by` does, and `OutcomeUnknown` if a truncation removed the
        records about its end.
        """
        waiting = self._news[move.bundle]
        while waiting:
            news = waiting.popleft()
            if isinstance(news, Resync):
                problem = (
                    f"the records between offsets {news.before} and {news.offset} were truncated"
                    " before they were read"
                )
                raise OutcomeUnknown(log=self._log, subject=move.bundle, problem=problem)
            made = made_by(move, news, view)
            if made is not None:
                return made
        return None

    def are_owned(self, view: View) -> bool:
        """Return whether each bundle has an owner, or is gone."""
        return all(
            entry is None or entry.phase == "owned"
            for entry in map(view.bundles.get, self._sources)
        )

    def are_settled(self, view: View) -> bool:
        """Return whether each bundle has kept its owner for `SETTLED_MS`, or is gone."""
        return not self._quiet.remaining_ms() and self.are_owned(view)

    def unopened(self, view: View) -> Mapping[str, int]:
        """Return the tokens of the bundles that have an owner which may not have opened them
        yet.
        """
        entries = [
            entry
            for entry in map(view.bundles.get, self._sources)
            if entry is not None and entry.phase == "owned"
        ]
        return {
            entry.name: entry.token
            for entry in entries
            if self._opened.get(entry.name) != entry.token
        }

    def opened(self, tokens: Mapping[str, int]) -> None:
        """Note bundles that their owners have opened under these tokens."""
        self._opened.update(tokens)

    def of(self, name: str, view: View) -> BundleOutcome:
        """Return what became of a bundle that had an owner."""
        source, problem = self._sources[name], self._refusals.get(name)
        outcome = partial(BundleOutcome, bundle=name, source=source, is_refused=problem is not None)
        entry = view.bundles.get(name)
        if entry is None:
            return outcome(problem="it is gone: split, merged or deleted")
        if entry.phase != "owned" or entry.owner is None:
            unserved = why_unserved(view, entry.namespace)
            return outcome(problem=problem or unserved or f"it is {entry.state}")
        owner = view.live[entry.owner].broker
        if problem is None and owner == source:
            problem = (nobody_else(view, entry) or f"see equipoise channel why {name}")[
                :_PROBLEM_CHARACTERS_MAX
            ]
        return outcome(owner=owner, token=entry.token, problem=problem)

    def check(self, name: str, view: View, *, destination: str | None) -> BundleOutcome:
        """Return what became of a transferred bundle.

        Raises `PeerError` if a broker refused it and it is now at its source, has no owner, or is
        not at its named `destination`.
        """
        outcome = self.of(name, view)
        if outcome.is_refused and (outcome.is_stuck or destination not in (None, outcome.owner)):
            raise cancelled(bundle=name, move="transfer", problem=outcome.sentence())
        return outcome


@contextmanager
def followed(port: Port, bundles: Iterable[BundleEntry]) -> Iterator[Outcomes]:
    """Follow `bundles` within the context, in which the caller requests their moves."""
    outcomes = Outcomes(port.view, bundles, log=port.log_name)
    with port.listen(outcomes.heard):
        yield outcomes


def _refusal(folded: Folded, change: BundleChanged) -> str | None:
    """Return which broker refused a bundle that it was to own, and why. Return None if the record
    is not a refusal.
    """
    record, before = folded.record, change.before
    if not isinstance(record, BundleTransition) or before is None or not is_refusal(record, before):
        return None
    reason = (record.reason or "")[:_PROBLEM_CHARACTERS_MAX]
    return (
        f"{record.publisher} refused it: {reason}"
        if before.phase == "assigning"
        else f"{record.publisher} {reason}"
    )
