"""Ask each broker for its own status over HTTP, which works while the log is unavailable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from equipoise.brokers.cli.asking import ask_at
from equipoise.brokers.cli.output import Row
from equipoise.brokers.errors import BrokerUnreachable
from equipoise.channel.system.deadline import Deadline

STATUS_COLUMNS: Final = ("broker", "status", "channel_lost_since", "serving_on", "problems")

_UNREACHABLE: Final = "unreachable"
_WELL: Final = frozenset({"ready", "serving on"})


def statuses(brokers: Sequence[tuple[str, str]], deadline: Deadline) -> list[Row]:
    """Return the status of each of `brokers` (id and HTTP address). A silent broker costs only its share of the time."""
    rows = []
    for place, (broker, address) in enumerate(brokers):
        share_ms = -(-deadline.remaining_ms() // (len(brokers) - place))
        rows.append(_status(broker, address, Deadline.after(timeout_ms=share_ms)))
    return rows


def is_well(row: Row) -> bool:
    """Return whether clients may connect to that broker."""
    return row["status"] in _WELL


def _status(broker: str, address: str, deadline: Deadline) -> Row:
    try:
        answer = ask_at(broker, address, "GET", "/ready", deadline=deadline)
        said = json.loads(answer.text)
        return _row(str(said["broker"]), address, str(said["status"]), said["channel_loss"], said["problems"])
    except BrokerUnreachable as error:
        return _row(broker, address, _UNREACHABLE, None, [error.problem])
    except (ValueError, KeyError, TypeError):
        return _row(broker, address, _UNREACHABLE, None, ["what answers there is no broker of this version"])


def _row(broker: str, address: str, status: str, loss: Row | None, problems: object) -> Row:
    return {
        "broker": broker,
        "address": address,
        "status": status,
        "channel_lost_since": None if loss is None else loss["since"],
        "serving_on": [] if loss is None else loss["serving_on"],
        "problems": problems,
    }
