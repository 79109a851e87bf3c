"""Stores for `Keyed` that refuse the late write of a former owner by its fencing token.

A save whose connection broke may still reach a server, later than the next save of the same owner.
So stores on servers also number their saves, and refuse the one that comes too late.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from equipoise.brokers.sharded.saving import StaleToken
from equipoise.channel.core.errors import missing_extra

_SQLITE_TABLE: Final = """
CREATE TABLE IF NOT EXISTS states (
    namespace TEXT, key TEXT, token INTEGER NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (namespace, key)) WITHOUT ROWID"""

_SQLITE_SAVE: Final = """
INSERT INTO states (namespace, key, token, state) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET token = excluded.token, state = excluded.state
    WHERE token <= excluded.token"""

# Keys are bytes: no text of PostgreSQL holds a zero, and no collation takes two keys for one.
_POSTGRES_TABLE: Final = """
CREATE TABLE equipoise_states (
    namespace text, key bytea, token bigint NOT NULL, number bigint NOT NULL, state bytea NOT NULL,
    PRIMARY KEY (namespace, key))"""

_POSTGRES_SAVE: Final = """
INSERT INTO equipoise_states AS kept (namespace, key, token, number, state)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (namespace, key) DO UPDATE
    SET token = excluded.token, number = excluded.number, state = excluded.state
    WHERE (kept.token, kept.number) <= (excluded.token, excluded.number)"""

_POSTGRES_LOAD: Final = "SELECT state FROM equipoise_states WHERE namespace = $1 AND key = $2"

# Any number, the same in all programs: they take turns to make the table.
_POSTGRES_LOCK: Final = 0x_E901_5015E

# Token and number are text of one width: a number of Lua has 53 bits.
_REDIS_SAVE: Final = """
local kept = redis.call('HGET', KEYS[1], 'token')
if kept and kept > ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'state', ARGV[2])
return 1"""

_BUSY_S: Final = 5.0
"""How long a store may take to answer."""

CONNECTIONS_MAX: Final = 10
"""Connections of one process to a server."""


class SqliteStore:
    """A store in an SQLite file, which all processes of one machine may use. A state is on the disk
    when `save` returns.
    """

    def __init__(self, path: Path | str) -> None:
        """The file is made at the first use, in a folder that exists."""
        self._path = path
        # SQLite blocks its thread while it waits for the disk, or for another process.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise-store")

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path}>"

    async def load(self, namespace: str, key: str) -> bytes | None:
        """See `Store.load`. Raises `sqlite3.Error`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._load, namespace, key
        )

    async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
        """See `Store.save`. Raises `StaleToken` and `sqlite3.Error`."""
        is_saved = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._save, namespace, key, state, token
        )
        if not is_saved:
            raise StaleToken(key=f"{namespace}/{key}", token=token)

    def _load(self, namespace: str, key: str) -> bytes | None:
        found = self._connection.execute(
            "SELECT state FROM states WHERE namespace = ? AND key = ?", (namespace, key)
        ).fetchone()
        return None if found is None else bytes(found[0])

    def _save(self, namespace: str, key: str, state: bytes, token: int) -> bool:
        return bool(self._connection.execute(_SQLITE_SAVE, (namespace, key, token, state)).rowcount)

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(_SQLITE_TABLE)
        return connection


class PostgresStore:
    """A store in a table `equipoise_states` of PostgreSQL, which is made at the first use. It needs
    the extra `postgres`.

    It connects at the first use, on the event loop of that.
    """

    def __init__(self, url: str) -> None:
        """`url`: `postgresql://USER@HOST/DATABASE`, with any option of libpq.

        Raises `CallerError` without the extra.
        """
        try:
            import asyncpg
        except ImportError as error:
            raise missing_extra(what="PostgresStore", extra="postgres") from error
        self._url = url
        self._make_pool = asyncpg.create_pool
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count(time.time_ns())

    def __repr__(self) -> str:
        return f"<PostgresStore {_without_user(self._url)}>"

    async def load(self, namespace: str, key: str) -> bytes | None:
        """See `Store.load`. Raises the errors of asyncpg."""
        pool = await self._opened()
        found: bytes | None = await pool.fetchval(_POSTGRES_LOAD, namespace, key.encode())
        return found

    async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
        """See `Store.save`. Raises `StaleToken` and the errors of asyncpg."""
        number = next(self._numbers)
        pool = await self._opened()
        done = await pool.execute(_POSTGRES_SAVE, namespace, key.encode(), token, number, state)
        if done == "INSERT 0 0":
            raise StaleToken(key=f"{namespace}/{key}", token=token)

    async def aclose(self) -> None:
        """Close the connections. The next use opens them again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _opened(self) -> Any:  # noqa: ANN401 - asyncpg is untyped
        async with self._opening:
            if self._pool is None:
                self._pool = await self._open()
            return self._pool

    async def _open(self) -> Any:  # noqa: ANN401 - as above
        pool = self._make_pool(
            self._url,
            min_size=0,
            max_size=CONNECTIONS_MAX,
            timeout=_BUSY_S,
            command_timeout=_BUSY_S,
        )
        try:
            async with (await pool).acquire() as connection, connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({_POSTGRES_LOCK})")
                # Whoever may only read and write finds the table made.
                if await connection.fetchval("SELECT to_regclass('equipoise_states')") is None:
                    await connection.execute(_POSTGRES_TABLE)
        except BaseException:
            pool.terminate()
            raise
        return pool


class RedisStore:
    """A store in Redis, under the keys `equipoise:NAMESPACE/KEY`. It needs the extra `redis`.

    It keeps what Redis keeps. Set `appendonly yes` and `appendfsync always` for states that must
    outlive the server, and `maxmemory-policy noeviction`. What a failover of Redis loses is lost.

    It connects at the first use, on the event loop of that.
    """

    def __init__(self, url: str) -> None:
        """`url`: `redis://HOST:PORT/0`, or `rediss://` for TLS.

        Raises `CallerError` without the extra.
        """
        try:
            from redis.asyncio import BlockingConnectionPool, Redis
        except ImportError as error:
            raise missing_extra(what="RedisStore", extra="redis") from error
        self._url = url
        self._redis = Redis.from_pool(
            BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS_MAX,
                timeout=_BUSY_S,
                socket_timeout=_BUSY_S,
                socket_connect_timeout=_BUSY_S,
            )
        )
        self._save = self._redis.register_script(_REDIS_SAVE)
        self._numbers = itertools.count(time.time_ns())

    def __repr__(self) -> str:
        return f"<RedisStore {_without_user(self._url)}>"

    async def load(self, namespace: str, key: str) -> bytes | None:
        """See `Store.load`. Raises `redis.RedisError`."""
        found = await self._redis.hget(_redis_key(namespace, key), "state")
        assert not isinstance(found, str), "this client decodes nothing"
        return found

    async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
        """See `Store.save`. Raises `StaleToken` and `redis.RedisError`."""
        place = f"{token:019}.{next(self._numbers):019}"
        if not await self._save(keys=[_redis_key(namespace, key)], args=[place, state]):
            raise StaleToken(key=f"{namespace}/{key}", token=token)

    async def aclose(self) -> None:
        """Close the connections. The next use opens them again."""
        await self._redis.aclose()


def _redis_key(namespace: str, key: str) -> str:
    return f"equipoise:{namespace}/{key}"


def _without_user(url: str) -> str:
    return re.sub("//.*@", "//", url, flags=re.DOTALL)
