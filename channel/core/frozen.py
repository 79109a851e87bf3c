"""Define the decorator for values made per log record: frozen for the type checker, cheap to make.

* A frozen dataclass pays one `object.__setattr__` per field: 1.5 microseconds for nine fields,
  against 0.3 unfrozen. Measure the fold with `python -m tests.benchmarks.fold`. So records, view
  entries and verdicts are slotted dataclasses that only the type checker treats as frozen.
  Everything else uses `dataclass(frozen=True, slots=True, kw_only=True)`.
* The few lines that every record passes make a value in two steps: `blank(Class)`, then the class'
  own `__init__`, called as a plain function. `Class(...)` does the same through the type, which
  packs all arguments into a dict and costs three times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar, dataclass_transform

T = TypeVar("T")

blank: Final = object.__new__


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=True)
def hot_frozen(cls: type[T]) -> type[T]:
    """Return `cls` as a slotted, keyword-only, comparable, hashable dataclass. The type checker
    rejects assignments to its fields.
    """
    return dataclass(slots=True, kw_only=True, eq=True, unsafe_hash=True)(cls)
