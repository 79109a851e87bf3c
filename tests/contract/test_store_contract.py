"""What each store for `Keyed` does alike: it keeps the newest state of a key, by its token."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

import pytest

from equipoise import SqliteStore
from equipoise.errors import StaleToken
from tests.contract.store_adapters import EACH_STORE, Stored, StoreServer

pytestmark = pytest.mark.integration

TOKEN_MAX = 2**63 - 1


@pytest.fixture(scope="module", params=EACH_STORE)
def server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with EACH_STORE[request.param]() as running:
        yield running


@pytest.fixture
def namespace() -> str:
    return f"test/{uuid.uuid4().hex}"


@asynccontextmanager
async def opened(server: StoreServer) -> AsyncIterator[Stored]:
    store = server.open()
    if isinstance(store, SqliteStore):
        yield store
        return
    async with aclosing(store):
        yield store


@pytest.mark.parametrize(
    "key", ["lamp", "k" * 1_024, "a/b", "null \0", "\N{SLIGHTLY SMILING FACE}"]
)
async def test_a_state_comes_back_as_it_was(server: StoreServer, namespace: str, key: str) -> None:
    """Also through other connections. Keys that differ in any way are others."""
    state = bytes(range(256)) * 4_096
    async with opened(server) as store:
        assert await store.load(namespace, key) is None
        await store.save(namespace, key, state, token=1)
        await store.save(namespace, key.upper() + " ", b"", token=1)
    async with opened(server) as store:
        assert state == await store.load(namespace, key)
        assert await store.load(namespace, key.upper() + " ") == b""
        assert await store.load(f"{namespace}-2", key) is None


@pytest.mark.parametrize("token", [2, 10, 2**53 + 1, TOKEN_MAX])
async def test_a_former_owner_is_refused(server: StoreServer, namespace: str, token: int) -> None:
    """It changes nothing. Tokens are compared key by key, and in full."""
    async with opened(server) as old, opened(server) as new:
        await old.save(namespace, "lamp", b"old", token=token - 1)
        await new.save(namespace, "lamp", b"1", token=token)
        with pytest.raises(StaleToken, match=f"lamp was not saved under token {token - 1}"):
            await old.save(namespace, "lamp", b"late", token=token - 1)
        await new.save(namespace, "lamp", b"2", token=token)
        await old.save(namespace, "fan", b"old", token=token - 1)
        assert await new.load(namespace, "lamp") == b"2"
        assert await old.load(namespace, "fan") == b"old"


async def test_of_two_owners_at_once_the_newer_one_stays(
    server: StoreServer, namespace: str
) -> None:
    async def save(store: Stored, key: int, token: int) -> None:
        try:
            await store.save(namespace, str(key), b"%d" % token, token=token)
        except StaleToken:
            assert token < 9

    async with opened(server) as one, opened(server) as other:
        await asyncio.gather(
            *(
                save(store, key, token)
                for key in range(20)
                for store, token in zip(itertools.cycle([one, other]), range(10), strict=False)
            )
        )
        kept = {await one.load(namespace, str(key)) for key in range(20)}
    assert kept == {b"9"}


@pytest.mark.parametrize("server", ["postgres", "redis"], indirect=True)
async def test_a_save_that_arrives_after_the_next_one_is_refused(
    server: StoreServer, namespace: str
) -> None:
    """A connection that broke may have kept it. Its token is as good as that of the next one."""
    async with opened(server) as store:
        assert not isinstance(store, SqliteStore)
        vars(store)["_numbers"] = iter([8, 7])
        await store.save(namespace, "lamp", b"next", token=3)
        with pytest.raises(StaleToken):
            await store.save(namespace, "lamp", b"delayed", token=3)
        assert await store.load(namespace, "lamp") == b"next"


async def test_what_was_saved_outlives_its_server(server: StoreServer, namespace: str) -> None:
    """The store connects again by itself. The first questions may fail."""
    async with opened(server) as store:
        await store.save(namespace, "lamp", b"1", token=1)
        server.restart()
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(Exception):
                    assert await store.load(namespace, "lamp") == b"1"
                    break
        await store.save(namespace, "lamp", b"2", token=1)
        assert await store.load(namespace, "lamp") == b"2"
