"""Keep the decisions of balancing beside the channel, each as a JSON document.

A document is flat enough for SQL and Spark: `result`, `cause` and `reason` repeat what its details
imply, so that decisions can be counted without decoding them. An invalid document decodes to None,
so that readers skip it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Final

import orjson
from pydantic import TypeAdapter

from equipoise.brokers.balancing.decisions import Decision, Kind
from equipoise.brokers.side_topics import DECISIONS, DOCUMENT_BYTES_MAX
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.side_log import Document, newest, read_on
from equipoise.channel.log.open_log import open_side_log

_SEARCHED_MAX: Final = 1_000
"""Decisions searched for what became of a bundle: some hours."""

_BETWEEN_ROUNDS_MAX: Final = 100
"""Decisions searched for the newest of each kind: between two rounds of the leader, all brokers
record their splits and merges."""

_decision: Final = TypeAdapter(Decision)


class DecisionLog:
    """Writes decisions beside the channel at `log_url`, for one thread at a time."""

    def __init__(self, log_url: str) -> None:
        """Raises what `open_side_log` raises."""
        self._documents = open_side_log(log_url, DECISIONS)

    def write(self, decision: Decision) -> None:
        """Add one decision. Raises `SideLogUnavailable`; the next call may succeed."""
        self._documents.append([Document(decision.broker, encode(decision))])


def newest_decisions(
    log_url: str, at_most: int, *, until_ms: int | None = None
) -> Sequence[Decision]:
    """Return the last decisions beside the channel at `log_url`, oldest first, without unreadable
    ones: of all, or of those written up to Unix time `until_ms`.

    Raises what `open_side_log` raises, and `SideLogUnavailable`.
    """
    with closing(open_side_log(log_url, DECISIONS)) as documents:
        found = [
            decode(each.value or b"") for each in newest(documents, at_most, until_ms=until_ms)
        ]
    return [decision for decision in found if decision is not None]


def newest_by_kind(log_url: str) -> Mapping[Kind, Decision]:
    """Return the newest decision of each kind, for plans. They do not need them, so if the side log
    cannot be read, there are none.
    """
    try:
        return {each.kind: each for each in newest_decisions(log_url, _BETWEEN_ROUNDS_MAX)}
    except PeerError:
        return {}


class DecisionTail:
    """Reads the decisions beside the channel at `log_url` as they come, for one thread at a time,
    beginning with the last ones.
    """

    def __init__(self, log_url: str, *, at_most: int) -> None:
        """`at_most`: how many to begin with. Raises what `open_side_log` raises."""
        self._documents = open_side_log(log_url, DECISIONS)
        self._at_most = at_most
        self._position: int | None = None

    def read(self) -> Sequence[tuple[int, Decision]]:
        """Return what has come since the last call, with positions. Raises `SideLogUnavailable`."""
        if self._position is None:
            first, end = self._documents.bounds()
            self._position = max(first, end - self._at_most)
        found = list(read_on(self._documents, self._position))
        if found:
            self._position = found[-1].position + 1
        decoded = ((each.position, decode(each.value or b"")) for each in found)
        return [(position, decision) for position, decision in decoded if decision is not None]


def last_outcome_and_stay(
    log_url: str, bundles: Sequence[str], owners: Sequence[str]
) -> tuple[str | None, str | None]:
    """Return two lines: what came of the last move of these bundles by the balancer, and why its
    last round left them as they are, or moved nothing from their owners. None: it is not known.

    Raises what `open_side_log` raises.
    """
    try:
        latest = newest_decisions(log_url, _SEARCHED_MAX)[::-1]
    except PeerError:
        return None, None
    outcomes = (
        each.outcome_line(bundle) for each in latest if each.kind == "outcome" for bundle in bundles
    )
    round_ = next((each for each in latest if each.kind in ("shed", "misplaced")), None)
    stays = {} if round_ is None else {stay.subject: stay.reason for stay in round_.plan.stays}
    return (
        next((line for line in outcomes if line is not None), None),
        next((f"{name}: {stays[name]}" for name in (*bundles, *owners) if name in stays), None),
    )


def document_of(decision: Decision) -> dict[str, object]:
    """Return the document of a decision. It is valid JSON except for figures that are not
    finite.
    """
    (result, cause), plan = decision.outcome, decision.plan
    return {
        "at_ms": decision.at_ms,
        "broker": decision.broker,
        "kind": decision.kind,
        "strategy": decision.strategy,
        "result": result,
        "cause": cause,
        "reason": decision.reason,
        "is_idle": plan.idle is not None,
        "mean": plan.mean,
        "deviation": plan.deviation,
        "deviation_after": plan.deviation_after,
        "moves": [asdict(move) for move in plan.moves],
        "moves_left_out": decision.moves_left_out,
        "stays": [asdict(stay) for stay in plan.stays],
        "stays_left_out": decision.stays_left_out,
        "counted": [
            {"result": result, "cause": cause, "number": decision.counted[result, cause]}
            for result, cause in sorted(decision.counted)
        ],
        "budget": None if plan.budget is None else asdict(plan.budget),
        "brokers": [asdict(each) for each in decision.brokers],
        "durations_ms": dict(decision.durations_ms),
    }


def encode(decision: Decision) -> bytes:
    """Encode a decision in at most `DOCUMENT_BYTES_MAX` bytes, dropping its last moves and stays if
    needed.
    """
    data = orjson.dumps(document_of(decision))
    while len(data) > DOCUMENT_BYTES_MAX and (decision.plan.moves or decision.plan.stays):
        decision = _shortened(decision)
        data = orjson.dumps(document_of(decision))
    return data


def _shortened(decision: Decision) -> Decision:
    moves, stays = decision.plan.moves, decision.plan.stays
    kept_moves, kept_stays = len(moves) // 2, len(stays) // 2
    return replace(
        decision,
        plan=replace(decision.plan, moves=moves[:kept_moves], stays=stays[:kept_stays]),
        moves_left_out=decision.moves_left_out + len(moves) - kept_moves,
        stays_left_out=decision.stays_left_out + len(stays) - kept_stays,
    )


def decode(data: bytes) -> Decision | None:
    """Decode a decision, or return None if the document holds none. Ignore unknown fields."""
    try:
        document = orjson.loads(data)
        plan = {**document, "idle": document if document["is_idle"] else None}
        counted = {
            (count["result"], count["cause"]): count["number"] for count in document["counted"]
        }
        return _decision.validate_python({**document, "plan": plan, "counted": counted})
    except (ValueError, KeyError, TypeError):
        return None
