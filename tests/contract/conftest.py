"""What the suites of the contracts share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.log_adapters import EACH_ADAPTER, Handles, handles_on


@pytest.fixture(params=EACH_ADAPTER)
def handles(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Handles]:
    """The opener of handles on one new log, once for each adapter."""
    with closing(handles_on(request.param, tmp_path, request)) as opener:
        yield opener
