"""Record how a hot bundle is found and the load is evened out. `python -m tests.page.recording
FOLDER` writes pictures of a real cluster, in a minute.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Page, expect

from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.channel.core.ranges import bundle_name, even_boundaries
from tests.page.browsers import opened_browser, opened_page
from tests.page.loaded_service import cost_of

BUNDLES: Final = 64
HOT: Final = 3
PATIENCE_MS: Final = 60_000
GAP: Final = 10


def ask(url: str, method: str = "GET", body: object = None) -> Any:  # noqa: ANN401 - JSON
    """Send one request to a broker."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - it is HTTP
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - as above
        return json.loads(answer.read() or b"null")


def hot_in(namespace: str) -> list[str]:
    """The hot bundles of a namespace."""
    cuts = even_boundaries(BUNDLES)
    names = (bundle_name(namespace, *ends) for ends in pairwise(cuts))
    return [name for name in names if cost_of(name) > 0.01]


def spread(url: str) -> float:
    """How many times the least load of a broker the greatest is; 0 while one is not known."""
    found = [each["cost"] or 0.0 for each in ask(f"{url}/v1/overview")["brokers"].values()]
    return max(found) / min(found) if min(found) else 0.0


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_MS / 1_000
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def picture(page: Page, path: Path, *others: Page, whole: bool = False) -> None:
    """Save what a page shows, and others at its side, with few colours."""
    shots = [each.screenshot(full_page=whole) for each in (page, *others)]
    images = [Image.open(io.BytesIO(shot)) for shot in shots]
    width = sum(each.width for each in images) + GAP * len(others)
    canvas = Image.new("RGB", (width, max(each.height for each in images)), "white")
    left = 0
    for each in images:
        canvas.paste(each, (left, 0))
        left += each.width + GAP
    canvas.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


def look_back(page: Page, offset: int) -> None:
    """Go to a past moment."""
    page.get_by_role("button", name="Look back").click()
    expect(page.get_by_role("status")).to_have_text("the past")
    page.get_by_role("slider").fill(str(offset))
    expect(page.get_by_text("The past: ")).to_contain_text(f"offset {offset:,}")
    page.mouse.move(0, 0)


def record(folder: Path, cluster: LocalCluster, page: Page, dark: Page, phone: Page) -> None:
    """Take the pictures."""
    url = cluster.addresses[0]
    page.set_default_timeout(PATIENCE_MS)
    namespace = next(
        f"acme/orders{each}" for each in count() if len(hot_in(f"acme/orders{each}")) == HOT
    )
    ask(
        f"{url}/admin/v2/controls/pause",
        "POST",
        {"reason": "a look at the plan first", "for_ms": 600_000},
    )
    ask(f"{url}/admin/v2/namespaces/{namespace}", "PUT", {"bundles": {"numBundles": BUNDLES}})
    until(
        lambda: ask(f"{url}/v1/overview")["namespaces"].get(namespace, {}).get("owned") == BUNDLES
    )
    for bundle in hot_in(namespace):
        path = f"admin/v2/namespaces/{bundle}/unload?destinationBroker={cluster.broker_ids[0]}"
        with suppress(urllib.error.HTTPError):  # It is there already.
            ask(f"{url}/{path}", "PUT")
    until(lambda: spread(url) > 3)
    page.goto(f"{url}/#/namespace/{namespace}")
    strip = page.get_by_role("img", name=f"{namespace} from")
    strip.focus()
    for _ in range(1_024):
        if page.get_by_text(", hot").count():
            break
        page.keyboard.press("ArrowRight")
    picture(page, folder / "page-record-1.png")
    page.goto(f"{url}/#/bundle/{hot_in(namespace)[1]}")
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    page.get_by_role("button", name="Transfer").click()
    expect(page.get_by_role("dialog")).to_contain_text("goes from")
    picture(page, folder / "page-bundle.png")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Plan").click()
    apply = page.get_by_role("button", name="Apply exactly this plan")
    expect(apply).to_be_visible()
    picture(page, folder / "page-record-2.png")
    before = ask(f"{url}/v1/overview")["cluster"]["offset"]
    apply.click()
    expect(page.get_by_text("The plan is done.")).to_be_visible()
    picture(page, folder / "page-record-3.png")
    until(lambda: spread(url) < 1.6)
    page.get_by_role("link", name="Cluster").click()
    page.wait_for_timeout(2_000)
    picture(page, folder / "page-record-4.png")
    picture(page, folder / "page.png", whole=True)
    look_back(page, before)
    picture(page, folder / "page-past.png")
    for each in (dark, phone):
        each.goto(url)
        look_back(each, before)
    phone.goto(f"{url}/#/namespace/{namespace}")
    expect(phone.get_by_role("img", name=f"{namespace} from")).to_be_visible()
    expect(phone.get_by_role("status")).to_have_text("the past")
    picture(dark, folder / "page-past-dark.png", phone)


def main(folder: Path) -> None:
    """Start a cluster and a browser."""
    expect.set_options(timeout=PATIENCE_MS)
    with tempfile.TemporaryDirectory() as directory:
        settings = ClusterSettings(
            directory=Path(directory),
            services=("acme/*=tests.page.loaded_service:Loaded",),
            settings={"balance_interval_ms": 1_000},
        )
        with (
            LocalCluster(settings) as cluster,
            opened_browser() as chromium,
            opened_page(
                chromium, cluster.addresses[0], viewport={"width": 920, "height": 620}
            ) as page,
            opened_page(
                chromium,
                cluster.addresses[0],
                viewport={"width": 800, "height": 700},
                color_scheme="dark",
            ) as dark,
            opened_page(
                chromium,
                cluster.addresses[0],
                viewport={"width": 390, "height": 700},
                color_scheme="dark",
            ) as phone,
        ):
            record(folder, cluster, page, dark, phone)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
