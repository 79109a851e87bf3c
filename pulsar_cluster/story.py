"""Describe the messages of Pulsar's channel for people: what each did to its bundle, who wrote it,
and why brokers ignored it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from equipoise.channel.core.ranges import BundleName
from equipoise.channel.inspect.story import one_line, overlaps
from equipoise.pulsar_cluster.records import (
    ASSIGNING,
    DELETED,
    FREE,
    INIT,
    OWNED,
    RELEASING,
    SPLITTING,
    Message,
    StateRecord,
)
from equipoise.pulsar_cluster.table import Rejection, StateChange, Table, server_of

_VERB_CHARACTERS: Final = len("splitting")
_MEANINGS: Final[Mapping[Rejection, str]] = {
    Rejection.OLD_VERSION: (
        "the bundle had version {version} at offset {offset}; another writer was first"
    ),
    Rejection.VERSION_GAP: "the version must follow the one before",
    Rejection.TRANSITION: "from {before} no broker may go to {after}",
    Rejection.BROKER: "the brokers that it names are not those of the record before ({standing})",
    Rejection.UNREADABLE: "{problem}",
}


class Writers:
    """The broker behind each producer of the channel. Pulsar records no author, so they are
    learned.

    A broker that takes a bundle writes `Owned` with its own name, unless the record is forced: then
    the leader wrote it.
    """

    def __init__(self) -> None:
        """Begin without knowledge."""
        self._brokers: dict[str, str] = {}

    def learn(self, message: Message) -> None:
        """Learn from one message, accepted or not."""
        record = message.record
        if (
            record is not None
            and record.state == OWNED
            and not record.force
            and record.destination is not None
            and message.producer
        ):
            self._brokers[message.producer] = record.destination

    def producers_of(self, broker: str) -> frozenset[str]:
        """Return the producers of a broker that are known so far."""
        return frozenset(producer for producer, author in self._brokers.items() if author == broker)

    def of(self, message: Message) -> str | None:
        """Return the broker that wrote a message, or None if it is unknown so far."""
        return self._brokers.get(message.producer)


def describe(change: StateChange, writers: Writers) -> list[str]:
    """Return a change as text: `VERB BUNDLE DETAIL by BROKER VERDICT`, and further lines. An
    accepted one has no verdict.
    """
    message, rejection = change.message, change.rejection
    verb, detail, more = _action(change)
    author = writers.of(message)
    if message.begins_anew:
        more.append(
            "messages before this one are lost: Pulsar compacted its channel while nobody"
            " recorded it"
        )
    outcome = "" if rejection is None else f"rejected: {rejection}"
    if rejection is not None:
        more.append(f"{rejection}: {_meaning(change, rejection)}")
    by = "" if author is None or detail == f"by {author}" else f"by {author}"
    columns = (f"{verb:{_VERB_CHARACTERS}}", message.bundle, detail, by, outcome)
    return [one_line(line) for line in ("  ".join(column for column in columns if column), *more)]


def as_document(change: StateChange, writers: Writers) -> dict[str, object]:
    """Return a change as a JSON object, for programs."""
    message = change.message
    record = message.record
    return {
        "offset": message.offset,
        "message_id": message.message_id,
        "published_ms": message.published_ms,
        "bundle": message.bundle,
        "record": None if record is None else record._asdict(),
        "author": writers.of(message),
        "accepted": change.rejection is None,
        "reason": change.rejection,
        "problem": message.problem or None,
        "text": describe(change, writers),
    }


def standing(message: Message) -> str:
    """Return one line on the state of a bundle, from the message of its record."""
    version = 0 if message.record is None else message.record.version
    return (
        f"{message.bundle} is {state_of(message.record)}, version {version}, last changed at offset"
        f" {message.offset}"
    )


def state_of(record: StateRecord | None) -> str:
    """Return a state with its brokers, such as `Assigning to b:8080 from a:8080`."""
    if record is None:
        return INIT
    relation = "by" if record.state == OWNED else "to"
    destination = "" if record.destination is None else f" {relation} {record.destination}"
    return f"{record.state}{destination}" + (
        "" if record.source is None else f" from {record.source}"
    )


def story_of(
    messages: Iterable[Message], wanted: BundleName, writers: Writers
) -> Iterator[tuple[StateChange, list[str]]]:
    """Yield what happened to the bundles that share points with `wanted`, with its text. `writers`
    learns from all messages.
    """
    table, known = Table(), dict[str, bool]()
    for message in messages:
        writers.learn(message)
        concerns = known.get(message.bundle)
        if concerns is None:
            concerns = known[message.bundle] = overlaps(message.bundle, wanted)
        if concerns:
            change = table.fold(message)
            yield change, describe(change, writers)


def _action(change: StateChange) -> tuple[str, str, list[str]]:
    """Return the verb and the detail of a change, and further lines."""
    record = change.message.record
    if record is None:
        verb = "unknown" if change.message.problem else "forget"
        return verb, "", []
    verb, detail = _verb(record)
    more = [f"children: {', '.join(record.children)}"] if record.children else []
    if record.force:
        more.append(_forced(change.held, record))
    return verb, detail, more


def _verb(record: StateRecord) -> tuple[str, str]:
    to, source = record.destination or "nobody", record.source or "nobody"
    match record.state, record.destination is not None, record.source is not None:
        case (state, True, True) if state in {ASSIGNING, RELEASING}:
            return ("transfer" if state == RELEASING else "closed"), f"{source} -> {to}"
        case (state, True, False) if state == ASSIGNING:
            return "assign", f"to {to}"
        case (state, _, True) if state == RELEASING:
            return "unload", f"from {source}"
        case (state, True, _) if state == OWNED:
            return "own", f"{source} -> {to}" if record.source else f"by {to}"
        case (state, _, _) if state == FREE:
            return "release", f"by {source}" if record.source else ""
        case (state, _, _) if state == SPLITTING:
            return "splitting", f"on {source}"
        case (state, _, _) if state == DELETED:
            return "delete", f"after its split on {source}"
    return record.state.lower(), state_of(record)


def _forced(held: StateRecord | None, record: StateRecord) -> str:
    """Return why a record may break the rules: only a broker that shuts down, and a leader that
    cleans up, write such records.
    """
    if record.state == RELEASING:
        return (
            "forced: the namespace is deleted"
            if record.destination is None
            else f"forced: {record.source} shuts down"
        )
    if held is not None and held.force and held.state == RELEASING:
        return "forced, as the step before"
    gone = server_of(held) or (None if held is None else held.destination)
    if gone is None or gone == record.destination:
        return "forced: the leader ended what nobody had finished in time"
    return f"forced: the leader took it from {gone}, which was gone or did not finish in time"


def _meaning(change: StateChange, rejection: Rejection) -> str:
    held, record = change.held, change.message.record
    return _MEANINGS[rejection].format(
        version="no" if held is None else held.version,
        offset=-1 if change.before is None else change.before.offset,
        before=INIT if held is None else held.state,
        after="" if record is None else record.state,
        standing=state_of(held),
        problem=change.message.problem,
    )
