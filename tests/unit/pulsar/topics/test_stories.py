"""Play the stories of one topic: each happens as its file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pulsar.topic_stage import TopicStage
from tests.scenarios.stories import told

PATHS = sorted(Path(__file__).with_name("stories").glob("*.txt"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_story_happens_as_it_is_told(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == told(text, TopicStage().perform)
