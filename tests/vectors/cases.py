"""Reads the decision vectors that lie beside this file, or others of the same form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Case = dict[str, Any]
HERE = Path(__file__).parent
_ENDINGS = (".jsonl", ".jsonl.gz")


def files_of(folder: Path) -> dict[str, Path]:
    """The files of vectors in a folder by their names without the ending, compressed or not,
    ordered by name.
    """
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(_ENDINGS))
    return {path.name.partition(".")[0]: path for path in paths}


def read_cases(name: str, folder: Path = HERE) -> tuple[Case, ...]:
    """The cases of one file in its order, each with `id`, `seed`, `input` and `output`."""
    path = files_of(folder)[name]
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return tuple(json.loads(line) for line in data.splitlines())
