"""The page of a cluster in a real browser, in front of real brokers."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, Page, expect

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.brokers.operations.access import opened, until
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.channel.core.ranges import even_boundaries
from tests.page.browsers import opened_browser, opened_page

pytestmark = pytest.mark.integration

PATIENCE_MS = 30_000
LARGE = "other/large"

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with opened_browser() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers without a namespace."""
    settings = ClusterSettings(
        directory=tmp_path_factory.mktemp("page"),
        services=("acme/*=tests.page.loaded_service:Loaded",),
        settings={"balance_interval_ms": 1_000},
    )
    with LocalCluster(settings) as started:
        yield started


def create(cluster: LocalCluster, namespace: str, bundles: int) -> None:
    """Create a namespace, and wait until its bundles are owned if a broker serves it. In a thread,
    because Playwright keeps the loop of this one.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_create, cluster, namespace, bundles).result()


def _create(cluster: LocalCluster, namespace: str, bundles: int) -> None:
    with opened(cluster.log_url, timeout_ms=PATIENCE_MS) as access:
        intent = CreateNamespace(name=namespace, boundaries=even_boundaries(bundles))
        run(ChannelPort(access).propose(intent))
        until(
            access,
            lambda view: not (view.takers(namespace) and view.unsettled()) or None,
            what="owned bundles",
        )


def ask(cluster: LocalCluster, method: str, path: str, body: object = None) -> None:
    request = urllib.request.Request(  # noqa: S310 - it is HTTP
        cluster.addresses[0] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()  # noqa: S310 - as above


def is_live(page: Page) -> None:
    expect(page.get_by_role("status")).to_have_text("live")


def test_an_empty_cluster_is_a_sentence(chromium: Browser, cluster: LocalCluster) -> None:
    with opened_page(chromium, cluster.addresses[0]) as page:
        is_live(page)
        expect(page.get_by_text("There is no namespace yet.")).to_be_visible()
        for broker in cluster.broker_ids:
            expect(page.get_by_role("rowheader", name=broker)).to_be_visible()


def test_changes_arrive_without_a_reload(chromium: Browser, cluster: LocalCluster) -> None:
    """A namespace, a move, a pause whose reason is a script."""
    with opened_page(chromium, cluster.addresses[1]) as page:
        is_live(page)
        create(cluster, "acme/orders", 64)
        expect(page.get_by_role("link", name="acme/orders", exact=True)).to_be_visible()
        expect(page.get_by_text("64 bundles,")).to_be_visible()
        expect(page.get_by_role("img", name="acme/orders: 64 bundles")).to_be_visible()
        expect(page.get_by_role("img", name=re.compile(r"load \d.*mean")).first).to_be_visible()
        ask(cluster, "PUT", "/admin/v2/namespaces/acme/orders/0x00000000_0x04000000/unload")
        expect(page.get_by_text("transfer of")).to_be_visible()
        reason = "<script>document.title = 'owned'</script>"
        ask(cluster, "POST", "/admin/v2/controls/pause", {"reason": reason, "for_ms": 60_000})
        wrong = page.get_by_role("region", name="What is wrong now")
        expect(wrong.get_by_text(f"balancing is paused: {reason}")).to_be_visible()
        ask(cluster, "DELETE", "/admin/v2/controls/pause")
        expect(wrong.get_by_text(reason)).not_to_be_visible()
        assert "owned" != page.title()


def test_a_namespace_of_65536_bundles_is_explored_by_keyboard(
    chromium: Browser, cluster: LocalCluster
) -> None:
    """On a phone in the dark, down to single bundles, and back. No broker serves it."""
    ask(cluster, "PATCH", "/admin/v2/balancing", {"changes": {"tenants.bundles_max": 65_536}})
    create(cluster, LARGE, 65_536)
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with opened_page(chromium, f"{cluster.addresses[0]}/#/namespace/{LARGE}", **phone) as page:
        expect(page.get_by_text("0x00000000 to 0xffffffff: 65,536 bundles")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        strip = page.get_by_role("img", name=f"{LARGE} from 0x00000000")
        strip.focus()
        page.keyboard.press("End")
        expect(page.get_by_text("0xffc00000 to 0xffffffff")).to_be_visible()
        page.keyboard.press("Enter")
        expect(page.get_by_text("0xffc00000 to 0xffffffff: 64 bundles")).to_be_visible()
        expect(page.get_by_role("rowheader", name="0xffff0000_0xffffffff")).to_be_visible()
        page.get_by_role("button", name="Zoom out").press("Enter")
        expect(page.get_by_text("0xff000000 to 0xffffffff: 256 bundles")).to_be_visible()
        page.get_by_role("link", name="Equipoise").press("Enter")
        unserved = f"65536 bundles of {LARGE} have no owner: no broker that is up serves {LARGE}"
        expect(page.get_by_text(unserved)).to_be_visible()
        page.goto(f"{cluster.addresses[0]}/#/namespace/acme/none")
        expect(page.get_by_text("there is no namespace acme/none")).to_be_visible()


def test_a_dead_broker_is_named_and_a_broken_stream_too(
    chromium: Browser, cluster: LocalCluster
) -> None:
    """The page then shows the last state, names other brokers, and follows the broker again once
    it is back.
    """
    last = len(cluster.broker_ids) - 1
    with (
        opened_page(chromium, cluster.addresses[0]) as page,
        opened_page(chromium, cluster.addresses[last]) as orphan,
    ):
        is_live(page)
        is_live(orphan)
        cluster.kill(last)
        dead = cluster.broker_ids[last]
        expect(page.get_by_text(f"{dead} was declared dead")).to_be_visible()
        alert = orphan.get_by_role("alert")
        expect(alert).to_contain_text("Not live: the broker does not answer")
        expect(alert.get_by_role("link", name=cluster.broker_ids[0])).to_be_visible()
        expect(orphan.get_by_role("heading", name="Brokers")).to_be_visible()
        cluster.restart(last)
        is_live(orphan)
        expect(alert).not_to_be_visible()
        expect(page.get_by_text(f"{dead} was declared dead")).not_to_be_visible()
