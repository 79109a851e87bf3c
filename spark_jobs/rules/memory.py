"""Define what the audit remembers of one subject, check the subject's facts against it, and limit
repeated findings.

One damaged record can make thousands of later ones look wrong. Ten findings of each rule about one
subject are enough.

Parts of an operator's state are kept as rows, so that a batch writes only the rows that it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self, TypeVar

from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.rule import RULES, Finding

Key = TypeVar("Key")
Value = TypeVar("Value")

StateRow = tuple[str, bytes | None]
"""A key of a state and its value; None if it is removed."""


class Stateful(Protocol):
    """What has a state in rows."""

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        ...

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Continue from the state in these rows. Ignore rows of other parts."""
        ...


def put_rows(rows: dict[str, bytes], changed: Iterable[StateRow]) -> None:
    """Apply changed rows to all rows of a state."""
    for key, data in changed:
        if data is None:
            rows.pop(key, None)
        else:
            rows[key] = data


class StateTable(dict[Key, Value]):
    """A dictionary that remembers which entries changed. Change it only by assignment, `remove`,
    `touch` and `replace`.
    """

    def __init__(
        self,
        prefix: str,
        key: Callable[[str], Key],
        encode: Callable[[Value], bytes],
        decode: Callable[[bytes], Value],
    ) -> None:
        """The row of an entry has the key `PREFIXKEY`, and the bytes of `encode`."""
        super().__init__()
        self._prefix = prefix
        self._key = key
        self._encode = encode
        self._decode = decode
        self._changed: dict[Key, None] = {}

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self._changed[key] = None

    def remove(self, key: Key) -> Value | None:
        """Remove an entry and return its value; None if there is none."""
        value = self.get(key)
        if key in self:
            del self[key]
            self._changed[key] = None
        return value

    def touch(self, key: Key) -> None:
        """Record that the value of an entry has changed in place."""
        self._changed[key] = None

    def replace(self, entries: Mapping[Key, Value]) -> None:
        """Remove all entries, and add these."""
        self._changed.update(dict.fromkeys(self))
        self.clear()
        for key, value in entries.items():
            self[key] = value

    def changed_rows(self) -> list[StateRow]:
        """Return the rows that changed since the last call; None for removed ones."""
        changed, self._changed = self._changed, {}
        return [
            (f"{self._prefix}{key}", self._encode(self[key]) if key in self else None)
            for key in changed
        ]

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Take over the entries from these rows. Ignore rows of other parts."""
        self.clear()
        for name, data in rows.items():
            if name.startswith(self._prefix):
                super().__setitem__(self._key(name.removeprefix(self._prefix)), self._decode(data))
        self._changed.clear()


PERIOD_MS: Final = 60_000
"""Length of a reporting period in log time."""
REPORTED_MAX: Final = 10
"""Findings of one rule about one subject in a period. The next finding, or the end of the next
period, reports how many were held back."""
REPORTED_ONCE: Final = frozenset({"digest_differs"})
"""One per period is enough for these: two views that differ once differ at every later renewal."""


@dataclass(slots=True, kw_only=True)
class Memory:
    """What the audit remembers of one subject, and the checks of its facts. Each kind of subject
    extends it. All values go into JSON.

    * `begun`: the offset from which the audit has read without a gap, as of the last record.
    * `reported`: by rule, the start of the period, the findings reported in it, those held back
      since, and the offset of the last of these.
    * `forget_ms`: the log's time at which to forget everything; None for never.
    * `failures`: how often a check of the subject raised an error.
    """

    begun: int = 0
    reported: dict[str, list[int]] = field(default_factory=dict)
    forget_ms: int | None = None
    failures: int = 0

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """Return the memory from its JSON object."""
        return cls(**raw)

    def check(self, fact: Fact) -> Iterator[Finding]:
        """Yield what is wrong with the next fact of the subject, and remember the fact."""
        raise NotImplementedError

    # For subjects with a rule that time alone can break.
    def expire(self, subject: str, now_ms: int) -> Iterator[Finding]:  # noqa: ARG002
        """Yield what is wrong because no fact came until `now_ms`. It runs at one of `due_times`,
        or later.
        """
        return iter(())

    @property
    def forgets_at_gaps(self) -> bool:
        """Whether to forget everything if `begun` rises."""
        return True

    def due_times(self) -> Iterator[int]:
        """Yield the log times (Unix ms) at which there is something to do, in any order."""
        if self.forget_ms is not None:
            yield self.forget_ms
        for began_ms, _, held_back, _ in self.reported.values():
            if held_back:
                yield began_ms + 2 * PERIOD_MS

    @property
    def due_ms(self) -> int | None:
        """The earliest of `due_times`; None if there is none."""
        return min(self.due_times(), default=None)

    def limited(self, fact: Fact, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Yield the findings of `fact` that are within the limit of their rule."""
        for each in findings:
            held_back = 0 if each.subject != fact.subject else self._count(each, fact.at_ms)
            if held_back:
                yield replace(
                    each,
                    text=(
                        f"{each.text} ({held_back} more findings like this one were held back"
                        " before it)"
                    ),
                )
            elif held_back == 0:
                yield each

    def _count(self, finding: Finding, at_ms: int) -> int | None:
        """Count one finding. Return how many were held back before it; None if it is held back
        too.
        """
        began_ms, count, held_back, _ = self.reported.get(finding.rule, (at_ms, 0, 0, 0))
        if at_ms - began_ms >= PERIOD_MS:
            began_ms, count = at_ms, 0
        if count >= (1 if finding.rule in REPORTED_ONCE else REPORTED_MAX):
            self.reported[finding.rule] = [began_ms, count, held_back + 1, finding.offsets[-1]]
            return None
        self.reported[finding.rule] = [began_ms, count + 1, 0, 0]
        return held_back

    def held_back(self, subject: str, now_ms: int) -> Iterator[Finding]:
        """Report how many findings were held back in a period, if no finding of the next period
        did.
        """
        for rule, (began_ms, count, held_back, offset) in sorted(self.reported.items()):
            if held_back and now_ms - began_ms >= 2 * PERIOD_MS:
                self.reported[rule] = [began_ms, count, 0, 0]
                text = (
                    f"{held_back} more findings like the last ones were held back, up to offset"
                    f" {offset}"
                )
                yield RULES[rule].finding(subject, text, offsets=(offset,), at_ms=now_ms)
