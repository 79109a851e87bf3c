"""Fuzz the Pulsar protocol with atheris, guided by coverage (`make fuzz`)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["equipoise.brokers.pulsar"]):
    from tests.fuzz.corpus import INPUTS
    from tests.fuzz.harness import take

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(INPUTS):
            Path(folder, f"{number:02}").write_bytes(data)
        atheris.Setup([*sys.argv, folder], take)
        atheris.Fuzz()
