"""A browser of this machine, and pages in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.pulsar.programs import is_required

BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome", "chromium-browser")


def browser() -> str:
    """A browser of this machine; without one the test is skipped, or fails in CI."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        problem = f"no browser is installed; one of these is needed: {', '.join(BROWSERS)}"
        (pytest.fail if is_required() else pytest.skip)(problem)
    return found


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """The browser of this machine, driven by Playwright."""
    with (
        sync_playwright() as playwright,
        closing(
            playwright.chromium.launch(
                executable_path=browser(), args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
        ) as chromium,
    ):
        yield chromium


@contextmanager
def opened_page(
    chromium: Browser, url: str, *, token: str | None = None, **options: object
) -> Iterator[Page]:
    """A page in a context of its own. It must not fail, and its policy must refuse it nothing.
    `token`: has signed in.
    """
    context = chromium.new_context(**options)  # type: ignore[arg-type]
    if token is not None:
        context.add_init_script(f"sessionStorage.setItem('equipoise-token', {token!r})")
    page, problems = context.new_page(), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if "Policy" in line.text else None)
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    assert [] == problems
