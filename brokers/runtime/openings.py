"""Define the question whether owners have opened their bundles, and its answer.

A failed opening is on the log, and a successful one is not: a record for each would cost every
reader a fold. `brokers.runtime.router` answers for this broker, and asks others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.view import View

OPENED_PATH: Final = "/v1/opened"
OPENED_ASKED_MAX: Final = 1_024
"""Bundles in one question: 700 KiB if all names are as long as they may be."""

CONNECT_MS: Final = 500
"""How long a connection to an owner may take. A caller that cannot reach it, as through a firewall,
waits no longer than without asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Those of some bundles that their owners have opened. The owners knew the log up to
    `offset`.
    """

    bundles: frozenset[str] = frozenset()
    offset: int = 0


def by_owner(
    view: View, tokens: Mapping[str, int]
) -> Iterator[tuple[BrokerEntry, Mapping[str, int]]]:
    """Yield each live owner of some bundles with the `tokens` of those bundles, in parts of at most
    `OPENED_ASKED_MAX`.
    """
    parts: dict[int, dict[str, int]] = {}
    for name, token in tokens.items():
        bundle = view.bundles.get(name)
        if bundle is not None and bundle.owner in view.live:
            parts.setdefault(bundle.owner, {})[name] = token
    for owner, part in parts.items():
        names = list(part)
        for start in range(0, len(names), OPENED_ASKED_MAX):
            yield (
                view.live[owner],
                {name: part[name] for name in names[start : start + OPENED_ASKED_MAX]},
            )


def opened_question(tokens: Mapping[str, int], *, timeout_ms: int) -> Mapping[str, object]:
    """Return the body that asks an owner which bundles it has opened under their `tokens`, once it
    has, or after `timeout_ms`.
    """
    return {"bundles": dict(tokens), "timeout_ms": timeout_ms}


def opened_in(answer: object) -> Opened:
    """Read the answer of an owner. Another answer says nothing."""
    if (
        not isinstance(answer, dict)
        or not isinstance(names := answer.get("open"), list)
        or not isinstance(answer.get("offset"), int)
    ):
        return Opened()
    return Opened(
        bundles=frozenset(name for name in names if isinstance(name, str)), offset=answer["offset"]
    )


def all_of(answers: Iterable[Opened]) -> Opened:
    """Return the answers of several owners as one."""
    answers = list(answers)
    bundles = frozenset[str]().union(*(answer.bundles for answer in answers))
    return Opened(bundles=bundles, offset=max((answer.offset for answer in answers), default=0))
