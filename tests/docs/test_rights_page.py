"""The page about rights is the one that the tested cases give."""

from __future__ import annotations

from tests.docs.rights_page import PAGE, page


def test_the_page_is_up_to_date() -> None:
    """The page differs from the cases only until `python -m tests.docs.rights_page` is run."""
    assert page() == PAGE.read_text(encoding="utf-8")
