"""Findings of the audit: what was found, of what, at which offsets, and the command that shows it.

May live here: the value and its spelling. Which rules there are stands in `spark_jobs.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken rule. `offsets` are logical, rising; the last is the record at which it showed. `at_ms` is the log's time there.

    `subject` is spelled as `spark_jobs.rules.facts.subject` does. `text` says in a sentence what was found of what. `command` is the line
    that shows it to whoever reads this, with `{log}` where the log's URL belongs.
    """

    rule: str
    subject: str
    offsets: tuple[int, ...]
    at_ms: int
    text: str
    command: str
    publisher: str | None = None

    def to_bytes(self) -> bytes:
        """As the body of a row of `Table.FINDINGS`, and as a message of the topic of findings."""
        return orjson.dumps(self)


def parse_finding(body: bytes) -> Finding:
    """The finding that `Finding.to_bytes` spelled."""
    raw = orjson.loads(body)
    return Finding(**{**raw, "offsets": tuple(raw["offsets"])})


def command_on(log: str, command: str) -> str:
    """The `command` of a finding as it is typed where the log's URL is `log`."""
    return command.replace("{log}", quote(log))
