"""No test waits as long as a caller does for a bundle that finds no owner."""

from __future__ import annotations

import pytest

from equipoise.brokers.operations import moves


@pytest.fixture(autouse=True)
def _placed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PLACED_MS", 500)
