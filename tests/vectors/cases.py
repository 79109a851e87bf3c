"""Reads the decision vectors that lie beside this file.

May live here: the way from a file of vectors to its cases as plain JSON. What a case means is told in README.md, and
made of it by the test that uses it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def read_cases(name: str) -> tuple[dict[str, Any], ...]:
    """The cases of `name`.jsonl.gz in the order of the file, each with `id`, `seed`, `input` and `output`."""
    with gzip.open(Path(__file__).with_name(f"{name}.jsonl.gz"), "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)
