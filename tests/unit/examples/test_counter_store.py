"""The counters' store: what is applied once, what is refused, and what a caller hears when the file fails."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from equipoise.errors import EquipoiseError, OperatorError
from equipoise.examples.counter_store import (
    CounterStore,
    Increment,
    RequestReused,
    StaleToken,
    Stored,
    StoreFailed,
)

KEY = "shop/orders/k"
DEADLINE_SECONDS = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CounterStore]:
    """A new store."""
    store = CounterStore(tmp_path / "counter.db")
    yield store
    store.close()


def increment(request: str, *, token: int = 5, key: str = KEY, broker: str = "a") -> Increment:
    """One increment."""
    return Increment(key=key, token=token, broker=broker, request=request)


def outcomes(store: CounterStore, *increments: Increment) -> list[Stored | BaseException]:
    """What comes of increments that are all asked for before any of them is made."""

    async def ask() -> list[Stored | BaseException]:
        asked: list[Awaitable[Stored]] = [store.increment(each) for each in increments]
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(ask())


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    """What another process sees in the file."""
    connection = sqlite3.connect(folder / "counter.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_values_count_up_by_key(store: CounterStore, tmp_path: Path) -> None:
    """Each key has its counter, and each write its row, in order."""
    made = outcomes(store, increment("r1"), increment("r2", broker="b"), increment("r3", key="shop/orders/l"))
    expected = [Stored(value=1, token=5, broker="a"), Stored(value=2, token=5, broker="b"), Stored(value=1, token=5, broker="a")]
    assert expected == made
    expected_rows = [(1, KEY, 1, 5, "a", "r1"), (2, KEY, 2, 5, "b", "r2"), (3, "shop/orders/l", 1, 5, "a", "r3")]
    assert expected_rows == rows(tmp_path, "SELECT position, key, value, token, broker, request FROM writes")


def test_a_request_is_applied_once(store: CounterStore, tmp_path: Path) -> None:
    """A request that comes again is answered with its row, by whomever and under whatever token it comes."""
    first = Stored(value=1, token=5, broker="a")
    assert [first, first] == outcomes(store, increment("r1"), increment("r1", token=9, broker="b"))
    assert [first] == outcomes(store, increment("r1", token=3))
    assert [(1,)] == rows(tmp_path, "SELECT count(*) FROM writes")
    assert [] == rows(tmp_path, "SELECT * FROM refusals")


def test_an_older_token_is_refused(store: CounterStore, tmp_path: Path) -> None:
    """Once a token was seen for a key, an older one writes nothing and is put on record; for other keys it is as good as ever."""
    made = outcomes(store, increment("r1", token=7), increment("r2", token=6, broker="b"), increment("r3", token=6, key="shop/orders/l"))
    assert isinstance(made[1], StaleToken)
    assert Stored(value=1, token=6, broker="a") == made[2]
    assert [(KEY, 6, 7, "b", "r2")] == rows(tmp_path, "SELECT key, token, highest, broker, request FROM refusals")
    assert [("r1",), ("r3",)] == rows(tmp_path, "SELECT request FROM writes ORDER BY position")


def test_a_refused_request_may_come_again_under_a_good_token(store: CounterStore) -> None:
    """A refusal leaves nothing behind that would keep the request from being applied."""
    outcomes(store, increment("r1", token=7), increment("r2", token=6))
    assert [Stored(value=2, token=8, broker="a")] == outcomes(store, increment("r2", token=8))


def test_a_request_id_belongs_to_one_key(store: CounterStore) -> None:
    """The same id for another key is the caller's mistake, and writes nothing."""
    made = outcomes(store, increment("r1"), increment("r1", key="shop/orders/l"), increment("r2", key="shop/orders/l"))
    assert isinstance(made[1], RequestReused)
    assert Stored(value=1, token=5, broker="a") == made[2]


async def test_brokers_share_the_file(store: CounterStore, tmp_path: Path) -> None:
    """Increments of two handles on one file, all at once, lose nothing."""
    other = CounterStore(tmp_path / "counter.db")
    mine = [store.increment(increment(f"a{number}")) for number in range(300)]
    theirs = [other.increment(increment(f"b{number}")) for number in range(300)]
    await asyncio.gather(*mine, *theirs)
    other.close()
    assert [(600, 600, 600)] == rows(tmp_path, "SELECT count(*), max(value), count(DISTINCT value) FROM writes")


def test_the_counters_outlive_the_handle(store: CounterStore, tmp_path: Path) -> None:
    """A store that is opened again counts on, and remembers the tokens that it has seen."""
    outcomes(store, increment("r1", token=7))
    again = CounterStore(tmp_path / "counter.db")
    made = outcomes(again, increment("r2", token=7), increment("r3", token=6))
    again.close()
    assert Stored(value=2, token=7, broker="a") == made[0]
    assert isinstance(made[1], StaleToken)


def test_a_new_file_is_made_by_several_brokers_at_once(tmp_path: Path) -> None:
    """A broker that opens the store while another one is at work on the new file waits for it."""
    path = tmp_path / "counter.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(CounterStore, path)
        time.sleep(0.1)  # Without waiting it fails at once, whenever that is.
        other.execute("COMMIT")
        other.close()
        opening.result(DEADLINE_SECONDS).close()
    assert [] == rows(tmp_path, "SELECT * FROM writes")


def test_a_file_that_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    """A folder, a missing folder and a file of another kind are refused in words that name them."""
    (tmp_path / "text.db").write_text("this is no database, however long one reads on in it")
    for path in (tmp_path, tmp_path / "missing" / "counter.db", tmp_path / "text.db"):
        with pytest.raises(OperatorError, match=str(path)):
            CounterStore(path)


def test_a_failure_of_the_file_reaches_every_caller(store: CounterStore, tmp_path: Path) -> None:
    """Where a transaction fails, all that wait for it hear so, nothing of it is stored, and the store goes on."""
    spoiler = sqlite3.connect(tmp_path / "counter.db", isolation_level=None)
    spoiler.execute("CREATE TRIGGER spoil BEFORE INSERT ON writes WHEN NEW.request = 'bad' BEGIN SELECT RAISE(ABORT, 'spoilt'); END")
    made = outcomes(store, *(increment(f"r{number}") for number in range(5)), increment("bad"))
    failed = [each for each in made if isinstance(each, EquipoiseError)]
    assert {StoreFailed} == {type(each) for each in failed}
    assert isinstance(made[-1], StoreFailed)
    assert [(6 - len(failed),)] == rows(tmp_path, "SELECT count(*) FROM writes")
    spoiler.execute("DROP TRIGGER spoil")
    spoiler.close()
    assert [Stored(value=7 - len(failed), token=5, broker="a")] == outcomes(store, increment("good"))


def test_a_text_that_no_database_takes_is_an_error(store: CounterStore) -> None:
    """A request that UTF-8 cannot express fails alone or with its batch, and the store goes on."""
    (failed,) = outcomes(store, increment("\ud800"))
    assert isinstance(failed, StoreFailed)
    assert [Stored(value=1, token=5, broker="a")] == outcomes(store, increment("good"))


async def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    """What was asked for before the close is done, and what comes after it is told so."""
    store = CounterStore(tmp_path / "counter.db")
    waiting = asyncio.ensure_future(store.increment(increment("r1")))
    await asyncio.sleep(0)  # It stands in the queue.
    store.close()
    assert Stored(value=1, token=5, broker="a") == await waiting
    with pytest.raises(StoreFailed, match="closed"):
        await store.increment(increment("r2"))


def test_a_caller_that_has_gone_takes_its_write_along(store: CounterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An increment whose caller gives up before the store has begun it is not made."""
    begun, go_on, begin = threading.Event(), threading.Event(), store._begin  # noqa: SLF001 - the moment between two batches

    def begin_slowly() -> None:
        begun.set()
        assert go_on.wait(DEADLINE_SECONDS)
        begin()

    async def ask() -> None:
        first = asyncio.ensure_future(store.increment(increment("r1")))
        assert await asyncio.to_thread(begun.wait, DEADLINE_SECONDS)
        second = asyncio.ensure_future(store.increment(increment("r2")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await asyncio.sleep(0)  # The cancellation goes on to the store's side of it.
        go_on.set()
        await first

    monkeypatch.setattr(store, "_begin", begin_slowly)
    asyncio.run(ask())
    assert [Stored(value=2, token=5, broker="a")] == outcomes(store, increment("r3"))
    assert [("r1",), ("r3",)] == rows(tmp_path, "SELECT request FROM writes ORDER BY position")
