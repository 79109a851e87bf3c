"""Channels made for tests of the command line, as SQLite logs, without any broker: their records
are fabricated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from typer.testing import CliRunner, Result

from equipoise.brokers.cli.main import app
from equipoise.brokers.cli.options import LOG_VARIABLE
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.log import READ_ENTRIES_MAX
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from tests.channels.folding import MIDDLE, NAMESPACE, Channel

LEFT_RANGE: Final = "0x00000000_0x80000000"
RIGHT_RANGE: Final = "0x80000000_0xffffffff"
LEFT: Final = f"{NAMESPACE}/{LEFT_RANGE}"
RIGHT: Final = f"{NAMESPACE}/{RIGHT_RANGE}"

Play = Callable[[Author, BundleEntry], AnyRecord]

BY_THE_BOOK: Final[dict[Phase, Play]] = {
    "transferring": propose.prepared,
    "handing_over": propose.hand_over,
    "unloading": propose.released,
    "assigning": propose.opened,
    "splitting": lambda author, bundle: propose.split(
        author, bundle, cuts=bundle.positions or (bundle.low + (bundle.high - bundle.low) // 2,)
    ),
}
"""The record that completes each phase of a bundle if all goes well, by the broker whose turn it
is."""


def owned_channel() -> Channel:
    """Brokers a, b, c; the namespace `NAMESPACE` of two bundles, of which a owns `LEFT` and b
    `RIGHT`.
    """
    channel = Channel()
    channel.genesis()
    channel.join("a", "b", "c")
    channel.create(even_boundaries(2))
    channel.own("a")
    channel.own("b", MIDDLE)
    return channel


def write(entries: Iterable[tuple[int, bytes]], folder: Path) -> str:
    """The URL of a new log that holds the data of `entries`, at the offsets that they have."""
    url = f"sqlite:{folder}/channel.db"
    with closing(open_log(url)) as log:
        assert [offset for offset, _ in entries] == list(
            log.append([data for _, data in entries], timeout_ms=1_000)
        )
    return url


def run(*arguments: str, log: str | None = None) -> Result:
    """Run a command in this process, on a log if one is given, as a user without a terminal
    would.
    """
    environment = {LOG_VARIABLE: log, "NO_COLOR": "1"}
    return CliRunner().invoke(app, arguments, env=environment, prog_name="equipoise")


def view_of(url: str) -> View:
    """The view of the log at `url`."""
    with closing(open_log(url, create=False)) as log:
        reader = Reader(log=url)
        for entry in log.read(1, limit=READ_ENTRIES_MAX):
            reader.feed(entry)
    return reader.view


class Actors:
    """A thread that plays all brokers of a channel inside `with`: it appends what `script` has for
    the phase of each bundle.
    """

    def __init__(
        self,
        url: str,
        script: dict[Phase, Play] | None = None,
        *,
        also: Callable[[View], AnyRecord | None] = lambda _: None,
    ) -> None:
        """`also` returns a further record where the script has none."""
        self._url = url
        self._also = also
        self._script = BY_THE_BOOK if script is None else script
        self._log = open_log(url)
        self._ending = False
        self._thread = threading.Thread(target=self._play)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending = True
        self._log.wake()
        self._thread.join()
        self._log.close()

    def _play(self) -> None:
        reader = Reader(log=self._url)
        while not self._ending:
            for entry in self._log.read(reader.position, limit=READ_ENTRIES_MAX):
                reader.feed(entry)
            if not self._act(reader.view):
                self._log.wait(reader.position, timeout_ms=1_000)

    def _act(self, view: View) -> bool:
        """Append one record if it is a broker's turn. Return whether it was."""
        for bundle in view.unsettled():
            play = self._script.get(bundle.phase)
            actor = bundle.source if bundle.phase in ("handing_over", "unloading") else bundle.owner
            if play is not None and actor is not None:
                broker = view.live[actor]
                self._log.append([encode(play(author_of(broker), bundle))], timeout_ms=1_000)
                return True
        record = self._also(view)
        if record is not None:
            self._log.append([encode(record)], timeout_ms=1_000)
        return record is not None


def author_of(broker: BrokerEntry) -> Author:
    """The author of the next record of a broker."""
    return Author(
        publisher=broker.broker, incarnation=broker.incarnation, sequence=broker.sequence + 1
    )
