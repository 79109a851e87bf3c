"""Keep what was read of a Pulsar cluster in one SQLite file, which `why` and the Spark jobs read.

* `messages` holds the channel, each message as it was, at a rising offset. The index finds those of
  a bundle.
* `reports` holds the load reports of brokers and of their busiest bundles.
* `members` holds the brokers and the leader, whenever they changed.
* `archive` holds one row: where the cluster is, and the position after which reading goes on. It
  changes in the transaction of the messages before it, so that a record is never lost or kept
  twice.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import orjson

from equipoise.channel.core.errors import CallerError, OperatorError
from equipoise.channel.core.ranges import BundleName
from equipoise.channel.inspect.story import overlaps
from equipoise.channel.system.file_system import locked_file
from equipoise.pulsar_cluster.reading import Read
from equipoise.pulsar_cluster.records import Message, Report, message_of
from equipoise.pulsar_cluster.table import Table
from equipoise.pulsar_cluster.verify import Known

_APPLICATION_ID: Final = 0x45515043  # "EQPC"
_FORMAT: Final = 1
_TABLES: Final = f"""
CREATE TABLE archive (service_url TEXT NOT NULL, position BLOB);
CREATE TABLE messages (
    offset INTEGER PRIMARY KEY, message_id TEXT NOT NULL, bundle TEXT NOT NULL,
    producer TEXT NOT NULL, published_ms INTEGER NOT NULL, value BLOB, begins_anew INTEGER NOT NULL
);
CREATE INDEX messages_of_bundle ON messages (bundle, offset);
CREATE TABLE reports (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, topic TEXT NOT NULL, broker TEXT NOT NULL,
    value BLOB
);
CREATE TABLE members (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, leader TEXT, brokers TEXT NOT NULL
);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
"""
_COLUMNS: Final = "offset, message_id, bundle, published_ms, value, producer, begins_anew"
_LOCK_WAIT_S: Final = 10.0
_POLL_S: Final = 0.5


class Members(NamedTuple):
    """The brokers of the cluster and their leader from `at_ms` (Unix time) on."""

    at_ms: int
    leader: str | None
    brokers: tuple[str, ...]


class Archive:
    """An open archive. For one thread. One process writes; any number may read meanwhile."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Use `open_archive`."""
        self.path = path
        self.name = str(path)
        self._connection = connection
        self._read_to = -1
        self.service_url: str
        self.position: bytes | None
        self.end: int
        self.service_url, self.position = connection.execute(
            "SELECT service_url, position FROM archive"
        ).fetchone()
        (self.end,) = connection.execute(
            "SELECT coalesce(max(offset), -1) FROM messages"
        ).fetchone()
        """The offset of the last message, -1 without messages."""

    def append(self, reads: Sequence[Read]) -> None:
        """Add messages of the channel. They are on the disk when it returns."""
        if not reads:
            return
        rows = [
            (
                self.end + place,
                read.message_id,
                read.key,
                read.producer,
                read.published_ms,
                read.value,
                read.begins_anew,
            )
            for place, read in enumerate(reads, 1)
        ]
        with self._transaction():
            self._connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._connection.execute("UPDATE archive SET position = ?", (reads[-1].position,))
        self.end, self.position = self.end + len(reads), reads[-1].position

    def add_reports(self, reports: Sequence[Report]) -> None:
        """Add load reports."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO reports (at_ms, topic, broker, value) VALUES (?, ?, ?, ?)", reports
            )

    def add_members(self, members: Members) -> None:
        """Add the brokers, if they or the leader changed."""
        last = self.members()
        if last is None or last[1:] != members[1:]:
            with self._transaction():
                row = (members.at_ms, members.leader, orjson.dumps(members.brokers).decode())
                self._connection.execute(
                    "INSERT INTO members (at_ms, leader, brokers) VALUES (?, ?, ?)", row
                )

    def members(self) -> Members | None:
        """Return the newest brokers and their leader, or None if nobody recorded them."""
        row = self._connection.execute(
            "SELECT at_ms, leader, brokers FROM members ORDER BY id DESC LIMIT 1"
        ).fetchone()
        return None if row is None else Members(row[0], row[1], tuple(orjson.loads(row[2])))

    def every_members(self) -> Iterator[Members]:
        """Yield the brokers and their leader, at each change."""
        for at_ms, leader, brokers in self._connection.execute(
            "SELECT at_ms, leader, brokers FROM members ORDER BY id"
        ):
            yield Members(at_ms, leader, tuple(orjson.loads(brokers)))

    def messages(self, *, after: int = -1) -> Iterator[Message]:
        """Yield the messages behind an offset in order."""
        for row in self._connection.execute(
            f"SELECT {_COLUMNS} FROM messages WHERE offset > ? ORDER BY offset",  # noqa: S608
            (after,),
        ):
            self._read_to = row[0]
            yield message_of(row[:6], begins_anew=bool(row[6]))

    def news(self) -> Iterator[Message]:
        """Yield the messages after those that `messages` yielded, as a recording adds them, without
        end.
        """
        while True:
            yield from self.messages(after=self._read_to)
            time.sleep(_POLL_S)

    def known(self, table: Table) -> Known:
        """Return who the brokers are, if that was recorded. An archive has no boundaries."""
        del table
        members = self.members()
        return Known() if members is None else Known(members.brokers)

    def confirm(self, table: Table) -> bool:
        """Return True: nobody can contradict the past."""
        del table
        return True

    def beginnings(self) -> list[tuple[int, int]]:
        """Return the offset and the time of each message before which messages are lost."""
        return self._connection.execute(
            "SELECT offset, published_ms FROM messages WHERE begins_anew ORDER BY offset"
        ).fetchall()

    def messages_of(self, bundle: BundleName) -> Iterator[Message]:
        """Yield the messages of the bundles that share points with `bundle`, in order.

        A bundle that is not among the messages after a loss is gone. It gets a tombstone at the
        offset where they begin.
        """
        # "0" is the character after "/".
        low, high = f"{bundle.namespace}/", f"{bundle.namespace}0"
        named = self._connection.execute(
            "SELECT DISTINCT bundle FROM messages WHERE bundle >= ? AND bundle < ?", (low, high)
        ).fetchall()
        rows = []
        for (name,) in named:
            if overlaps(name, bundle):
                rows += self._connection.execute(
                    f"SELECT {_COLUMNS} FROM messages WHERE bundle = ?",  # noqa: S608 - constants
                    (name,),
                ).fetchall()
        rows.sort()
        beginnings = self.beginnings()
        for offset, at_ms in beginnings:
            before, after = (
                {row[2] for row in rows if (row[0] >= offset) is later} for later in (False, True)
            )
            rows += [(offset, "", bundle, at_ms, None, "", 0) for bundle in sorted(before - after)]
        rows.sort(key=lambda row: row[0])
        for row in rows:
            begins_anew = bool(beginnings) and row[0] >= beginnings[0][0]
            while beginnings and row[0] >= beginnings[0][0]:
                del beginnings[0]
            yield message_of(row[:6], begins_anew=begins_anew)

    def now_ms(self) -> int:
        """Return the Unix time up to which the cluster is known: that of the last load report, 0
        without any.
        """
        row = self._connection.execute(
            "SELECT at_ms FROM reports ORDER BY id DESC LIMIT 1"
        ).fetchone()
        return 0 if row is None else int(row[0])

    def reports(self) -> Iterator[Report]:
        """Yield all load reports in the order of their arrival."""
        for row in self._connection.execute(
            "SELECT at_ms, topic, broker, value FROM reports ORDER BY id"
        ):
            yield Report(*row)

    def reports_end(self) -> int:
        """Return the id of the newest load report, 0 without reports."""
        (number,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM reports").fetchone()
        return int(number)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                yield
        except sqlite3.Error as error:
            raise OperatorError(
                f"the archive {self.path} cannot be written: {error}; check the disk, and that no"
                " other `pulsar record` writes to it"
            ) from error


@contextmanager
def open_archive(path: Path, *, create_for: str | None = None) -> Iterator[Archive]:
    """Open the archive at `path`, or create it for the cluster at the service URL `create_for`.

    Raises `CallerError` if there is none and none is to be created, if it is another file, or if it
    holds another cluster.
    """
    if create_for is None and not path.exists():
        raise CallerError(
            f"there is no archive {path}: make it with `equipoise pulsar record {path}`, or check"
            " the name"
        )
    with ExitStack() as stack:
        try:
            if create_for is not None:
                # Not a lock of SQLite's. It is closed after the connection: to close a descriptor
                # of a database ends SQLite's own locks.
                held = (
                    f"another `equipoise pulsar record` writes to {path}; wait until it has ended,"
                    " or name another file"
                )
                stack.enter_context(locked_file(path, "ab", what="the archive", held=held))
            connection = sqlite3.connect(
                _uri(path, writes=create_for is not None),
                uri=True,
                timeout=_LOCK_WAIT_S,
                isolation_level=None,
            )
            stack.callback(connection.close)
            # A recorder that was killed may have left a file without tables.
            is_new = (
                create_for is not None
                and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            )
            if is_new:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
            if create_for is not None:
                connection.execute(
                    "INSERT INTO archive SELECT ?, NULL WHERE NOT EXISTS (SELECT * FROM archive)",
                    (create_for,),
                )
            yield _checked(path, connection, create_for)
        except sqlite3.Error as error:
            raise OperatorError(
                f"the file {path} cannot be used as an archive: {error}; name a file of `equipoise"
                " pulsar record`, and check its permissions and its disk"
            ) from error


def _checked(path: Path, connection: sqlite3.Connection, create_for: str | None) -> Archive:
    (application_id,), (number,) = (
        connection.execute(f"PRAGMA {name}").fetchone()
        for name in ("application_id", "user_version")
    )
    if application_id != _APPLICATION_ID:
        raise CallerError(
            f"the file {path} is no archive of a Pulsar cluster; name a file of `equipoise pulsar"
            " record`"
        )
    if number != _FORMAT:
        raise OperatorError(
            f"the archive {path} has format {number}, and this program knows {_FORMAT}; use a newer"
            " equipoise"
        )
    archive = Archive(path, connection)
    if create_for is not None and archive.service_url != create_for:
        raise CallerError(
            f"the archive {path} holds the cluster at {archive.service_url}, not {create_for}; name"
            " another file"
        )
    return archive


def _uri(path: Path, *, writes: bool) -> str:
    """Return SQLite's name of the file. A reader without the right to write cannot make SQLite's
    other files, and needs none of them.
    """
    options = "mode=rwc" if writes else "mode=rw"
    if not writes and not os.access(path, os.W_OK) and not Path(f"{path}-wal").exists():
        options = "mode=ro&immutable=1"
    return f"file:{quote(os.fsencode(path))}?{options}"
