"""The page of a cluster in a real browser, in front of real brokers."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.brokers.operations.access import opened, until
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.channel.core.ranges import even_boundaries
from tests.page.browsers import opened_browser, opened_page
from tests.unit.security.signing import bearer, token
from tests.unit.security.who_may import RIGHTS, SUPER

pytestmark = pytest.mark.integration

PATIENCE_MS = 30_000
LARGE = "other/large"
OPERATOR = "olga"
FIRST = "0x00000000_0x04000000"

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with opened_browser() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers with rights, without a namespace."""
    settings = ClusterSettings(
        directory=tmp_path_factory.mktemp("page"),
        services=("acme/*=tests.page.loaded_service:Loaded",),
        settings={
            "balance_interval_ms": 1_000,
            **{name: value for name, value in RIGHTS.items() if isinstance(value, str)},
            "authentication": "true",
            "authorization": "true",
            "super_roles": SUPER,
        },
    )
    with LocalCluster(settings) as started:
        for role, right in (("viewer", "read"), (OPERATOR, "operate")):
            ask(started, "POST", f"/admin/v2/grants/{role}", right)
        yield started


def create(cluster: LocalCluster, namespace: str, bundles: int) -> None:
    """Create a namespace unless an earlier test has, and wait until its bundles are owned if a
    broker serves it. In a thread, because Playwright keeps the loop of this one.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_create, cluster, namespace, bundles).result()


def _create(cluster: LocalCluster, namespace: str, bundles: int) -> None:
    with opened(cluster.log_url, timeout_ms=PATIENCE_MS) as access:
        if namespace not in access.view.namespaces:
            intent = CreateNamespace(name=namespace, boundaries=even_boundaries(bundles))
            run(ChannelPort(access).propose(intent))
        until(
            access,
            lambda view: (
                not view.takers(namespace)
                or all(each.phase == "owned" for each in view.bundles_of(namespace))
                or None
            ),
            what="owned bundles",
        )


def ask(cluster: LocalCluster, method: str, path: str, body: object = None) -> None:
    request = urllib.request.Request(  # noqa: S310 - it is HTTP
        cluster.addresses[0] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **bearer(token(SUPER))},
    )
    urllib.request.urlopen(request).close()  # noqa: S310 - as above


def is_live(page: Page) -> None:
    expect(page.get_by_role("status")).to_have_text("live")


@contextmanager
def page_of(
    chromium: Browser, cluster: LocalCluster, path: str = "", *, broker: int = 0, **options: object
) -> Iterator[Page]:
    """The page as an operator sees it."""
    url = f"{cluster.addresses[broker]}/{path}"
    with opened_page(chromium, url, token=token(OPERATOR), **options) as page:
        yield page


def act(
    page: Page,
    name: str,
    *,
    says: str,
    done: str | None = None,
    to: str = "",
    what: str = "",
) -> None:
    """Press a button, read what will happen, agree, and read what has happened, or go on."""
    page.get_by_role("button", name=name, exact=True).click()
    dialog = page.get_by_role("dialog")
    if to:
        dialog.get_by_label("To").select_option(to)
    if what:
        dialog.get_by_label("What").select_option(what)
    expect(dialog.locator(".says")).to_contain_text(says)
    expect(dialog).to_contain_text(f"admin:{OPERATOR} asked for it")
    if dialog.get_by_label("Reason").count():
        dialog.get_by_label("Reason").fill("<b>work</b>")
    dialog.locator("button").first.click()
    if done is not None:
        expect(dialog.get_by_role("status")).to_contain_text(done)
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).not_to_be_visible()


def apply_a_plan(page: Page) -> None:
    """Once reports show that a broker has less than others."""
    page.get_by_role("link", name="Plan").click()
    apply = page.get_by_role("button", name="Apply exactly this plan")
    nothing = page.get_by_text("Nothing would move")
    expect(apply.or_(nothing)).to_be_visible()
    while nothing.count():
        page.get_by_role("button", name="Plan again").click()
        expect(apply.or_(nothing)).to_be_visible()
    expect(page.locator(".says")).to_contain_text("unless the cluster has changed")
    apply.click()
    expect(page.get_by_role("status").nth(1)).to_have_text("The plan is done.")
    moves = page.locator("ol.moves li").count()
    assert 0 < moves == page.get_by_role("img", name="done", exact=True).count()


def test_a_token_is_asked_for_and_a_viewer_cannot_act(
    chromium: Browser, cluster: LocalCluster
) -> None:
    """Of an empty cluster."""
    with opened_page(chromium, cluster.addresses[0]) as page:
        for given, answer in (("nonsense", "not authenticated"), (token("x", exp=9), "expired")):
            page.get_by_label("Token").fill(given)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_text(answer)).to_be_visible()
        page.get_by_label("Token").fill(token("viewer"))
        page.get_by_role("button", name="Sign in").click()
        is_live(page)
        expect(page.get_by_text("There is no namespace yet.")).to_be_visible()
        for broker in cluster.broker_ids:
            expect(page.get_by_role("rowheader", name=broker)).to_be_visible()
        expect(page.get_by_role("button")).to_have_text(["Look back"])


def test_changes_arrive_without_a_reload(chromium: Browser, cluster: LocalCluster) -> None:
    """A namespace, a move, a pause whose reason is a script."""
    with page_of(chromium, cluster, broker=1) as page:
        is_live(page)
        create(cluster, "else/none", 2)
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


def test_an_operator_does_everything_by_dialog(chromium: Browser, cluster: LocalCluster) -> None:
    """Each dialog says what will happen, and who asks. A refusal is the broker's sentence."""
    create(cluster, "acme/orders", 64)
    create(cluster, "acme/slow", 2)
    bundle, other = f"acme/orders/{FIRST}", cluster.broker_ids[1]
    with page_of(chromium, cluster, f"#/bundle/{bundle}") as page:
        act(page, f"Transfer {bundle}", says="hands it over to", done=f"{bundle} is at")
        act(page, f"Unload {bundle}", says="gives it away", done=f"{bundle} is at")
        act(page, f"Split {bundle}", says="at 0x02000000", done="is split")
        page.get_by_role("link", name="acme/orders/0x00000000_0x02000000").click()
        half = "acme/orders/0x00000000_0x02000000"
        act(page, f"Merge {half}", says="begins at 0x02000000", done="are one bundle now")
        page.go_back()
        story = page.get_by_role("list", name="History")
        expect(story).to_contain_text(re.compile(f"merge.*split.*by admin:{OPERATOR} via "))
        expect(page.get_by_role("img", name="Load over the last hour")).to_be_visible()
        pin = {"namespace": "acme/orders", "brokers": list(cluster.broker_ids[:1])}
        ask(cluster, "POST", "/admin/v2/policies/pin/here", pin)
        expect(page.get_by_text(f"Owner {cluster.broker_ids[0]}")).to_be_visible()
        refusal = f"{other} may not have it: pin/here keeps this bundle at"
        act(page, f"Transfer {bundle}", to=other, says=f"over to {other}", done=refusal)
        ask(cluster, "DELETE", "/admin/v2/policies/pin/here")

        slow = "acme/slow/0x00000000_0x80000000"
        page.goto(f"{cluster.addresses[0]}/#/bundle/{slow}")
        act(page, f"Transfer {slow}", says="hands it over to")
        act(page, f"Cancel {slow}", says="keeps it with its token", done="stays where it is")
        page.get_by_role("link", name="acme/slow").first.click()
        act(page, "Freeze acme/slow", says="leaves the bundles of acme/slow", done="is frozen")
        expect(page.get_by_text("Frozen: <b>work</b>")).to_be_visible()
        act(page, "Unfreeze acme/slow", says="may move", done="not frozen")
        ask(cluster, "DELETE", "/admin/v2/namespaces/acme/slow")

        page.get_by_role("link", name="Equipoise").click()
        act(page, "Turn balancing off", says="nothing until then", done="Balancing is off")
        rack = {"brokers": [other]}
        ask(cluster, "POST", "/admin/v2/clusters/equipoise/failureDomains/rack", rack)
        of_rack = "The maintenance of domain rack has"
        act(
            page,
            f"Drain {other}",
            what="domain",
            says="go to 2 other brokers",
            done=f"{of_rack} begun",
        )
        row = page.get_by_role("row", name=re.compile(rf"{other}.*maintenance.*work"))
        expect(row.get_by_role("cell").nth(1)).to_have_text("0")
        act(page, f"End maintenance {other}", says="domain rack may get", done=f"{of_rack} ended")
        apply_a_plan(page)
        page.get_by_role("link", name="Cluster").click()
        act(page, "Turn balancing on", says="The pause ends (<b>work</b>)", done="Balancing is on")
        asked = page.get_by_role("region", name="Asked for by people")
        expect(asked.get_by_text(f"by admin:{OPERATOR} via").first).to_be_visible()
        expect(asked.get_by_text(re.compile(r"^until: .* \d{4}.* -> unset$")).first).to_be_visible()


def test_a_dead_broker_is_named_and_a_broken_stream_too(
    chromium: Browser, cluster: LocalCluster
) -> None:
    """The page then shows the last state, names other brokers, and follows the broker again once
    it is back.
    """
    create(cluster, "else/none", 2)
    last = len(cluster.broker_ids) - 1
    with (
        page_of(chromium, cluster) as page,
        page_of(chromium, cluster, broker=last) as orphan,
    ):
        is_live(page)
        is_live(orphan)
        unserved = "2 bundles of else/none have no owner: no broker that is up serves else/none"
        expect(page.get_by_text(unserved)).to_be_visible()
        cluster.kill(last)
        dead = cluster.broker_ids[last]
        expect(page.get_by_text(f"{dead} was declared dead")).to_be_visible()
        alert = orphan.get_by_role("alert")
        expect(alert).to_contain_text("Not live: the broker does not answer")
        expect(alert.get_by_role("link")).to_have_text(sorted(cluster.broker_ids[:last]))
        expect(orphan.get_by_role("heading", name="What was wrong")).to_be_visible()
        expect(orphan.get_by_role("button")).to_have_count(0)
        expect(orphan.get_by_role("heading", name="Brokers")).to_be_visible()
        cluster.restart(last)
        is_live(orphan)
        expect(alert).not_to_be_visible()
        expect(page.get_by_text(f"{dead} was declared dead")).not_to_be_visible()


def test_the_page_shows_a_past_moment_in_which_nobody_can_act(
    chromium: Browser, cluster: LocalCluster
) -> None:
    """By keyboard, in each view, also one that the log does not have. Then it is live again."""
    create(cluster, "acme/orders", 64)
    with page_of(chromium, cluster) as page:
        is_live(page)
        link = page.get_by_role("link", name="acme/orders", exact=True)
        expect(link).to_be_visible()
        expect(page.get_by_role("button", name="Turn balancing off")).to_be_visible()
        page.get_by_role("button", name="Look back").click()
        expect(page.get_by_role("status")).to_have_text("the past")
        region = page.get_by_role("region", name="The past")
        expect(region).to_contain_text("Nothing can be changed in the past.")
        expect(page.get_by_role("button")).to_have_count(1)
        expect(page.get_by_role("region", name="What was wrong")).to_be_visible()
        page.goto(f"{cluster.addresses[0]}/#/bundle/acme/orders/{FIRST}")
        expect(page.get_by_text("Go back to live to see its history")).to_be_visible()
        page.get_by_role("link", name="Plan").click()
        expect(page.get_by_text("A plan is made for now.")).to_be_visible()
        page.get_by_role("link", name="Cluster").click()
        slider = page.get_by_role("slider", name="Offset")
        slider.press("Home")
        expect(region).to_contain_text("offset 1")
        expect(page.get_by_text("There is no namespace yet.")).to_be_visible()
        expect(page.get_by_role("rowheader", name=cluster.broker_ids[0])).to_have_count(0)
        page.route("**/v1/overview?at=*", lambda route: route.continue_(url=beyond(route)))
        slider.press("ArrowRight")
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("has no record at offset 999999999")
        page.unroute("**/v1/overview?at=*")
        page.get_by_role("button", name="Back to live").click()
        is_live(page)
        expect(link).to_be_visible()
        expect(alert).not_to_be_visible()


def beyond(route: Route) -> str:
    """The same request for a moment that the log does not have."""
    return re.sub("at=[0-9]+", "at=999999999", route.request.url)


def test_a_log_that_was_replaced_is_named(chromium: Browser, tmp_path: Path) -> None:
    """Live, and while the page shows a past moment."""
    first = ClusterSettings(directory=tmp_path / "first", brokers=1)
    with ExitStack() as stack:
        with LocalCluster(first) as cluster:
            url = cluster.addresses[0]
            create(cluster, "acme/orders", 2)
            pages = [stack.enter_context(opened_page(chromium, url)) for _ in range(2)]
            for page in pages:
                is_live(page)
            pages[1].get_by_role("button", name="Look back").click()
            expect(pages[1].get_by_role("status")).to_have_text("the past")
        port = int(url.rpartition(":")[2])
        with LocalCluster(replace(first, directory=tmp_path / "second", http_port=port)):
            pages[1].get_by_role("slider").press("Home")
            for page in pages:
                expect(page.get_by_role("alert")).to_contain_text("The log was replaced: offset ")


def test_a_namespace_of_65536_bundles_is_explored_by_keyboard(
    chromium: Browser, cluster: LocalCluster
) -> None:
    """On a phone in the dark, down to single bundles, and back. No broker serves it."""
    ask(cluster, "PATCH", "/admin/v2/balancing", {"changes": {"tenants.bundles_max": 65_536}})
    create(cluster, LARGE, 65_536)
    phone: Any = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with page_of(chromium, cluster, f"#/namespace/{LARGE}", **phone) as page:
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
        expect(page.get_by_role("heading", name="Brokers")).to_be_visible()
        for name, answer in (("none", "there is no namespace acme/none"), ("<b>", "'acme/<b>' is")):
            page.goto(f"{cluster.addresses[0]}/#/namespace/acme/{name}")
            expect(page.get_by_text(answer)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
