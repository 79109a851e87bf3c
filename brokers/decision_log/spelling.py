"""How a decision is spelled where it is kept: one JSON document, flat enough for SQL and Spark to read.

May live here: the document, its bound, and the way to it and back. A document that is none of ours is told by None: whoever
reads a log of decisions goes on with the next.

`result`, `cause` and `reason` stand beside what they are made of, for whoever counts decisions and does not read them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from equipoise.brokers.balancing.decisions import Decision, Kind
from equipoise.shedder.plan import Cause, Idle, Move, Result, Stay

DOCUMENT_BYTES_MAX: Final = 256 * 1024
"""A round of a thousand moves with their reasons; moves and stays above that are left out, and counted."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Move(_Part):
    bundle: str
    source: str
    destination: str | None
    reason: str
    cause: Cause


class _Stay(_Part):
    subject: str
    reason: str


class _Count(_Part):
    result: str
    cause: str
    number: int


class _Document(_Part):
    at_ms: int
    broker: str
    kind: Kind
    strategy: str
    result: str
    cause: str
    reason: str | None
    is_idle: bool
    mean: float | None
    deviation: float | None
    deviation_after: float | None
    moves: tuple[_Move, ...]
    moves_left_out: int
    stays: tuple[_Stay, ...]
    stays_left_out: int
    counted: tuple[_Count, ...]


class _Idle(_Part):
    result: Result
    cause: Cause
    reason: str
    is_idle: Literal[True]


def document_of(decision: Decision) -> dict[str, object]:
    """The document of a decision: what JSON can express, save for figures that are no numbers."""
    result, cause = decision.outcome
    return {
        "at_ms": decision.at_ms,
        "broker": decision.broker,
        "kind": decision.kind,
        "strategy": decision.strategy,
        "result": result,
        "cause": cause,
        "reason": decision.reason,
        "is_idle": decision.idle is not None,
        "mean": decision.mean,
        "deviation": decision.deviation,
        "deviation_after": decision.deviation_after,
        "moves": [
            {
                "bundle": move.bundle,
                "source": move.source,
                "destination": move.destination,
                "reason": move.reason,
                "cause": move.cause,
            }
            for move in decision.moves
        ],
        "moves_left_out": decision.moves_left_out,
        "stays": [{"subject": stay.subject, "reason": stay.reason} for stay in decision.stays],
        "stays_left_out": decision.stays_left_out,
        "counted": [
            {"result": result, "cause": cause, "number": decision.counted[result, cause]} for result, cause in sorted(decision.counted)
        ],
    }


def spelled(decision: Decision) -> bytes:
    """A decision in at most `DOCUMENT_BYTES_MAX` bytes: what is too long loses the last of its moves and stays."""
    data = orjson.dumps(document_of(decision))
    while len(data) > DOCUMENT_BYTES_MAX and (decision.moves or decision.stays):
        decision = _shortened(decision)
        data = orjson.dumps(document_of(decision))
    return data


def _shortened(decision: Decision) -> Decision:
    moves, stays = decision.moves[: len(decision.moves) // 2], decision.stays[: len(decision.stays) // 2]
    return replace(
        decision,
        moves=moves,
        moves_left_out=decision.moves_left_out + len(decision.moves) - len(moves),
        stays=stays,
        stays_left_out=decision.stays_left_out + len(decision.stays) - len(stays),
    )


def parsed(data: bytes) -> Decision | None:
    """The decision in a document; None if it holds none."""
    try:
        document = _Document.model_validate_json(data)
        idle = _Idle.model_validate_json(data) if document.is_idle else None
    except ValidationError:
        return None
    return Decision(
        at_ms=document.at_ms,
        broker=document.broker,
        kind=document.kind,
        strategy=document.strategy,
        moves=tuple(Move(**dict(move)) for move in document.moves),
        moves_left_out=document.moves_left_out,
        stays=tuple(Stay(**dict(stay)) for stay in document.stays),
        stays_left_out=document.stays_left_out,
        idle=None if idle is None else Idle(result=idle.result, cause=idle.cause, reason=idle.reason),
        counted={(count.result, count.cause): count.number for count in document.counted},
        mean=document.mean,
        deviation=document.deviation,
        deviation_after=document.deviation_after,
    )
