"""Open a `Log`, or a `SideLog` beside it, from a URL.

This is the only module that knows all adapters.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from equipoise.channel.core.errors import invalid_kafka_setting, invalid_log_url, missing_extra
from equipoise.channel.core.log import Log
from equipoise.channel.core.side_log import SideLog, SideTopic
from equipoise.channel.kafka.settings import (
    CONFIG_FILE_VARIABLE,
    CONFIG_VARIABLE,
    address_of,
    checked,
    parsed,
)
from equipoise.channel.log.memory_log import MemoryLog, MemorySideLog
from equipoise.channel.sqlite.log import SqliteLog
from equipoise.channel.sqlite.side_log import SqliteSideLog
from equipoise.channel.sqlite.storage import Synchronous

_SYNCHRONOUS: Final = {
    "synchronous=full": Synchronous.FULL,
    "synchronous=normal": Synchronous.NORMAL,
    "": Synchronous.FULL,
}


def open_log(url: str, *, create: bool = True, name: str | None = None) -> Log:
    """Return a new handle on the log at `url`.

    * `sqlite:PATH` is one file for all processes of one machine. PATH ends at the first `?`; a
      relative path starts in the working folder. `?synchronous=normal` makes appends several times
      cheaper, but a power failure may undo the newest ones (see `Synchronous`).
    * `kafka://HOST:PORT[,HOST:PORT]/TOPIC` is a topic of one partition. A missing topic is created
      with the settings that it needs and `?replication=COPIES`. `kafka_settings` holds further
      settings of the client, such as TLS and SASL.
    * `memory:NAME` is shared by the threads of this process and lives while a handle is open.

    `name` replaces the URL in messages, for a log file that is built under a temporary name.
    Without `create`, a missing file or topic is not created and an empty one stays empty.

    Raises:
    * `CallerError` for a URL that names no log, a path where no log can be, or a topic without the
      extra `kafka`;
    * `LogNotBegun` if there is no log and `create` is false;
    * for a file `OperatorError` (a hard link, a network file system), `LogDamaged`,
      `LogUnavailable`, `LogStorageFull`;
    * for a topic `CallerError`, `OperatorError`,
      `LogUnavailable`.
    """
    scheme, colon, rest = url.partition(":")
    if is_in_memory(url):
        if not rest:
            raise invalid_log_url(url=url, problem="it has no name")
        return MemoryLog(name=url)
    if scheme == "sqlite":
        path, _, options = rest.partition("?")
        if options not in _SYNCHRONOUS:
            raise invalid_log_url(
                url=url,
                problem=f"unknown option {options!r}; use synchronous=full or synchronous=normal",
            )
        if path.startswith("//"):  # Ambiguous: a host, or a relative path with three slashes.
            raise invalid_log_url(
                url=url,
                problem=(
                    f"a path begins with one slash, not two: use sqlite:/{path.lstrip('/')}, or"
                    f" sqlite:{path.lstrip('/')}"
                ),
            )
        return SqliteLog(path, name=name or url, synchronous=_SYNCHRONOUS[options], create=create)
    if scheme == "kafka":
        return _open_kafka_log(url, create=create)
    problem = (
        f"unknown kind {scheme!r}"
        if colon
        else "it must begin with the kind of the log and a colon"
    )
    raise invalid_log_url(url=url, problem=problem)


def _open_kafka_log(url: str, *, create: bool) -> Log:
    address = address_of(url)
    with _kafka_extra(what=f"the log {url}"):
        from equipoise.channel.kafka.log import KafkaLog  # noqa: PLC0415 - see `_kafka_extra`
    return KafkaLog(address, name=url, settings=kafka_settings(), create=create)


@contextmanager
def _kafka_extra(*, what: str) -> Iterator[None]:
    """Say so if the block imports the client of Kafka, which comes with an extra, and that is not
    installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise missing_extra(what=what, extra="kafka") from error


def open_side_log(url: str, topic: SideTopic) -> SideLog:
    """Return a new handle on what is kept of `topic` beside the log at `url` (see `open_log`).

    * `sqlite:PATH` has a table in the file `PATH.observations`.
    * `kafka://SERVERS/TOPIC` has a topic of its own, `TOPIC-name`.
    * `memory:NAME` has it in the memory of the process.

    Raises `CallerError` for any other URL without the extra `kafka`, and for settings of
    Kafka's client that cannot be used.
    """
    path = log_path(url)
    if path is not None:
        return SqliteSideLog(path, topic, name=url)
    if is_in_memory(url):
        return MemorySideLog(url, topic)
    if not url.startswith("kafka:"):
        problem = f"{topic.content} cannot be beside a log of this kind"
        raise invalid_log_url(url=url, problem=problem)
    address = address_of(url)
    with _kafka_extra(what=f"{topic.content} beside {url}"):
        from equipoise.channel.kafka.client import Clients  # noqa: PLC0415 - see `_kafka_extra`
        from equipoise.channel.kafka.side_log import KafkaSideLog  # noqa: PLC0415 - as above
    return KafkaSideLog(Clients(servers=address.servers, settings=kafka_settings()), address, topic)


def kafka_settings() -> dict[str, str]:
    """Return this process's Kafka client settings (librdkafka's names), from a file and from the
    environment, which takes precedence.

    Raises `CallerError`.
    """
    settings: dict[str, str] = {}
    if path := os.environ.get(CONFIG_FILE_VARIABLE):
        try:
            settings |= parsed(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise invalid_kafka_setting(
                setting=CONFIG_FILE_VARIABLE, problem=f"the file cannot be read: {error}"
            ) from error
    return checked(settings | parsed(os.environ.get(CONFIG_VARIABLE, "")))


def is_in_memory(url: str) -> bool:
    """Return whether `url` is a log in memory, which processes cannot share."""
    return url.partition(":")[0] == "memory"


def log_path(url: str) -> str | None:
    """Return the path of the file that holds the log, as written in `url`, or None if the log is
    not a file.
    """
    scheme, _, rest = url.partition(":")
    return rest.partition("?")[0] if scheme == "sqlite" else None


async def opened_in_thread(opening: Callable[[], Log]) -> Log:
    """Open a log in a thread. If the caller is cancelled, the thread goes on and closes the
    handle.
    """
    handle = asyncio.get_running_loop().run_in_executor(None, opening)
    try:
        return await asyncio.shield(handle)
    except asyncio.CancelledError:
        handle.add_done_callback(
            lambda done: None if done.cancelled() or done.exception() else done.result().close()
        )
        raise
