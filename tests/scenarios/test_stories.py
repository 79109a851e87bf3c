"""Every story happens as its file says, and together they visit all that there is to visit."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.channel.core.lifecycle import DEATH_ROWS, ROWS
from tests.scenarios import stories
from tests.scenarios.language import template_of, templates

# A story longer than a page or two is several stories.
_LINES_MAX = 80


@pytest.mark.parametrize("path", stories.paths(), ids=lambda path: path.stem)
def test_a_story_happens_as_it_is_told(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == stories.played(path).text


@pytest.mark.parametrize("path", stories.paths(), ids=lambda path: path.stem)
def test_a_story_is_short_and_says_what_it_is_about(path: Path) -> None:
    """A story begins with a sentence, and fits on a page or two."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0][0].isupper()
    assert len(lines) <= _LINES_MAX


def test_the_stories_visit_every_row_of_the_tables() -> None:
    """Every transition and every death of `channel.core.lifecycle`, and a split and a merge, are
    accepted in some story.
    """
    visited = {row for path in stories.paths() for row in stories.played(path).stage.visited}
    assert {*ROWS, *DEATH_ROWS, "split", "merge"} == visited


def test_the_stories_use_every_command() -> None:
    used = {
        template_of(command)
        for path in stories.paths()
        for command in stories.commands(path.read_text(encoding="utf-8"))
    }
    assert set(templates()) == used
