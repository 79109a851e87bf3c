"""Keep a part of an operator's state as rows, so that a batch writes only the rows that it
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

StateRow = tuple[str, bytes | None]
"""A key of a state and its value; None if it is removed."""


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
