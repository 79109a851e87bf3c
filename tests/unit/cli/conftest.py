"""The log that most tests of the command line begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.fabricated import owned_channel, write


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The URL of the log of `owned_channel`: 9 records, a owns `LEFT`, b owns `RIGHT`, c
    nothing.
    """
    return write(owned_channel().entries, tmp_path)
