"""Check from clients' calls and the store's rows whether any key ever had two owners.

The checker is this file, `case.py` and `rules.py`. They import only each other and the standard
library, and nothing of the product: shared code would share its mistakes. README.md describes the
formats and what a clean verdict proves.

    python checker.py HISTORY.jsonl [HISTORY2.jsonl ...] --store STORE.db [--evidence ACCEPTS.jsonl
    ...] [--json]

Exit code 0: clean; 1: violations; 2: unusable input.
"""

import argparse
import gc
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import TypeVar, get_args

from case import Call, Case, Refusal, UnusableInputError, Work, Write, assembled, outcome
from rules import DOUBLE_OWNER_RULES, violations

# One fault can break a rule at every later call. The first few are enough for a person.
SHOWN_PER_RULE = 20

# The messages of each broken rule, and figures about the input.
Judgement = tuple[dict[str, list[str]], dict[str, int | float | str]]

Shape = TypeVar("Shape", Call, Write, Refusal, Work)
KINDS = {
    shape: [get_args(kind) or (kind,) for kind in shape.__annotations__.values()]
    for shape in (Call, Write, Refusal, Work)
}
ACCEPTED_KINDS = {shape: frozenset(product(*kinds)) for shape, kinds in KINDS.items()}


def checked(shape: type[Shape], values: Sequence[object], where: str) -> Shape:
    """Make a record from `values` in the order of its fields. Raise UnusableInputError for a wrong
    type.
    """
    if tuple(map(type, values)) not in ACCEPTED_KINDS[shape]:
        fields = zip(shape._fields, values, KINDS[shape], strict=True)
        raise UnusableInputError(
            where,
            next(
                f"{name} is {value!r:.80}"
                for name, value, kinds in fields
                if type(value) not in kinds
            ),
        )
    return shape._make(values)


def read_lines(path: str, shape: type[Shape]) -> Iterator[Shape]:
    """Read JSON lines. Skip an incomplete last line, as a killed writer leaves it; any other damage
    is an error.
    """
    in_order, absent = itemgetter(*shape._fields), shape._field_defaults
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{path!r} line {number}"
            try:
                said = json.loads(line.decode())
                if shape is Work and "dropped" in said:
                    raise UnusableInputError(
                        where,
                        f"the broker says that pieces of its evidence are missing: {said!r:.120}",
                    )
                values = in_order(absent | said if absent else said)
            except (KeyError, TypeError) as error:
                raise UnusableInputError(
                    where, f"not an object with the fields {', '.join(shape._fields)}"
                ) from error
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n"):
                    raise UnusableInputError(where, f"not JSON ({error})") from error
                print(f"{where}: half written, passed over", file=sys.stderr)
                return
            yield checked(shape, values, where)


def read_table(store: sqlite3.Connection, table: str, shape: type[Shape]) -> list[Shape]:
    """Read a table of the store in order of position."""
    rows = store.execute(f"SELECT {', '.join(shape._fields)} FROM {table} ORDER BY position")  # noqa: S608 (our own names)
    return [
        checked(shape, row, f"store table {table} row {number}")
        for number, row in enumerate(rows, 1)
    ]


def read_case(histories: Sequence[str], store_path: str, evidence: Sequence[str]) -> Case:
    """Read all input. Raise UnusableInputError or OSError.

    Read the histories before the store, so that the store has everything they acknowledge, even
    while brokers write.
    """
    calls = [call for path in histories for call in read_lines(path, Call)]
    works = [work for path in evidence for work in read_lines(path, Work)]
    try:
        with closing(
            sqlite3.connect(f"{Path(store_path).absolute().as_uri()}?mode=ro", uri=True)
        ) as store:
            writes, refusals = (
                read_table(store, "writes", Write),
                read_table(store, "refusals", Refusal),
            )
    except sqlite3.Error as error:
        where = f"store {store_path!r}"
        raise UnusableInputError(where, str(error)) from error
    return assembled(calls, writes, refusals, works)


def ownership_changes(case: Case) -> int:
    """Count the ownership changes in the store: tokens, each with its broker, that followed another
    token of the same key.
    """
    last: dict[str, int] = {}
    followed: set[tuple[int, str]] = set()
    for row in case.writes:
        if last.setdefault(row.key, row.token) != row.token:
            followed.add((row.token, row.broker))
        last[row.key] = row.token
    return len(followed)


def longest_pause(case: Case) -> tuple[int, str]:
    """Return the longest time in ns between two successive acknowledgements of one key, and the key
    ('' if there is none).
    """
    moments = {
        key: sorted(operation.return_ns for operation in operations)
        for key, operations in case.operations.items()
    }
    return max(
        (
            (later - earlier, key)
            for key, times in moments.items()
            for earlier, later in pairwise(times)
        ),
        default=(0, ""),
    )


def totals(case: Case) -> dict[str, int | float | str]:
    """Return figures about the input: a clean verdict on little input means little."""
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


def judged(judge: Callable[[], Judgement], *, as_json: bool) -> int:
    """Print the verdict on what `judge` finds, and return the exit code."""
    try:
        found, numbers = judge()
    except (UnusableInputError, OSError) as error:
        print(
            json.dumps({"verdict": "unusable", "reason": str(error)})
            if as_json
            else f"verdict: unusable input: {error}"
        )
        return 2
    print(report(found, numbers, as_json=as_json))
    return 1 if found else 0


def report(
    found: dict[str, list[str]], numbers: dict[str, int | float | str], *, as_json: bool
) -> str:
    """Format the verdict: one JSON line, or text with violations, figures and the verdict last."""
    double_owners = sum(len(found.get(name, [])) for name in DOUBLE_OWNER_RULES)
    if as_json:
        broken = {
            name: {"count": len(messages), "first": messages[:SHOWN_PER_RULE]}
            for name, messages in found.items()
        }
        verdict = "violations" if found else "clean"
        return json.dumps(
            {
                "verdict": verdict,
                "double_owners": double_owners,
                "violations": broken,
                "totals": numbers,
            }
        )
    shown = [
        f"VIOLATION {name} ({len(messages)}): {text}"
        for name, messages in found.items()
        for text in messages[:SHOWN_PER_RULE]
    ]
    counted = [f"{name.replace('_', ' ')}: {number!r}" for name, number in numbers.items()]
    verdict = (
        f"verdict: {sum(map(len, found.values()))} violations"
        if found
        else "verdict: clean, no violation"
    )
    return "\n".join([*shown, *counted, f"double owners: {double_owners}", verdict])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files on the command line, print the verdict, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Check what callers saw against what the store holds."
    )
    parser.add_argument(
        "histories", nargs="+", metavar="HISTORY.jsonl", help="what callers saw, one call a line"
    )
    parser.add_argument(
        "--store",
        required=True,
        metavar="STORE.db",
        help="the SQLite file with the tables writes and refusals",
    )
    parser.add_argument(
        "--evidence",
        nargs="+",
        action="extend",
        default=[],
        metavar="ACCEPTS.jsonl",
        help="what brokers answered, and when",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args(arguments)

    def judge() -> Judgement:
        case = read_case(options.histories, options.store, options.evidence)
        return violations(case), totals(case)

    return judged(judge, as_json=options.json)


if __name__ == "__main__":
    # Millions of records live to the end, without cycles. Scanning them repeatedly takes a tenth of
    # the time.
    gc.disable()
    sys.exit(main())
