"""Define a finding of the audit and its JSON form. The rules themselves are in `spark_jobs.rules.catalogue`."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken rule.

    * `subject`: in the format of `spark_jobs.rules.facts.subject`.
    * `offsets`: logical offsets, rising; the last is the record that showed the fault.
    * `at_ms`: the log's time at that record.
    * `text`: one sentence that describes the fault.
    * `command`: a command that shows it, with `{log}` in place of the log's URL.
    """

    rule: str
    subject: str
    offsets: tuple[int, ...]
    at_ms: int
    text: str
    command: str
    publisher: str | None = None

    def to_bytes(self) -> bytes:
        """Return it as the body of a row of `Table.FINDINGS` and of a message on the findings topic."""
        return orjson.dumps(self)


def parse_finding(body: bytes) -> Finding:
    """Return the finding from the output of `Finding.to_bytes`."""
    raw = orjson.loads(body)
    return Finding(**{**raw, "offsets": tuple(raw["offsets"])})


def command_on(log: str, command: str) -> str:
    """Return the `command` of a finding for the log with URL `log`."""
    return command.replace("{log}", quote(log))
