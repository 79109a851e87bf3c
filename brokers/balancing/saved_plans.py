"""Save a plan of the dry run with the facts that it depends on, and say what has changed since.

The file holds the exact moves, because load reports change every few seconds and a second plan
would differ.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import RoundSettings
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.view import View
from equipoise.shedder.plan import Move, Plan
from equipoise.shedder.scheduler import Ends, Scheduler

Facts = Mapping[str, str]
"""What a plan depends on, by subject: its bundles and their namespaces, all brokers, policies and
settings. A value ends a sentence."""

_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """The moves of a plan in their order, all with a destination, and the facts on which it was
    made.

    At most `moves_max` moves run at once in the cluster, and `broker_moves_max` from and to one
    broker.
    """

    moves: Sequence[Move]
    moves_max: int
    broker_moves_max: int
    facts: Facts

    @property
    def id(self) -> str:
        """The digest of the moves and the facts: 12 hexadecimal digits."""
        return digest_of(self._content())

    def text(self) -> str:
        """Return the content of the plan's file."""
        return text_of(self.id, self._content())

    def next_batch(self, left: Iterable[Move], moving: Mapping[str, Ends]) -> Sequence[Move]:
        """Return those of the moves `left` that may start while `moving` are moving, by any broker;
        see `moving_in`.
        """
        scheduler = Scheduler()
        scheduler.planned(left)
        return scheduler.begin(
            moving, moves_max=self.moves_max, broker_moves_max=self.broker_moves_max
        )

    def changes(self, view: View, moves: Sequence[Move]) -> str | None:
        """Return what has changed in `view` that concerns these moves of the plan; None if nothing
        has.
        """
        bundles = [move.bundle for move in moves]
        now, about = facts_of(view, bundles), _subjects_of(bundles)
        then = {
            subject: fact
            for subject, fact in self.facts.items()
            if subject in about or subject.startswith(("broker ", "policy "))
        }
        changed = [
            f"{subject} {now.get(subject, 'is gone')} (in the plan: {then.get(subject, 'absent')})"
            for subject in sorted({*then, *now})
            if then.get(subject) != now.get(subject)
        ]
        return named(changed, "more")

    def _content(self) -> dict[str, object]:
        bounds = {"moves_max": self.moves_max, "broker_moves_max": self.broker_moves_max}
        return {"moves": [asdict(move) for move in self.moves], **bounds, "facts": dict(self.facts)}


def saved_plan(view: View, plan: Plan, rounds: RoundSettings) -> SavedPlan:
    """Return the saved form of a plan that was made on `view`. Moves that placement finds no
    destination for are left out.
    """
    moves = tuple(
        replace(move, predicted=None) for move in plan.moves if move.destination is not None
    )
    facts = facts_of(view, [move.bundle for move in moves])
    return SavedPlan(
        moves=moves,
        moves_max=rounds.moves_max,
        broker_moves_max=rounds.broker_moves_max,
        facts=facts,
    )


def read_plan(content: bytes) -> SavedPlan:
    """Return the plan in the content of its file. Raise `ValueError` if it is no plan, or was
    changed by hand.
    """
    with reading_plan("equipoise plan --output"):
        document = json.loads(content)
        moves = tuple(Move(**move) for move in document["moves"])
        bounds = {name: int(document[name]) for name in ("moves_max", "broker_moves_max")}
        plan = SavedPlan(moves=moves, facts=document["facts"], **bounds)
        is_whole = plan.id == document["id"]
    check_whole(is_whole=is_whole)
    return plan


def digest_of(content: Mapping[str, object]) -> str:
    """Return the digest of a plan's content: 12 hexadecimal digits."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def text_of(plan_id: str, content: Mapping[str, object]) -> str:
    """Return the content of a plan's file."""
    return json.dumps({"id": plan_id, **content}, indent=1) + "\n"


@contextmanager
def reading_plan(command: str) -> Iterator[None]:
    """Raise `ValueError` if the body cannot read the file of a plan, which `command` writes."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, InvalidName) as error:
        raise ValueError(f"it is no file that `{command}` wrote") from error


def check_whole(*, is_whole: bool) -> None:
    """Raise `ValueError` for a plan whose id is not the digest of its content."""
    if not is_whole:
        raise ValueError("it was changed: its content does not match its id")


def named(changes: Sequence[str], rest: str) -> str | None:
    """Return the first changes as a list, with the number of the others before `rest`; None if
    there are none.
    """
    more = len(changes) - _NAMED_MAX
    first = ", ".join(changes[:_NAMED_MAX])
    return f"{first} and {more} {rest}" if more > 0 else first or None


def facts_of(view: View, bundles: Collection[str]) -> Facts:
    """Return the facts in `view` on which a plan for `bundles` depends."""
    facts = {
        f"broker {broker.broker}": f"is {broker.status}, incarnation {broker.incarnation}"
        for broker in view.live_brokers()
    }
    facts |= {
        f"policy {policy.name}": f"was changed at offset {policy.last}"
        for policy in view.policies.values()
    }
    for name in bundles:
        bundle = view.bundles.get(name)
        if bundle is not None:
            owner = None if bundle.owner is None else view.live.get(bundle.owner)
            at = "without an owner" if owner is None else f"at {owner.broker}"
            facts[f"bundle {name}"] = f"is {bundle.state} {at}, changed at offset {bundle.last}"
            facts[f"namespace {bundle.namespace}"] = (
                f"was changed at offset {view.namespaces[bundle.namespace].last}"
            )
    return facts


def _subjects_of(bundles: Collection[str]) -> frozenset[str]:
    return frozenset(f"bundle {name}" for name in bundles) | {
        f"namespace {name.rpartition('/')[0]}" for name in bundles
    }
