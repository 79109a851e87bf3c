"""Report findings, and how far an audit has come: the texts of both hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from equipoise.channel.core.errors import EquipoiseError
from equipoise.spark_jobs.audit.findings_out import FINDINGS, FindingsOut
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import Finding, command_on
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.errors import another_log
from equipoise.spark_jobs.streams.progress import Watch
from equipoise.spark_jobs.tables.files import AUDITED_FILE, read_file, write_file

PRINTED_MAX: Final = 50
"""Findings of one batch to print for people, so that a log full of garbage does not hide the first
ones. JSON output has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far an audit has come: it checked all records up to the offset `audited` that it could
    read, and the log ended at the offset `end` then. `base` is the channel's
    (`channel.core.view.View`).
    """

    audited: int
    end: int
    base: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the audit has looked at all of the log."""
        return self.audited >= self.end

    def __str__(self) -> str:
        """Return the beginning of a verdict."""
        if self.audited <= 0:
            return f"audited nothing of {max(self.end, 0):,} offsets"
        return f"audited up to {self.audited:,} of {self.end:,}"

    def keep(self, archive: str | Path, *, log: str, url: str) -> None:
        """Write it for readers of the archive, with the log that was audited. Raises as
        `write_file`.
        """
        document = {"audited": self.audited, "end": self.end, "base": self.base}
        data = orjson.dumps({**document, "log": log, "url": url})
        write_file(archive, AUDITED_FILE, data + b"\n")


def reach_in(archive: str | Path, *, log: str | None = None) -> Reach | None:
    """Return how far the audit of an archive has come; None if that is not known.

    Raises `OperatorError` for the archive of another log than `log`, and `PeerError` if object
    storage does not answer.
    """
    try:
        found = orjson.loads(read_file(archive, AUDITED_FILE) or b"")
        reach = Reach(audited=found["audited"], end=found["end"], base=found["base"])
        owner = found["log"]
    except (OSError, ValueError, TypeError, LookupError):
        return None
    if log is not None and owner != log:
        raise another_log(archive, owner=owner, log=log)
    return reach


def print_findings(
    found: Sequence[Finding], watch: Watch, *, archive: str | Path, log: str, as_json: bool
) -> None:
    """Print the findings of one batch, and count them."""
    for each in found:
        watch.found(each.rule, 1)
    if as_json:
        for each in found:
            document = replace(each, command=command_on(log, each.command)).to_bytes()
            watch.say(document.decode())
        return
    for each in found[:PRINTED_MAX]:
        for line in lines(each, log=log):
            watch.say(line)
    if len(found) > PRINTED_MAX:
        watch.say(
            f"{len(found) - PRINTED_MAX:,} more findings in this batch: see {archive}/findings"
        )


def lines(finding: Finding, *, log: str) -> Iterator[str]:
    """Yield the lines of a finding for people."""
    kind, _, name = finding.subject.partition(":")
    of = f"{kind} {name}" if name else f"the {kind}"
    yield (
        f"{RULES[finding.rule].severity} {finding.rule} at {finding.offsets[-1]}, {of}:"
        f" {finding.text}"
    )
    yield f"  {command_on(log, finding.command)}"


def note_beginning(
    watch: Watch,
    log: str,
    position: int | None,
    *,
    is_first: bool,
    out: FindingsOut,
    archive: str | Path,
) -> None:
    """Note where a run begins: at the offset `position`, with the log's first record (`is_first`)
    or after a snapshot; None if it continues. Note where its findings go.
    """
    if position is None:
        where = ", continued from the last run"
    elif is_first:
        where = " from its first record"
    else:
        where = f" from offset {position}, the first after its snapshot"
    watch.note(f"auditing {log}{where}")
    watch.note(
        f"findings are printed here, and written to {archive}/{Table.FINDINGS},"
        f" and {FINDINGS.name} {out.place}"
    )


def note_end(watch: Watch, reach: Reach, older: int, *, as_json: bool) -> None:
    """Print the last line of a run. A run that failed before its first entry has found out
    nothing.
    """
    if watch.rows or not isinstance(sys.exception(), EquipoiseError):
        watch.note(summary(reach, watch, older))
        if as_json:
            watch.say(verdict(reach, watch))


def summary(reach: Reach, watch: Watch, older: int) -> str:
    """Return the last line of a run, for people."""
    findings: Mapping[str, int] = watch.findings
    rules = ", ".join(f"{rule} {count:,}" for rule, count in sorted(findings.items()))
    total = watch.findings.total()
    found = f"{total:,} finding{'' if total == 1 else 's'} ({rules})" if findings else "no findings"
    before = f"; the archive holds {older:,} older" if older else ""
    return f"{reach}: {found} in {watch.rows:,} entries{before}"


def verdict(reach: Reach, watch: Watch) -> str:
    """Return the last line of a run, as JSON."""
    document = {
        "audited": reach.audited,
        "end": reach.end,
        "is_whole": reach.is_whole,
        "entries": watch.rows,
        "findings": watch.findings.total(),
    }
    return orjson.dumps(document).decode()
