"""A web page that a browser shows, against a broker on loopback of the same machine."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from equipoise.brokers.http.answers import problem_answer
from equipoise.channel.core.records import NamespaceRecord, Renewed
from tests.page.browsers import browser
from tests.unit.http.cluster import cluster

pytestmark = pytest.mark.integration

NAME = "evil.example"
ORDER = "/admin/v2/brokers/drain"

# A request as a script sends it, with no preflight; the same under a name of the attacker that now
# stands for loopback; and a form.
PAGE = """<!doctype html><title>a page</title><iframe name="sink"></iframe>
<form method="post" target="sink" action="http://127.0.0.1:{port}{order}?by=form"><input name="a" value="b"></form>
<script>
  const order = (url) => fetch(url, {{mode: "no-cors", method: "POST", headers: {{"Content-Type": "text/plain"}}, body: "now"}})
    .catch(() => null);
  const sent = new Promise((done) => document.querySelector("iframe").addEventListener("load", done));
  document.forms[0].submit();
  Promise.all([order("http://127.0.0.1:{port}{order}?by=script"), order("http://{name}:{port}{order}?by=name"), sent])
    .then(() => document.body.append("all was sent"));
</script>
"""  # noqa: E501


@asynccontextmanager
async def page(port: int) -> AsyncIterator[str]:
    """A page of another origin that gives orders to the broker at `port`; its URL."""

    async def show(_request: web.Request) -> web.Response:
        return web.Response(
            text=PAGE.format(port=port, order=ORDER, name=NAME), content_type="text/html"
        )

    app = web.Application()
    app.add_routes([web.get("/", show)])
    runner = web.AppRunner(app)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await web.SockSite(runner, listening).start()
        yield f"http://{NAME}:{listening.getsockname()[1]}/"
        await runner.cleanup()


async def shown(url: str, folder: Path) -> str:
    """What the browser shows once the page has sent all it wants."""
    flags = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--virtual-time-budget=20000",
        "--dump-dom",
    )
    own = (f"--user-data-dir={folder}", f"--host-resolver-rules=MAP {NAME} 127.0.0.1")
    process = await asyncio.create_subprocess_exec(
        browser(),
        *flags,
        *own,
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return told.decode()


async def test_a_foreign_page_cannot_drain_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests by script, by a form, and under a rebound name leave no record on the log."""
    browser()
    refused = dict[str, int]()

    def noted(request: web.BaseRequest, status: int, reason: str, code: str) -> web.Response:
        refused[request.query.get("by", "")] = status
        return problem_answer(request, status, reason, code)

    monkeypatch.setattr("equipoise.brokers.http.guard.problem_answer", noted)
    async with cluster(tmp_path, balance=False) as brokers:
        (broker,) = brokers.brokers
        folded = list[object]()
        broker.worker.listen(lambda told: folded.append(told.record))
        async with page(broker.worker.config.http_port) as url:
            assert "all was sent" in await shown(url, tmp_path / "browser")
        assert {"script": 403, "name": 421, "form": 403} == refused
        # A drain would be decided on at once, and stand on the log before the next record of this
        # broker.
        assert 204 == (await broker.put("/admin/v2/namespaces/acme/after")).status
        first = next(record for record in folded if not isinstance(record, Renewed))
        assert isinstance(first, NamespaceRecord)
