"""Play the stories of brokers and their clients: each happens as its file says."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.scenarios.stories import told
from tests.unit.pulsar.service_stage import ServiceStage

PATHS = sorted(Path(__file__).with_name("stories").glob("*.txt"))


def played(path: Path, folder: Path) -> str:
    """Return a story with what happens now."""
    with asyncio.Runner() as runner:
        stage = ServiceStage(folder)
        try:
            return told(path.read_text(encoding="utf-8"), partial(stage.play, runner))
        finally:
            runner.run(stage.close())


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_story_happens_as_it_is_told(path: Path, tmp_path: Path) -> None:
    assert path.read_text(encoding="utf-8") == played(path, tmp_path)
