"""What a checker is, what it remembers of one subject, and how it is woken.

May live here: the protocols `Memory` and `Checker`, `DictMemory`, and named alarms over the one timer of a memory.
Where a memory is kept in Spark is `spark_jobs.audit.keyed_operator`'s business.
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

    What may be many values has a `:` in its names: each is read and written apart from the others, which lie together.
    """

    @property
    def due_ms(self) -> int | None:
        """When the timer is due; None if none is set."""

    def get(self, name: str) -> bytes | None:
        """The value under a name; None if there is none."""

    def put(self, name: str, value: bytes) -> None:
        """Set the value under a name."""

    def remove(self, name: str) -> None:
        """Forget a name; one that is not there is no error."""

    def names(self, prefix: str) -> Iterable[str]:
        """The names that begin with `prefix`, sorted."""

    def wake_at(self, at_ms: int | None) -> None:
        """Have `Checker.expire` called when the log's time has passed `at_ms`; None takes the timer back."""


class Checker(Protocol):
    """Judges one kind of subject. It keeps nothing but what it puts into the memory that it is handed, and never raises."""

    def check(self, memory: Memory, fact: Fact) -> Iterable[Finding]:
        """What is wrong with the next fact of a subject; facts of one subject come in order of the channel's offsets."""

    def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterable[Finding]:
        """What is wrong with a subject of which nothing more came up to `now_ms`, the log's time, after the timer was due."""


class DictMemory:
    """A memory in a dict, for tests and for a pipeline without Spark. `due_ms` is its timer."""

    __slots__ = ("due_ms", "values")

    def __init__(self) -> None:
        """Nothing is remembered yet."""
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


def load(memory: Memory, name: str) -> Any:  # noqa: ANN401 - what JSON gives; who put it there knows its shape
    """The JSON value under a name; None if there is none."""
    value = memory.get(name)
    return None if value is None else orjson.loads(value)


def save(memory: Memory, name: str, value: object) -> None:
    """Keep a value as JSON under a name."""
    memory.put(name, orjson.dumps(value))


def set_alarm(memory: Memory, name: str, at_ms: int | None) -> None:
    """Set an alarm of this name, or take it back with None: many alarms share the one timer of a memory."""
    alarms: dict[str, int] = load(memory, _ALARMS) or {}
    if alarms.get(name) == at_ms:
        return
    if at_ms is None:
        del alarms[name]
    else:
        alarms[name] = at_ms
    _keep_alarms(memory, alarms)


def due_alarms(memory: Memory, now_ms: int) -> list[str]:
    """The names of the alarms that are due at `now_ms`, sorted; they are taken back, and the timer is set to the next one."""
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
