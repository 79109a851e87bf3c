"""Encode and decode a decision as one JSON document, flat enough for SQL and Spark.

`result`, `cause` and `reason` repeat what the document's details imply, so that decisions can be counted without parsing them. An invalid
document decodes to None, so that readers skip it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from equipoise.brokers.balancing.decisions import Decision, Kind
from equipoise.shedder.plan import Cause, Idle, Move, Result, Stay

DOCUMENT_BYTES_MAX: Final = 256 * 1024
"""Room for a round of a thousand moves with their reasons. Further moves and stays are dropped and counted."""


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
    """Return the document of a decision. It is valid JSON except for figures that are not finite."""
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
    """Encode a decision in at most `DOCUMENT_BYTES_MAX` bytes, dropping its last moves and stays if needed."""
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
    """Decode a decision, or return None if the document holds none."""
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
