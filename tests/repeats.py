"""How often a test repeats a deed: a few times in `make test`, many times in `make stress`."""

from __future__ import annotations

import os
from typing import Final

MANY: Final = "EQUIPOISE_TEST_MANY"
"""The variable that asks for many repetitions; `make stress` sets it."""


def times(few: int, *, many: int) -> int:
    """How often to do it now."""
    return many if os.environ.get(MANY) else few
