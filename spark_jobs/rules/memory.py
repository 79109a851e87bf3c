"""Define a checker, its memory of one subject, and named alarms on the memory's one timer.

`spark_jobs.audit.keyed_operator` keeps a memory in Spark's state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import orjson

from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.findings import Finding

_ALARMS: Final = "alarms"


class Memory(Protocol):
    """What a checker keeps of one subject: small named values, and one timer in the log's time (Unix milliseconds).

    Names with a `:` are stored one by one, because there may be many; all others are stored together.
    """

    @property
    def due_ms(self) -> int | None:
        """When the timer is due; None if it is not set."""

    def get(self, name: str) -> bytes | None:
        """Return the value under a name, or None."""

    def put(self, name: str, value: bytes) -> None:
        """Set the value under a name."""

    def remove(self, name: str) -> None:
        """Remove a name. A missing name is no error."""

    def names(self, prefix: str) -> Iterable[str]:
        """Return the names that begin with `prefix`, sorted."""

    def wake_at(self, at_ms: int | None) -> None:
        """Call `Checker.expire` when the log's time has passed `at_ms`. None clears the timer."""


class Checker(Protocol):
    """Check one kind of subject. A checker keeps state only in the given memory, and never raises."""

    def check(self, memory: Memory, fact: Fact) -> Iterable[Finding]:
        """Return what is wrong with the next fact of a subject. Facts come in order of the channel's offsets."""

    def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterable[Finding]:
        """Return what is wrong with a subject whose timer was due, at `now_ms` of the log's time."""


class DictMemory:
    """A memory in a dict, for tests and for a pipeline without Spark. `due_ms` is its timer."""

    __slots__ = ("due_ms", "values")

    def __init__(self) -> None:
        """Begin with an empty memory."""
        self.values: dict[str, bytes] = {}
        self.due_ms: int | None = None

    def get(self, name: str) -> bytes | None:
        """See `Memory`."""
        return self.values.get(name)

    def put(self, name: str, value: bytes) -> None:
        """See `Memory`."""
        self.values[name] = value

    def remove(self, name: str) -> None:
        """See `Memory`."""
        self.values.pop(name, None)

    def names(self, prefix: str) -> Iterable[str]:
        """See `Memory`."""
        return sorted(name for name in self.values if name.startswith(prefix))

    def wake_at(self, at_ms: int | None) -> None:
        """See `Memory`."""
        self.due_ms = at_ms


def load(memory: Memory, name: str) -> Any:  # noqa: ANN401 - the caller that saved the value knows its shape
    """Return the JSON value under a name, or None."""
    value = memory.get(name)
    return None if value is None else orjson.loads(value)


def save(memory: Memory, name: str, value: object) -> None:
    """Save a value as JSON under a name."""
    memory.put(name, orjson.dumps(value))


def set_alarm(memory: Memory, name: str, at_ms: int | None) -> None:
    """Set an alarm, or clear it with None. All alarms of a memory share its one timer."""
    alarms: dict[str, int] = load(memory, _ALARMS) or {}
    if alarms.get(name) == at_ms:
        return
    if at_ms is None:
        del alarms[name]
    else:
        alarms[name] = at_ms
    _keep_alarms(memory, alarms)


def due_alarms(memory: Memory, now_ms: int) -> list[str]:
    """Clear and return the alarms that are due at `now_ms`, sorted. Set the timer to the next one."""
    alarms: dict[str, int] = load(memory, _ALARMS) or {}
    due = sorted(name for name, at_ms in alarms.items() if at_ms <= now_ms)
    _keep_alarms(memory, {name: at_ms for name, at_ms in alarms.items() if at_ms > now_ms})
    return due


def _keep_alarms(memory: Memory, alarms: dict[str, int]) -> None:
    if alarms:
        save(memory, _ALARMS, alarms)
    else:
        memory.remove(_ALARMS)
    memory.wake_at(min(alarms.values(), default=None))
