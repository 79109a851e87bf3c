"""Define the checker's rules: functions from a case to messages about its violations.

This module and the record types in `case.py` are all that a sceptic must trust. README.md describes
what a clean verdict proves.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter

from case import Case, Operation, Work, Write, outcome

Rule = Callable[[Case], Iterator[str]]


def described(what: Write | Operation) -> str:
    """Format a write or an acknowledged request for a message."""
    return (
        f"request {what.request!r} (broker {what.broker!r}, token {what.token}, value {what.value})"
    )


def acknowledged_writes_are_stored(case: Case) -> Iterator[str]:
    """Require every acknowledged increment in the store, with the answer's key, broker, token and
    value.
    """
    for request, tries in case.attempts.items():
        rows = case.stored.get(request, [])
        for call in tries:
            # A Call begins with the fields of a Write.
            if call.status == 200 and call[:5] not in rows:
                yield (
                    f"key {call.key!r}: request {request!r} was acknowledged as {call[2:5]}, but"
                    f" the store has {rows or 'no such write'}"
                )


def requests_are_applied_once(case: Case) -> Iterator[str]:
    """Require that a request is in the store at most once, whatever its outcome and number of
    attempts.
    """
    for request, rows in case.stored.items():
        if len(rows) > 1:
            yield f"key {rows[0].key!r}: request {request!r} was applied {len(rows)} times: {rows}"


def refused_calls_left_nothing(case: Case) -> Iterator[str]:
    """Require that a request is not in the store if every answer promised so. A redirect promises
    nothing.
    """
    for request, tries in case.attempts.items():
        if request in case.stored and {outcome(call.status) for call in tries} - {"redirected"} == {
            "refused"
        }:
            yield (
                f"key {tries[0].key!r}: request {request!r} was refused with {tries[-1].status},"
                " but is in the store"
            )


def values_count_up(case: Case) -> Iterator[str]:
    """Require that the values of a key in the store are 1, 2, 3, ...: no update lost, none
    invented.
    """
    last: dict[str, int] = {}
    for row in case.writes:
        if row.value != last.get(row.key, 0) + 1:
            yield (
                f"key {row.key!r}: in the store {described(row)} follows value"
                f" {last.get(row.key, 0)}"
            )
        last[row.key] = row.value


def stored_tokens_never_fall(case: Case) -> Iterator[str]:
    """Require that the store took no write with a token older than one taken before for the key."""
    highest: dict[str, Write] = {}
    for row in case.writes:
        if row.token < highest.setdefault(row.key, row).token:
            yield (
                f"key {row.key!r}: the store took {described(row)} after"
                f" {described(highest[row.key])}"
            )
        else:
            highest[row.key] = row


def refusals_were_stale(case: Case) -> Iterator[str]:
    """Require that the store refused only tokens older than the highest that it had seen."""
    for row in case.refusals:
        if row.token >= row.highest:
            yield (
                f"key {row.key!r}: request {row.request!r} was refused with token {row.token}, not"
                f" older than {row.highest}"
            )


def tokens_have_one_broker(case: Case) -> Iterator[str]:
    """Require that a key's token belongs to one broker, in the store and in the answers."""
    holders: dict[tuple[str, int], Write | Operation] = {}
    served: Iterable[Write | Operation] = chain(case.writes, *case.operations.values())
    for what in served:
        first = holders.setdefault((what.key, what.token), what)
        if first.broker != what.broker:
            yield (
                f"key {what.key!r}: one token, two brokers: {described(first)} and"
                f" {described(what)}"
            )


def out_of_order(operations: Iterable[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Yield (earlier, later): `earlier` returned before `later` was called, yet its (token, value)
    is not lower.

    Sweep once over the operations of a key in order of call, and track the highest that had
    returned by then.
    """
    by_call = sorted(operations, key=attrgetter("call_ns"))
    by_return = sorted(by_call, key=attrgetter("return_ns"))
    highest, returned = by_return[0], 0
    for later in by_call:
        # This ends: `later` itself returns no earlier than its call.
        while by_return[returned].return_ns < later.call_ns:
            highest = max(highest, by_return[returned], key=attrgetter("token", "value"))
            returned += 1
        if returned and (highest.token, highest.value) >= (later.token, later.value):
            yield highest, later


def one_owner_at_a_time(case: Case) -> Iterator[str]:
    """Require that after an answer under a token no later call of the key is answered under an
    older one.
    """
    for earlier, later in chain.from_iterable(map(out_of_order, case.operations.values())):
        if earlier.token > later.token:
            yield (
                f"key {later.key!r}: two owners: {described(later)} was called after"
                f" {described(earlier)} had returned"
            )


def values_follow_real_time(case: Case) -> Iterator[str]:
    """Require under one token that a call made after another returned gets the higher value. The
    store's rules order the rest.
    """
    for earlier, later in chain.from_iterable(map(out_of_order, case.operations.values())):
        if earlier.token == later.token:
            yield (
                f"key {later.key!r}: {described(later)} was called after {described(earlier)} had"
                " returned, yet has no higher value"
            )


def work_ends_within_its_lease(case: Case) -> Iterator[str]:
    """Require that no broker started or answered work past its lease, except where only the token
    guards.
    """
    for work in case.works:
        if not work.by_token and max(work.started_ns, work.answered_ns) > work.lease_deadline_ns:
            yield f"key {work.key!r}: worked past the lease: {work}"


def work_of_two_tokens_never_overlaps(case: Case) -> Iterator[str]:
    """Require that by the brokers' clocks all work under a token was answered before work under a
    newer one started.

    Work guarded only by the token is left out. The store's rules check that the store took none of
    it.
    """
    guarded = (work for work in case.works if not work.by_token)
    for key, of_key in groupby(
        sorted(guarded, key=attrgetter("key", "token")), key=attrgetter("key")
    ):
        latest: Work | None = None  # The last work answered under older tokens.
        for _, of_token in groupby(of_key, key=attrgetter("token")):
            works = list(of_token)
            first = min(works, key=attrgetter("started_ns"))
            if latest is not None and latest.answered_ns > first.started_ns:
                yield f"key {key!r}: two owners: {first} started before the end of {latest}"
            latest = max([latest, *works] if latest else works, key=attrgetter("answered_ns"))


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        acknowledged_writes_are_stored,
        requests_are_applied_once,
        refused_calls_left_nothing,
        values_count_up,
        stored_tokens_never_fall,
        refusals_were_stale,
        tokens_have_one_broker,
        one_owner_at_a_time,
        values_follow_real_time,
        work_ends_within_its_lease,
        work_of_two_tokens_never_overlaps,
    )
}
DOUBLE_OWNER_RULES = (
    "tokens_have_one_broker",
    "one_owner_at_a_time",
    "work_of_two_tokens_never_overlaps",
)


def violations(case: Case) -> dict[str, list[str]]:
    """Return the messages of each broken rule, by the rule's name."""
    found = {name: list(rule(case)) for name, rule in RULES.items()}
    return {name: messages for name, messages in found.items() if messages}
