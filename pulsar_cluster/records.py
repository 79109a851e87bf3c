"""Define the records of Pulsar's bundle state channel, and parse them.

Pulsar's brokers append them to the topic `CHANNEL_TOPIC`. The key of a message is the bundle, its
value a JSON document. A message without a value is a tombstone: the bundle has no record any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from equipoise.channel.core.errors import CallerError

CHANNEL_TOPIC: Final = "persistent://pulsar/system/loadbalancer-service-unit-state"
SYSTEM_NAMESPACE: Final = "pulsar/system"
BROKER_LOADS: Final = "loadbalancer-broker-load-data"
TOP_BUNDLES: Final = "loadbalancer-top-bundles-load-data"
"""The names of the load topics, which are not persistent, in that namespace."""

INIT: Final = "Init"
FREE: Final = "Free"
ASSIGNING: Final = "Assigning"
OWNED: Final = "Owned"
RELEASING: Final = "Releasing"
SPLITTING: Final = "Splitting"
DELETED: Final = "Deleted"
STATES: Final = (INIT, FREE, ASSIGNING, OWNED, RELEASING, SPLITTING, DELETED)
"""The states of Pulsar 4.0.8. A bundle without a record is in `INIT`."""

IN_FLIGHT: Final = frozenset({ASSIGNING, RELEASING, SPLITTING})

VERSION_MIN: Final = -(1 << 63)
VERSION_MAX: Final = (1 << 63) - 1


class StateRecord(NamedTuple):
    """One record of a bundle. A tuple, because a channel has a million of them.

    * `state`: one of `STATES`, or the name of a state of a newer Pulsar.
    * `destination`, `source`: brokers as `HOST:PORT`; None where the record names none.
    * `children`: the ranges of a split.
    * `force`: a broker wrote it over the rules of the transitions, as the leader does for a dead
      broker.
    * `timestamp_ms`: Unix time at the writer. No rule uses it.
    * `version`: one more than the version before, from 1.
    """

    state: str
    destination: str | None
    source: str | None
    force: bool
    version: int
    timestamp_ms: int = 0
    children: tuple[str, ...] = ()


class Message(NamedTuple):
    """One message of the channel as it was read.

    * `offset`: its place among the messages that were read, from 0. It rises by 1.
    * `message_id`: Pulsar's own: `LEDGER:ENTRY`, and `:PLACE` for a message of a batch.
    * `published_ms`: Unix time of the broker that stored it.
    * `record`: None for a tombstone, or if there is a `problem`: why the value is not a record.
    * `producer`: the name that Pulsar gave to the writer's connection; each broker has its own, and
      a new one after a restart.
    * `begins_anew`: messages before it are lost. What brokers hold is known again from this one on.
    """

    offset: int
    message_id: str
    bundle: str
    published_ms: int
    record: StateRecord | None
    problem: str = ""
    producer: str = ""
    begins_anew: bool = False

    @property
    def is_tombstone(self) -> bool:
        """Whether the message removes the bundle's record."""
        return self.record is None and not self.problem


class Report(NamedTuple):
    """A load report. `topic` is the name of its topic, `BROKER_LOADS` or `TOP_BUNDLES`, and `value`
    None if the broker emptied its report. `at_ms` (Unix time) is when it was published, or in an
    archive when it was received.
    """

    at_ms: int
    topic: str
    broker: str
    value: bytes | None


def message_of(
    row: tuple[int, str, str, int, bytes | None, str], *, begins_anew: bool = False
) -> Message:
    """Return a message from its offset, id, bundle, time, value and producer. A value that is not a
    record is named in `problem`.
    """
    offset, message_id, bundle, published_ms, value, producer = row
    record, problem = None, ""
    if value:
        try:
            record = parse_record(value)
        except CallerError as error:
            problem = str(error)
    return Message(offset, message_id, bundle, published_ms, record, problem, producer, begins_anew)


def parse_record(value: bytes | str) -> StateRecord:
    """Parse the value of a message. Unknown fields and states are kept out of the way: a newer
    Pulsar may write them.

    Raises `CallerError`.
    """
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise CallerError(f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CallerError("it is not a JSON object")
    state, version, timestamp_ms = (
        document.get("state"),
        document.get("versionId"),
        document.get("timestamp", 0),
    )
    if not isinstance(state, str) or not state:
        raise CallerError("its state is missing")
    if type(version) is not int or not VERSION_MIN <= version <= VERSION_MAX:
        raise CallerError(f"its versionId is not a 64-bit integer: {version!r:.40}")
    if type(timestamp_ms) is not int:
        raise CallerError(f"its timestamp is not an integer: {timestamp_ms!r:.40}")
    children = document.get("splitServiceUnitToDestBroker") or {}
    if not isinstance(children, Mapping):
        raise CallerError("its splitServiceUnitToDestBroker is not an object")
    destination, source = _broker(document, "dstBroker"), _broker(document, "sourceBroker")
    return StateRecord(
        state,
        destination,
        source,
        document.get("force") is True,
        version,
        timestamp_ms,
        tuple(children),
    )


def _broker(document: Mapping[str, object], field: str) -> str | None:
    """Return a broker of a record. Pulsar's rules treat a blank name as none."""
    name = document.get(field)
    if name is None:
        return None
    if not isinstance(name, str):
        raise CallerError(f"its {field} is not a text: {name!r:.40}")
    return name if name.strip() else None
