"""One object for a program: its settings, its services, and what it does to a web program."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import FastAPIError

from equipoise import Equipoise, Keyed, Peer, Shard, Tasks
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.embedding.by_key import ending
from equipoise.brokers.runtime.embedding.installed import BUNDLE_LINES, show_log_lines
from equipoise.brokers.sharded.program import Settings
from equipoise.errors import CallerError, InvalidConfig

NAMESPACE = "web/pages"
ADDRESS = "http://127.0.0.1:8000"


@dataclass
class Page:
    visits: int = 0


async def crawl(shard: Shard) -> None:
    """Do nothing."""


def print_shard(shard: Shard) -> None:
    """Not a coroutine function."""


def pages() -> Keyed[Page]:
    return Keyed(NAMESPACE, Page, shards=2)


def program(*services: Any, **settings: Any) -> Equipoise:  # noqa: ANN401
    settings = {"check_address": False, **settings}  # The tests have no server.
    return Equipoise(f"memory:{uuid.uuid4()}", *services, cluster="test", **settings)


def test_type_checkers_know_all_settings_of_a_broker() -> None:
    of_equipoise = {"log_url", "cluster"}
    assert WorkerConfig.model_fields.keys() - of_equipoise == get_type_hints(Settings).keys()


@pytest.mark.parametrize(
    ("make", "error", "problem"),
    [
        (
            lambda: program(pages(), leese_ms=3_000),
            InvalidConfig,
            "leese_ms: there is no such setting; did you mean lease_ms?",
        ),
        (lambda: program(pages(), lease_ms="long"), InvalidConfig, "lease_ms: it must be"),
        (
            lambda: Equipoise("memory:a", cluster=""),
            InvalidConfig,
            "cluster: it must not be empty",
        ),
        (
            lambda: Equipoise("memory:a", cluster="my shop\n"),
            InvalidConfig,
            r"cluster: 'my shop\\n' is not a cluster name: expected 1 to 255 ASCII letters",
        ),
        (
            lambda: program(pages(), Tasks(NAMESPACE, crawl)),
            CallerError,
            "two services for web/pages: Keyed and Tasks; give each its own namespace",
        ),
        (
            lambda: program(pages(), address="http://host:8000/app"),
            CallerError,
            "'http://host:8000/app' is not the address of a program: expected http://HOST:PORT",
        ),
        (
            lambda: program(pages(), address="http://user:secret@host:8000"),
            CallerError,
            "is not the address of a program: .* without a user or a path",
        ),
        (
            lambda: program(Keyed),
            CallerError,
            "Keyed'> is no service: give Equipoise a Keyed, a Tasks, or a mapping",
        ),
        (
            lambda: pages().route(crawl),  # type: ignore[arg-type]
            CallerError,
            'the key of web/pages has no name: write @KEYED.route\\("PARAMETER"\\)',
        ),
        (
            lambda: program(pages(), address="host:8000"),
            CallerError,
            "'host:8000' is not the address of a program",
        ),
        (
            lambda: Tasks("acme/crawler", print_shard),  # type: ignore[arg-type]
            CallerError,
            "print_shard cannot be the task of acme/crawler: write it as `async def",
        ),
    ],
)
def test_mistakes_are_named_at_once(
    make: Callable[[], object], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem.replace("?", r"\?")):
        make()


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ANN401
    """Start and end a program as a server does, and yield a client of it."""
    to_app, from_app = asyncio.Queue[dict[str, str]](), asyncio.Queue[dict[str, str]]()
    living = asyncio.create_task(app({"type": "lifespan"}, to_app.get, from_app.put))
    try:
        await to_app.put({"type": "lifespan.startup"})
        started = await from_app.get()
        if started["type"] == "lifespan.startup.failed":
            await living
        # As behind a proxy that takes a prefix away.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, root_path="/behind")
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            yield client
        await to_app.put({"type": "lifespan.shutdown"})
        assert {"type": "lifespan.shutdown.complete"} == await from_app.get()
        await living
    finally:
        living.cancel()


async def test_a_program_whose_endpoint_gets_no_object_does_not_start() -> None:
    """Its decorators are in the wrong order, its `Keyed` is not given to `Equipoise`, or its path
    has no key.
    """

    async def visit(name: str, page: Page) -> int:
        return page.visits

    def routed(app: FastAPI, router: APIRouter, keyed: Keyed[Page]) -> None:
        router.post("/{name}")(keyed.route("name")(visit))

    def above(app: FastAPI, router: APIRouter, keyed: Keyed[Page]) -> None:
        keyed.route("name")(app.post("/{name}")(visit))

    def misspelt(app: FastAPI, router: APIRouter, keyed: Keyed[Page]) -> None:
        router.post("/{nam}")(keyed.route("name")(visit))

    for write, is_given, problem in (
        (above, True, r"visit gets no object of web/pages: `route` stands above the decorator"),
        (routed, False, r"visit cannot be called: the objects of web/pages are not served"),
        (
            misspelt,
            True,
            r"visit gets no key of web/pages: its path '/visits/{nam}' has no {name}",
        ),
    ):
        app, router, keyed = FastAPI(), APIRouter(), pages()
        with contextlib.suppress(FastAPIError):
            write(app, router, keyed)
        app.include_router(router, prefix="/visits")
        program(*[keyed] if is_given else [Tasks("a/b", crawl)], address=ADDRESS).install(app)
        with pytest.raises(CallerError, match=problem):
            async with running(app):
                """It does not start."""


async def without_object(name: str) -> str:
    return name


def not_async(name: str, page: Page) -> int:
    return page.visits


async def without_key(page: Page) -> int:
    return page.visits


async def object_first(page: Page, name: str) -> int:
    return page.visits


@pytest.mark.parametrize("endpoint", [without_object, without_key, not_async, object_first])
def test_an_endpoint_that_cannot_be_routed_is_named(endpoint: Callable[..., Any]) -> None:
    with pytest.raises(CallerError, match=r"write it as `async def \w+\(name: str, state: Page\)`"):
        pages().route("name")(endpoint)


async def test_an_installed_program_lives_with_its_worker() -> None:
    """It has the namespaces that it names. What an endpoint changes is kept, unless it raises."""
    app, router, keyed = FastAPI(), APIRouter(), pages()

    @router.post("/{much}")
    @keyed.route("name")
    async def visit(name: Annotated[str, "the page"], page: Page, much: int) -> int:
        page.visits += much
        if much > 9:
            raise ValueError(much)
        return page.visits

    @router.get("")
    @keyed.route("name")
    async def show(name: str, page: Page) -> int:
        return page.visits

    app.include_router(router, prefix="/visits/{name}")
    program(keyed, Tasks("acme/crawler", crawl, shards=1), address=ADDRESS).install(app)
    async with running(app) as client:
        for path, answer in (
            ("home/3", 3),
            ("home/2", 5),
            ("home/10", None),
            ("home/1", 6),
            ("about/1", 1),
        ):
            visited = await client.post(f"/visits/{path}")
            assert answer == (visited.json() if visited.is_success else None)
        assert (await client.get("/visits/home")).json() == 6
        assert (await client.get("/equipoise/ready")).is_success
        assert ["web/pages"] == (await client.get("/equipoise/admin/v2/namespaces/web")).json()
        for key in ("k" * 10_000, "%FF%FE"):
            assert (await client.post(f"/visits/{key}/1")).status_code == 400
        assert (await client.post("/visits//1")).status_code == 404


@pytest.mark.parametrize("forward", [False, True])
async def test_a_program_takes_its_address_from_the_environment_when_it_starts(
    monkeypatch: pytest.MonkeyPatch, forward: bool
) -> None:
    """So its module can be imported without one. An address that is given counts more."""

    def wrapped(**settings: Any) -> Any:  # noqa: ANN401
        paths = {"/visits/{key}": NAMESPACE}
        return program(pages(), **settings).wrap(FastAPI(), keys=paths, forward=forward)

    async def addresses(app: Any) -> Any:  # noqa: ANN401
        async with running(app) as client:
            (entry,) = (await client.get("/equipoise/v1/brokers")).json()
            return entry["addresses"]

    for address, problem in (
        ("", "has none; set EQUIPOISE_ADDRESS=http://HOST:PORT, or give Equipoise address="),
        ("host:8000", "EQUIPOISE_ADDRESS='host:8000' is not the address of a program"),
        ("http://host:8000", "anyone who reaches http://host:8000/equipoise could drain"),
    ):
        monkeypatch.setenv("EQUIPOISE_ADDRESS", address)
        with pytest.raises(CallerError, match=problem):
            await addresses(wrapped())
    monkeypatch.setenv("EQUIPOISE_ADDRESS", "http://127.0.0.1:1")
    for settings, expected in (({}, "http://127.0.0.1:1"), ({"address": ADDRESS}, ADDRESS)):
        found = await addresses(wrapped(**settings))
        assert found == {"http": expected, "peer": f"{expected}/equipoise"}


async def test_a_program_that_is_not_installed_listens_on_a_port_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever address the environment names: nobody serves it."""
    monkeypatch.setenv("EQUIPOISE_ADDRESS", ADDRESS)
    log = f"memory:{uuid.uuid4()}"
    async with (
        Equipoise(log, pages(), cluster="test") as one,
        Equipoise(log, pages(), cluster="test") as other,
    ):
        peer = await other.route(NAMESPACE, "home")
        assert isinstance(peer, Peer)
        async with httpx.AsyncClient() as client:
            ready = (await client.get(f"{peer.http_url}/ready")).json()
        assert ready["broker"] == one.broker_id


async def test_a_wrapped_app_of_any_framework_is_installed() -> None:
    """Here it is a bare ASGI app, which reads the object itself."""
    keyed = pages()

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        if scope["type"] == "lifespan":
            raise ValueError("this framework has no lifespan")
        async with keyed.at(scope["path"].rpartition("/")[2]) as page:
            page.visits += 1
            body = json.dumps(page.visits).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    wrapped = program(keyed, address=ADDRESS).wrap(app, keys={"/visits/{key}": NAMESPACE})
    async with running(wrapped) as client:
        assert [1, 2] == [(await client.post("/visits/home")).json() for _ in range(2)]


async def test_a_key_of_a_namespace_that_nobody_gave_names_the_remedy() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        raise ValueError("not called")

    given = Keyed("web/others", Page, shards=1)
    wrapped = program(given, address=ADDRESS).wrap(app, keys={"/visits/{key}": NAMESPACE})
    async with running(wrapped) as client:
        answer = await client.post("/visits/home")
        assert (answer.status_code, "give that to Equipoise" in answer.text) == (404, True)


async def test_a_store_that_fails_is_answered_503_with_the_reason() -> None:
    class BrokenStore:
        async def load(self, namespace: str, key: str) -> bytes | None:
            if key == "broken":
                raise OSError("disk is on fire")
            return None

        async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
            """Keep nothing."""

    app, keyed = FastAPI(), Keyed(NAMESPACE, Page, shards=1, store=BrokenStore())

    @app.post("/visits/{name}")
    @keyed.route("name")
    async def visit(name: str, page: Page) -> int:
        page.visits += 1
        return page.visits

    program(keyed, address=ADDRESS).install(app)
    async with running(app) as client:
        broken = await client.post("/visits/broken")
        assert (broken.status_code, "disk is on fire" in broken.text) == (503, True)
        assert broken.headers["x-equipoise-outcome"] == "not-started"
        assert (await client.post("/visits/home")).json() == 1


def test_a_program_without_logging_shows_a_handful_of_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not those about each bundle."""
    for name in ("equipoise", BUNDLE_LINES):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
    logger = logging.getLogger("equipoise")
    before = [*logger.handlers]
    try:
        show_log_lines()
        assert logging.getLogger("equipoise.brokers.runtime.worker").getEffectiveLevel() == 20
        assert logging.getLogger(BUNDLE_LINES).getEffectiveLevel() == 30
    finally:
        logger.handlers = before
        for each in (logger, logging.getLogger(BUNDLE_LINES)):
            each.setLevel(logging.NOTSET)  # Forget what was cached.


async def test_an_answer_of_a_program_that_drains_ends_its_connection_once() -> None:
    sent = list[dict[str, Any]]()

    async def send(message: Any) -> None:  # noqa: ANN401
        sent.append(message)

    await ending(ending(send))({"type": "http.response.start", "status": 200, "headers": []})
    assert [(b"connection", b"close")] == sent[0]["headers"]
