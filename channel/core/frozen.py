"""The decorator of the values that every record of the log costs: frozen for the type checker, cheap when made.

A frozen dataclass pays one `object.__setattr__` per field each time one is made: 1.5 microseconds for nine fields, against
0.3 for the same class unfrozen (`python -m tests.benchmarks.fold` shows what the fold spends). Records, entries of the view
and verdicts are made for every record of the log, so they are slotted dataclasses that only the type checker holds frozen.
Everything else uses `dataclass(frozen=True, slots=True, kw_only=True)`.

Where even that is too dear, in the few lines that every record passes, a value is made in two steps: `blank(Class)`, then
the class' own `__init__`, called as the plain function that it is. That is what `Class(...)` does, but without its way
through the type, which packs all arguments into a dict and costs two thirds of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar, dataclass_transform

T = TypeVar("T")

blank: Final = object.__new__


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=True)
def hot_frozen(cls: type[T]) -> type[T]:
    """A slotted, keyword-only, comparable and hashable dataclass; assigning to a field is an error of the type check."""
    return dataclass(slots=True, kw_only=True, eq=True, unsafe_hash=True)(cls)
