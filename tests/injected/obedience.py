"""Channels of brokers that lack one rule (`tests/mutants`), and a slow, obvious search for the
record that breaks it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson

from equipoise.channel.core.log import Entry
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import BrokerRecord, Joined, Renewed
from equipoise.spark_jobs.sequence.rows import Arrival, Source
from tests.house.house_rules import ROOT
from tests.injected.honest import Run, honest, play
from tests.injected.injection import Injected, Kind
from tests.mutants.__main__ import product_texts, write_product
from tests.mutants.patching import apply, parse

_PATCHES: Final = ROOT / "tests" / "mutants"
_TIMEOUT_S: Final = 300

# Long enough for a few deaths and outages.
_SECONDS: Final = 30

# Clock rates are wrong by up to 3 %, and rounding loses a millisecond at each end.
_RATE_PERCENT: Final = 3
_ROUNDING_MS: Final = 2

# Rounding of clocks that count milliseconds explains less.
_OVERLAP_NS: Final = 1_000_000

Shown = tuple[frozenset[str], frozenset[str], frozenset[int]]
"""The rules, subjects and offsets of a violation."""

Oracle = Callable[[list[Arrival]], Shown | None]
"""Return where the rule was broken; None if nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Disobedience:
    """A mutant of the agent by the name of its patch, and the oracle that finds its violation."""

    patch: str
    oracle: Oracle
    seconds: int = _SECONDS


# --- recording in another process ---


def recorded(patch: str, seed: int, *, seconds: int) -> list[Arrival]:
    """Return the records and the evidence of brokers whose code has this patch. Raises
    `CalledProcessError` if they crash.
    """
    mutant = parse(patch, (_PATCHES / f"{patch}.patch").read_text(encoding="utf-8"))
    texts = product_texts()
    with TemporaryDirectory(prefix="disobedient-") as folder:
        write_product(Path(folder), {**texts, **apply(mutant, texts)})
        # The copy comes first on the path, before the product that is installed beside this
        # interpreter, and before the tests.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(ROOT)))}
        command = [
            sys.executable,
            "-m",
            "tests.injected.obedience",
            mutant.scenario,
            str(seed),
            str(seconds),
        ]
        run = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    return [
        Arrival(source, offset, at_ms, value.encode())
        for source, offset, at_ms, value in orjson.loads(run.stdout)
    ]


def main() -> None:
    """Play the scenario, seed and seconds of the command line, and print all arrivals as one JSON
    list.
    """
    run: Run = play(
        honest(sys.argv[1], seconds=int(sys.argv[3])), int(sys.argv[2]), evidence=True, strict=False
    )
    rows = [
        (arrival.source, arrival.offset, arrival.at_ms, (arrival.value or b"").decode())
        for arrival in run.arrivals
    ]
    sys.stdout.buffer.write(orjson.dumps(rows))


# --- what is broken ---


def _silence_not_waited_for(arrivals: list[Arrival], *, rule: str) -> Shown | None:
    """Return the first death or joining for silence that came before lease and grace period had
    passed since the last sign of life.

    An accuser that had lost its own lease must wait as long from its return.
    """
    reader = Reader(log="injected")
    heard: dict[str, int] = {}
    back: dict[str, int] = {}
    for arrival in arrivals:
        if arrival.source != Source.CHANNEL:
            continue
        brokers = {name: (entry.joined, entry.live) for name, entry in reader.view.brokers.items()}
        folded = reader.feed(Entry(arrival.offset, arrival.value or b""))
        record = folded.record
        if not folded.verdict.accepted or not isinstance(record, Joined | Renewed | BrokerRecord):
            continue
        joined, was_live = brokers.get(record.key, (None, False))
        claims = isinstance(record, Joined) and record.after_silence and record.replaces is None
        accuses = (
            isinstance(record, BrokerRecord)
            and record.status == "down"
            and record.incarnation is not None
        )
        if (
            joined is not None
            and was_live
            and ((claims and rule == "premature_join") or (accuses and rule == "premature_down"))
        ):
            since_ms = max(heard[record.key], back.get(record.publisher, 0) if accuses else 0)
            least_ms = (joined.lease_ms + joined.grace_ms) * (
                100 - _RATE_PERCENT
            ) // 100 - _ROUNDING_MS
            if arrival.at_ms - since_ms < least_ms:
                return (
                    frozenset({rule}),
                    frozenset({f"broker:{record.key}"}),
                    frozenset({arrival.offset}),
                )
        if isinstance(record, Joined | Renewed) or record.status == "draining":
            if joined is not None and arrival.at_ms - heard.get(record.key, 0) > joined.lease_ms:
                back[record.key] = arrival.at_ms
            heard[record.key] = arrival.at_ms
    return None


def _stretches(arrivals: list[Arrival]) -> list[dict[str, Any]]:
    served = [
        orjson.loads(arrival.value or b"")
        for arrival in arrivals
        if arrival.source == Source.SERVING
    ]
    return [stretch for stretch in served if stretch["answered_ns"] is not None]


def _two_at_once(arrivals: list[Arrival]) -> Shown | None:
    """Return all bundles that two incarnations served at one time."""
    subjects, tokens = set(), set()
    stretches = _stretches(arrivals)
    for place, one in enumerate(stretches):
        for other in stretches[:place]:
            if (
                one["bundle"] != other["bundle"]
                or one["incarnation"] == other["incarnation"]
                or one["by_token"]
                or other["by_token"]
            ):
                continue
            common_ns = min(one["answered_ns"], other["answered_ns"]) - max(
                one["started_ns"], other["started_ns"]
            )
            if common_ns > _OVERLAP_NS:
                subjects.add(f"bundle:{one['bundle']}")
                tokens |= {one["token"], other["token"]}
    return (
        (frozenset({"served_two_at_once"}), frozenset(subjects), frozenset(tokens))
        if subjects
        else None
    )


def _past_lease(arrivals: list[Arrival]) -> Shown | None:
    """Return all stretches that answered past the end of their lease."""
    late = [
        stretch
        for stretch in _stretches(arrivals)
        if stretch["answered_ns"] > stretch["lease_deadline_ns"] + _OVERLAP_NS
        and not stretch["by_token"]
    ]
    subjects = frozenset(f"bundle:{stretch['bundle']}" for stretch in late)
    return (
        (
            frozenset({"served_past_lease"}),
            subjects,
            frozenset(stretch["token"] for stretch in late),
        )
        if late
        else None
    )


_DISOBEDIENCES: Final = (
    _Disobedience(
        patch="26-first-back-accuses",
        oracle=partial(_silence_not_waited_for, rule="premature_down"),
    ),
    _Disobedience(
        patch="27-no-grace-period", oracle=partial(_silence_not_waited_for, rule="premature_down")
    ),
    _Disobedience(
        patch="28-accuses-before-the-lease-ends",
        oracle=partial(_silence_not_waited_for, rule="premature_down"),
    ),
    _Disobedience(
        patch="32-silence-not-waited-for",
        oracle=partial(_silence_not_waited_for, rule="premature_join"),
        seconds=5,
    ),
    _Disobedience(patch="01-no-lease-check", oracle=_past_lease),
    _Disobedience(patch="13-hand-over-before-closing", oracle=_two_at_once),
    _Disobedience(patch="14-opens-before-it-owns", oracle=_two_at_once),
)


def _inject(disobedience: _Disobedience, seed: int, _rng: Random) -> Injected | None:
    arrivals = recorded(disobedience.patch, seed, seconds=disobedience.seconds)
    shows = disobedience.oracle(arrivals)
    if shows is None:
        return None
    rules, subjects, offsets = shows
    return Injected(arrivals=arrivals, rules=rules, subjects=subjects, offsets=offsets)


DISOBEDIENCES: Final = tuple(
    Kind(name=each.patch[3:], inject=partial(_inject, each)) for each in _DISOBEDIENCES
)


if __name__ == "__main__":
    main()
