"""The judge: reads what callers saw and what the store holds, and says whether any key ever had two owners.

Nothing of the product may be imported here, and nothing but the standard library: a judge that shared code with the
accused would share its mistakes. It reads, applies each function in `RULES`, counts, and prints; README.md beside this
file gives the formats, what a clean verdict proves, and what it cannot.

    python judge.py HISTORY.jsonl [HISTORY2.jsonl ...] --store STORE.db [--evidence ACCEPTS.jsonl ...] [--json]

Exit code 0: clean; 1: violations; 2: input that cannot be judged.
"""

import argparse
import gc
import json
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, groupby, pairwise, product
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

SHOWN_PER_RULE = 20  # One fault can break a rule at every call that follows; a person reads the first few.


class UnusableInputError(Exception):
    """The input cannot be judged: `where` it is, and `what` is wrong with it."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


class Call(NamedTuple):
    """One line of a history: one attempt of one request. Status None: the connection broke."""

    request: str
    key: str
    broker: str | None
    token: int | None
    value: int | None
    status: int | None
    call_ns: int
    return_ns: int | None


class Write(NamedTuple):
    """One row of the store's `writes`, in the order of their positions: an increment that was applied."""

    request: str
    key: str
    broker: str
    token: int
    value: int


class Refusal(NamedTuple):
    """One row of the store's `refusals`: a write whose token was older than the highest seen for its key."""

    request: str
    key: str
    token: int
    highest: int


class Work(NamedTuple):
    """One line of a broker's evidence: the clock at the two ownership checks of a piece of answered work."""

    broker: str
    key: str
    token: int
    started_ns: int
    answered_ns: int
    lease_deadline_ns: int


class Operation(NamedTuple):
    """One acknowledged request, retries included: it took effect between `call_ns` and `return_ns`."""

    request: str
    key: str
    broker: str
    token: int
    value: int
    call_ns: int
    return_ns: int


class Case(NamedTuple):
    """All that is judged: attempts and rows by request, acknowledged requests by key."""

    attempts: dict[str, list[Call]]
    operations: dict[str, list[Operation]]
    writes: list[Write]
    stored: dict[str, list[Write]]
    refusals: list[Refusal]
    works: list[Work]


Shape = TypeVar("Shape", Call, Write, Refusal, Work)
Rule = Callable[[Case], Iterator[str]]
KINDS = {shape: [get_args(kind) or (kind,) for kind in shape.__annotations__.values()] for shape in (Call, Write, Refusal, Work)}
ACCEPTED_KINDS = {shape: frozenset(product(*kinds)) for shape, kinds in KINDS.items()}


def outcome(status: int | None) -> str:
    """What an answer says of its request. A 500 promises nothing: its work may have been applied, like that of no answer."""
    if status == 200:
        return "acknowledged"
    if status == 307:
        return "redirected"
    return "refused" if status is not None and (status == 503 or 400 <= status < 500) else "unknown"


def checked(shape: type[Shape], values: Sequence[object], where: str) -> Shape:
    """Make a record of `values`, which stand in the order of its fields; raise UnusableInputError for a wrong type."""
    if tuple(map(type, values)) not in ACCEPTED_KINDS[shape]:
        fields = zip(shape._fields, values, KINDS[shape], strict=True)
        raise UnusableInputError(where, next(f"{name} is {value!r:.80}" for name, value, kinds in fields if type(value) not in kinds))
    return shape._make(values)


def read_lines(path: str, shape: type[Shape]) -> Iterator[Shape]:
    """Read JSON lines. Only a last line without its end, as a killed writer leaves it, may be damaged: it is passed over."""
    in_order = itemgetter(*shape._fields)
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{path!r} line {number}"
            try:
                values = in_order(json.loads(line.decode()))
            except (KeyError, TypeError) as error:
                raise UnusableInputError(where, f"not an object with the fields {', '.join(shape._fields)}") from error
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n"):
                    raise UnusableInputError(where, f"not JSON ({error})") from error
                print(f"{where}: half written, passed over", file=sys.stderr)
                return
            yield checked(shape, values, where)


def read_table(store: sqlite3.Connection, table: str, shape: type[Shape]) -> list[Shape]:
    """Read a table of the store in the order of its positions."""
    rows = store.execute(f"SELECT {', '.join(shape._fields)} FROM {table} ORDER BY position")  # noqa: S608 (our own names)
    return [checked(shape, row, f"store table {table} row {number}") for number, row in enumerate(rows, 1)]


def read_case(histories: Sequence[str], store_path: str, evidence: Sequence[str]) -> Case:
    """Read everything; raise UnusableInputError or OSError.

    The histories come before the store: what they acknowledge is then in the store, even while brokers go on writing.
    """
    calls = [call for path in histories for call in read_lines(path, Call)]
    works = [work for path in evidence for work in read_lines(path, Work)]
    try:
        with closing(sqlite3.connect(f"{Path(store_path).absolute().as_uri()}?mode=ro", uri=True)) as store:
            writes, refusals = read_table(store, "writes", Write), read_table(store, "refusals", Refusal)
    except sqlite3.Error as error:
        where = f"store {store_path!r}"
        raise UnusableInputError(where, str(error)) from error
    return assembled(calls, writes, refusals, works)


def assembled(calls: Iterable[Call], writes: list[Write], refusals: list[Refusal], works: list[Work]) -> Case:
    """Index the parts; raise UnusableInputError for a call that contradicts itself, or if there is nothing to judge.

    A retried request is ONE operation, from its first attempt that may have been applied to its first acknowledgement.
    """
    attempts: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        attempts[call.request].append(call)
        where = f"request {call.request!r}"
        if call.return_ns is not None and call.return_ns < call.call_ns:
            raise UnusableInputError(where, "it returned before it was called")
        if call.status == 200 and None in call:
            raise UnusableInputError(where, "it was acknowledged without broker, token, value or return_ns")
    operations: defaultdict[str, list[Operation]] = defaultdict(list)
    for request, tries in attempts.items():
        answers = [call for call in tries if call.status == 200]
        if answers:
            first = min(answers, key=attrgetter("return_ns"))
            called_ns = min([call.call_ns for call in tries if outcome(call.status) in ("acknowledged", "unknown")])
            operation = Operation._make((request, first.key, first.broker, first.token, first.value, called_ns, first.return_ns))
            operations[first.key].append(operation)
    if not operations:
        raise UnusableInputError("histories", "no call was acknowledged, so there is nothing to judge")
    stored: defaultdict[str, list[Write]] = defaultdict(list)
    for row in writes:
        stored[row.request].append(row)
    return Case(attempts, operations, writes, stored, refusals, works)


def told(what: Write | Operation) -> str:
    """How a message names a write or an acknowledged request."""
    return f"request {what.request!r} (broker {what.broker!r}, token {what.token}, value {what.value})"


def acknowledged_writes_are_stored(case: Case) -> Iterator[str]:
    """Each answered increment is in the store with the key, broker, token and value that the caller was told."""
    for request, tries in case.attempts.items():
        rows = case.stored.get(request, [])
        for call in tries:
            if call.status == 200 and call[:5] not in rows:  # A Call begins with the fields of a Write.
                yield f"key {call.key!r}: request {request!r} was acknowledged as {call[2:5]}, but the store has {rows or 'no such write'}"


def requests_are_applied_once(case: Case) -> Iterator[str]:
    """No request, whatever its outcome and however often it was tried, stands in the store more than once."""
    for request, rows in case.stored.items():
        if len(rows) > 1:
            yield f"key {rows[0].key!r}: request {request!r} was applied {len(rows)} times: {rows}"


def refused_calls_left_nothing(case: Case) -> Iterator[str]:
    """A request whose every answer promised that nothing was applied is not in the store; a redirect promises nothing."""
    for request, tries in case.attempts.items():
        if request in case.stored and {outcome(call.status) for call in tries} - {"redirected"} == {"refused"}:
            yield f"key {tries[0].key!r}: request {request!r} was refused with {tries[-1].status}, but is in the store"


def values_count_up(case: Case) -> Iterator[str]:
    """In the store the values of a key are 1, 2, 3, ...: no update was lost, none invented."""
    last: dict[str, int] = {}
    for row in case.writes:
        if row.value != last.get(row.key, 0) + 1:
            yield f"key {row.key!r}: in the store {told(row)} follows value {last.get(row.key, 0)}"
        last[row.key] = row.value


def stored_tokens_never_fall(case: Case) -> Iterator[str]:
    """The store took no write with a token older than one that it had taken for the key."""
    highest: dict[str, Write] = {}
    for row in case.writes:
        if row.token < highest.setdefault(row.key, row).token:
            yield f"key {row.key!r}: the store took {told(row)} after {told(highest[row.key])}"
        else:
            highest[row.key] = row


def refusals_were_stale(case: Case) -> Iterator[str]:
    """The store refused only what was older than the highest token that it had seen."""
    for row in case.refusals:
        if row.token >= row.highest:
            yield f"key {row.key!r}: request {row.request!r} was refused with token {row.token}, not older than {row.highest}"


def tokens_have_one_broker(case: Case) -> Iterator[str]:
    """A token of a key belongs to one broker, in the store and in the answers."""
    holders: dict[tuple[str, int], Write | Operation] = {}
    served: Iterable[Write | Operation] = chain(case.writes, *case.operations.values())
    for what in served:
        first = holders.setdefault((what.key, what.token), what)
        if first.broker != what.broker:
            yield f"key {what.key!r}: one token, two brokers: {told(first)} and {told(what)}"


def out_of_order(operations: Iterable[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Yield (earlier, later): `earlier` had returned before `later` was called, yet its (token, value) is not lower.

    One sweep over the operations of a key in the order of their calls, beside the highest that had returned by then.
    """
    by_call = sorted(operations, key=attrgetter("call_ns"))
    by_return = sorted(by_call, key=attrgetter("return_ns"))
    highest, returned = by_return[0], 0
    for later in by_call:
        while by_return[returned].return_ns < later.call_ns:  # It ends: `later` itself returns no earlier than its call.
            highest = max(highest, by_return[returned], key=attrgetter("token", "value"))
            returned += 1
        if returned and (highest.token, highest.value) >= (later.token, later.value):
            yield highest, later


def one_owner_at_a_time(case: Case) -> Iterator[str]:
    """Once a call was answered under a token, no later call of the key is answered under an older one."""
    for earlier, later in chain.from_iterable(map(out_of_order, case.operations.values())):
        if earlier.token > later.token:
            yield f"key {later.key!r}: two owners: {told(later)} was called after {told(earlier)} had returned"


def values_follow_real_time(case: Case) -> Iterator[str]:
    """Under one token, a call made after another had returned gets the higher value (the store's rules order the rest)."""
    for earlier, later in chain.from_iterable(map(out_of_order, case.operations.values())):
        if earlier.token == later.token:
            yield f"key {later.key!r}: {told(later)} was called after {told(earlier)} had returned, yet has no higher value"


def work_ends_within_its_lease(case: Case) -> Iterator[str]:
    """No broker started or answered work past the deadline of its lease."""
    for work in case.works:
        if max(work.started_ns, work.answered_ns) > work.lease_deadline_ns:
            yield f"key {work.key!r}: worked past the lease: {work}"


def work_of_two_tokens_never_overlaps(case: Case) -> Iterator[str]:
    """By the brokers' own clocks all work under a token of a key was answered before any under a newer one started."""
    for key, of_key in groupby(sorted(case.works, key=attrgetter("key", "token")), key=attrgetter("key")):
        latest: Work | None = None  # The last that was answered under the older tokens.
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
DOUBLE_OWNER_RULES = ("tokens_have_one_broker", "one_owner_at_a_time", "work_of_two_tokens_never_overlaps")


def violations(case: Case) -> dict[str, list[str]]:
    """The messages of each rule that was broken, by the rule's name."""
    found = {name: list(rule(case)) for name, rule in RULES.items()}
    return {name: messages for name, messages in found.items() if messages}


def ownership_changes(case: Case) -> int:
    """How many tokens, each with its broker, followed another token on some key of the store."""
    last: dict[str, int] = {}
    followed: set[tuple[int, str]] = set()
    for row in case.writes:
        if last.setdefault(row.key, row.token) != row.token:
            followed.add((row.token, row.broker))
        last[row.key] = row.token
    return len(followed)


def longest_pause(case: Case) -> tuple[int, str]:
    """The longest time in ns between two successive acknowledgements on one key, and the key ('' if none has two)."""
    moments = {key: sorted(operation.return_ns for operation in operations) for key, operations in case.operations.items()}
    return max(((later - earlier, key) for key, times in moments.items() for earlier, later in pairwise(times)), default=(0, ""))


def totals(case: Case) -> dict[str, int | float | str]:
    """What was judged, in numbers: a clean verdict on little says little."""
    outcomes = Counter(outcome(call.status) for tries in case.attempts.values() for call in tries)
    pause_ns, pause_key = longest_pause(case)
    return {
        "calls": outcomes.total(),
        **{name: outcomes[name] for name in ("acknowledged", "refused", "redirected", "unknown")},
        "keys": len(case.operations),
        "writes": len(case.writes),
        "writes_without_a_call": sum(request not in case.attempts for request in case.stored),
        "stale_writes_refused_by_the_store": len(case.refusals),
        "distinct_tokens": len({row.token for row in case.writes}),
        "ownership_changes": ownership_changes(case),
        "longest_pause_ms": round(pause_ns / 1e6, 3),
        "longest_pause_key": pause_key,
        "pieces_of_work_in_evidence": len(case.works),
    }


def report(found: dict[str, list[str]], numbers: dict[str, int | float | str], *, as_json: bool) -> str:
    """The verdict: one JSON line for programs, or for people the violations, the numbers, and the verdict last."""
    double_owners = sum(len(found.get(name, [])) for name in DOUBLE_OWNER_RULES)
    if as_json:
        broken = {name: {"count": len(messages), "first": messages[:SHOWN_PER_RULE]} for name, messages in found.items()}
        verdict = "violations" if found else "clean"
        return json.dumps({"verdict": verdict, "double_owners": double_owners, "violations": broken, "totals": numbers})
    shown = [f"VIOLATION {name} ({len(messages)}): {text}" for name, messages in found.items() for text in messages[:SHOWN_PER_RULE]]
    counted = [f"{name.replace('_', ' ')}: {number!r}" for name, number in numbers.items()]
    verdict = f"verdict: {sum(map(len, found.values()))} violations" if found else "verdict: clean, no violation"
    return "\n".join([*shown, *counted, f"double owners: {double_owners}", verdict])


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge what the command line names, print the verdict, and return the exit code."""
    parser = argparse.ArgumentParser(description="Judge what callers saw against what the store holds.")
    parser.add_argument("histories", nargs="+", metavar="HISTORY.jsonl", help="what callers saw, one call a line")
    parser.add_argument("--store", required=True, metavar="STORE.db", help="the SQLite file with the tables writes and refusals")
    parser.add_argument(
        "--evidence", nargs="+", action="extend", default=[], metavar="ACCEPTS.jsonl", help="what brokers answered, and when"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args(arguments)
    try:
        case = read_case(options.histories, options.store, options.evidence)
    except (UnusableInputError, OSError) as error:
        print(json.dumps({"verdict": "unusable", "reason": str(error)}) if options.json else f"verdict: unusable input: {error}")
        return 2
    found = violations(case)
    print(report(found, totals(case), as_json=options.json))
    return 1 if found else 0


if __name__ == "__main__":
    gc.disable()  # Millions of records that live to the end, and no cycles: to search them again and again takes a tenth of the time.
    sys.exit(main())
