"""From a URL to a `Log`: the one place that knows all adapters.

May live here: `open_log`, in a thread too, the grammar of log URLs, and what can be told from a URL alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from equipoise.channel.core.errors import InvalidKafkaSetting, InvalidLogUrl, MissingExtra
from equipoise.channel.core.log import Log
from equipoise.channel.kafka.settings import CONFIG_FILE_VARIABLE, CONFIG_VARIABLE, address_of, checked, parsed
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.sqlite.log import SqliteLog
from equipoise.channel.sqlite.storage import Synchronous

_SYNCHRONOUS: Final = {"synchronous=full": Synchronous.FULL, "synchronous=normal": Synchronous.NORMAL, "": Synchronous.FULL}


def open_log(url: str, *, create: bool = True, kafka: Mapping[str, str] | None = None, name: str | None = None) -> Log:
    """A new handle on the log at `url`.

    * `sqlite:PATH` is one file for all processes of one machine. PATH is taken as it stands up to the first `?`, and
      a relative one starts in the working folder. `?synchronous=normal` makes appends several times cheaper; a power cut
      may then take the newest ones back (see `Synchronous`).
    * `kafka://HOST:PORT[,HOST:PORT]/TOPIC` is a topic of one partition, for all who reach that Kafka; it is made with the
      settings that it needs, and `?replication=COPIES`, if it is not there. `kafka` are further settings of the client, in
      librdkafka's names, such as those of TLS and SASL; by default `kafka_settings()`.
    * `memory:NAME` is shared by the threads of this process, and lives while a handle is open.

    A log in a file is called `name` in messages, if that is another one: one that is made aside takes its own name later.
    Without `create`, a file or topic that is not there is not made, and one that is empty stays so: for those who only want
    to look.

    Raises `InvalidLogUrl` for a URL that names no log, or a path where none can be; `LogNotBegun` where none is, without
    `create`; `LogHardLinked`, `NetworkFileSystem`, `LogDamaged`, `LogUnavailable`, `LogStorageFull` for a file that cannot be used;
    for a topic `MissingExtra`, `InvalidKafkaSetting`, `UnfitTopic`, `LogAccessDenied`, `LogDamaged`, `LogUnavailable`.
    """
    scheme, colon, rest = url.partition(":")
    if is_in_memory(url):
        if not rest:
            raise InvalidLogUrl(url=url, problem="it has no name")
        return MemoryLog(name=url)
    if scheme == "sqlite":
        path, _, options = rest.partition("?")
        if options not in _SYNCHRONOUS:
            raise InvalidLogUrl(url=url, problem=f"{options!r} is no option; there are synchronous=full and synchronous=normal")
        if path.startswith("//"):  # Where other programs write a host, or three slashes for a relative path: nobody can know.
            raise InvalidLogUrl(
                url=url, problem=f"one slash begins a path, not two: sqlite:/{path.lstrip('/')}, or sqlite:{path.lstrip('/')}"
            )
        return SqliteLog(path, name=name or url, synchronous=_SYNCHRONOUS[options], create=create)
    if scheme == "kafka":
        return _open_kafka_log(url, create=create, settings=kafka_settings() if kafka is None else checked(kafka))
    problem = f"there is no log of the kind {scheme!r}" if colon else "it does not begin with the kind of the log and a colon"
    raise InvalidLogUrl(url=url, problem=problem)


def _open_kafka_log(url: str, *, create: bool, settings: Mapping[str, str]) -> Log:
    address = address_of(url)
    try:
        from equipoise.channel.kafka.log import KafkaLog  # noqa: PLC0415 - its client comes with an extra
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise MissingExtra(what=f"the log {url}", extra="kafka") from error
    return KafkaLog(address, name=url, settings=settings, create=create)


def kafka_settings() -> dict[str, str]:
    """The settings of Kafka's client that this process was started with: of a file, and of the environment, which goes before it.

    Raises `InvalidKafkaSetting`.
    """
    settings: dict[str, str] = {}
    if path := os.environ.get(CONFIG_FILE_VARIABLE):
        try:
            settings |= parsed(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidKafkaSetting(setting=CONFIG_FILE_VARIABLE, problem=f"the file cannot be read: {error}") from error
    return checked(settings | parsed(os.environ.get(CONFIG_VARIABLE, "")))


def is_in_memory(url: str) -> bool:
    """Whether a URL is of the kind of log that the processes of a machine cannot share."""
    return url.partition(":")[0] == "memory"


def log_path(url: str) -> str | None:
    """The path of the file that holds the log at `url`, as it stands there; None if it lies in no file."""
    scheme, _, rest = url.partition(":")
    return rest.partition("?")[0] if scheme == "sqlite" else None


async def opened_in_thread(opening: Callable[[], Log]) -> Log:
    """Open a log in a thread. The thread goes on if the caller is cancelled: then it closes the handle."""
    handle = asyncio.get_running_loop().run_in_executor(None, opening)
    try:
        return await asyncio.shield(handle)
    except asyncio.CancelledError:
        handle.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result().close())
        raise
