"""The store of the counter example: what it applies once, what it refuses, and how it fails."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.errors import CallerError, OperatorError, PeerError, StaleToken
from equipoise.examples.counter_store import (
    CounterStore,
    Increment,
    Stored,
)

KEY = "shop/orders/k"
DEADLINE_SECONDS = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CounterStore]:
    """Return a new store."""
    with closing(CounterStore(tmp_path / "counter.db")) as made:
        yield made


def increment(request: str, *, token: int = 5, key: str = KEY, broker: str = "a") -> Increment:
    return Increment(key=key, token=token, broker=broker, request=request)


def outcomes(store: CounterStore, *increments: Increment) -> list[Stored | BaseException]:
    """Return the outcomes of increments that are queued together."""

    async def ask() -> list[Stored | BaseException]:
        asked: list[Awaitable[Stored]] = [store.increment(each) for each in increments]
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(ask())


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    """Return what another process reads in the file."""
    with closing(sqlite3.connect(folder / "counter.db")) as connection:
        return connection.execute(query).fetchall()


def test_values_count_up_by_key(store: CounterStore, tmp_path: Path) -> None:
    """Each write has a row, in order."""
    made = outcomes(
        store, increment("r1"), increment("r2", broker="b"), increment("r3", key="shop/orders/l")
    )
    expected = [
        Stored(value=1, token=5, broker="a"),
        Stored(value=2, token=5, broker="b"),
        Stored(value=1, token=5, broker="a"),
    ]
    assert expected == made
    expected_rows = [
        (1, KEY, 1, 5, "a", "r1"),
        (2, KEY, 2, 5, "b", "r2"),
        (3, "shop/orders/l", 1, 5, "a", "r3"),
    ]
    assert expected_rows == rows(
        tmp_path, "SELECT position, key, value, token, broker, request FROM writes"
    )


def test_a_request_is_applied_once(store: CounterStore, tmp_path: Path) -> None:
    """By whichever broker and under whatever token it is repeated."""
    first = Stored(value=1, token=5, broker="a")
    assert [first, first] == outcomes(store, increment("r1"), increment("r1", token=9, broker="b"))
    assert [first] == outcomes(store, increment("r1", token=3))
    assert [(1,)] == rows(tmp_path, "SELECT count(*) FROM writes")
    assert [] == rows(tmp_path, "SELECT * FROM refusals")


def test_an_older_token_is_refused(store: CounterStore, tmp_path: Path) -> None:
    """For its key only. The refusal is recorded."""
    made = outcomes(
        store,
        increment("r1", token=7),
        increment("r2", token=6, broker="b"),
        increment("r3", token=6, key="shop/orders/l"),
    )
    assert isinstance(made[1], StaleToken)
    assert Stored(value=1, token=6, broker="a") == made[2]
    assert [(KEY, 6, 7, "b", "r2")] == rows(
        tmp_path, "SELECT key, token, highest, broker, request FROM refusals"
    )
    assert [("r1",), ("r3",)] == rows(tmp_path, "SELECT request FROM writes ORDER BY position")


def test_a_request_id_belongs_to_one_key(store: CounterStore) -> None:
    made = outcomes(
        store,
        increment("r1"),
        increment("r1", key="shop/orders/l"),
        increment("r2", key="shop/orders/l"),
    )
    assert isinstance(made[1], CallerError)
    assert Stored(value=1, token=5, broker="a") == made[2]


async def test_brokers_share_the_file(store: CounterStore, tmp_path: Path) -> None:
    """Concurrent increments of two handles lose nothing."""
    other = CounterStore(tmp_path / "counter.db")
    mine = [store.increment(increment(f"a{number}")) for number in range(300)]
    theirs = [other.increment(increment(f"b{number}")) for number in range(300)]
    await asyncio.gather(*mine, *theirs)
    other.close()
    assert [(600, 600, 600)] == rows(
        tmp_path, "SELECT count(*), max(value), count(DISTINCT value) FROM writes"
    )


def test_a_file_that_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    """A folder, a missing folder, and a file of another kind."""
    (tmp_path / "text.db").write_text("this is no database, however long one reads on in it")
    for path in (tmp_path, tmp_path / "missing" / "counter.db", tmp_path / "text.db"):
        with pytest.raises(OperatorError, match=str(path)):
            CounterStore(path)


def test_a_failure_of_the_file_reaches_its_caller(store: CounterStore, tmp_path: Path) -> None:
    """Nothing of the failed transaction is stored, and the store goes on."""
    with closing(sqlite3.connect(tmp_path / "counter.db", isolation_level=None)) as spoiler:
        spoiler.execute(
            "CREATE TRIGGER spoil BEFORE INSERT ON writes WHEN NEW.request = 'bad' BEGIN SELECT"
            " RAISE(ABORT, 'spoilt'); END"
        )
    made, failed, good = outcomes(store, increment("r1"), increment("bad"), increment("r2"))
    assert isinstance(failed, PeerError)
    assert "spoilt; ask again with the same request id" in str(failed)
    assert [Stored(value=value, token=5, broker="a") for value in (1, 2)] == [made, good]


async def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    """It has written what was queued before."""
    store = CounterStore(tmp_path / "counter.db")
    waiting = asyncio.ensure_future(store.increment(increment("r1")))
    await asyncio.sleep(0)  # It stands in the queue.
    store.close()
    assert Stored(value=1, token=5, broker="a") == await waiting
    with pytest.raises(PeerError, match="closed"):
        await store.increment(increment("r2"))


async def test_a_cancelled_increment_is_not_made(store: CounterStore, tmp_path: Path) -> None:
    """If the store has not begun it."""
    go_on = threading.Event()
    store._thread.submit(go_on.wait, DEADLINE_SECONDS)  # noqa: SLF001 - it is at work
    cancelled = asyncio.ensure_future(store.increment(increment("r1")))
    await asyncio.sleep(0)  # It stands in the queue.
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    go_on.set()
    assert Stored(value=1, token=5, broker="a") == await store.increment(increment("r2"))
    assert [("r2",)] == rows(tmp_path, "SELECT request FROM writes")
