"""The reference pages that are drawn from the code are those that the code draws."""

from __future__ import annotations

import pytest

from tests.docs.record_schema import json_schema
from tests.docs.reference_pages import FOLDER, MODELS, pages, parts_of_site


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_is_up_to_date(name: str) -> None:
    """A page differs from the code only until `python -m tests.docs.reference_pages` is run."""
    assert pages()[name].decode() == (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(parts_of_site()))
def test_a_page_has_a_place_for_what_the_site_adds(name: str) -> None:
    assert "\n[REFERENCE]\n" in (FOLDER / name).read_text(encoding="utf-8")


def test_no_model_is_left_out() -> None:
    """Every model of the schema has its section."""
    definitions = json_schema()["$defs"]
    assert isinstance(definitions, dict)
    assert set(definitions) == {name for name, _ in MODELS}
