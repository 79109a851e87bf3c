"""Play the stories of one connection and of one topic: each happens as its file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pulsar.topic_stage import TopicStage
from tests.pulsar.wire_stage import WireStage
from tests.scenarios.stories import told

STAGES: dict[str, type[WireStage | TopicStage]] = {"wire": WireStage, "topics": TopicStage}
PATHS = sorted(
    path for folder in STAGES for path in (Path(__file__).parent / folder / "stories").glob("*.txt")
)


def played(path: Path) -> str:
    """Return a story with what happens now."""
    stage = STAGES[path.parents[1].name]()
    return told(path.read_text(encoding="utf-8"), stage.perform)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_story_happens_as_it_is_told(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == played(path)
