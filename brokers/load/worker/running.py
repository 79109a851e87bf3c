"""Run a load worker as a process: wait for Kafka, work until a signal, and stop within a time
limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import faust
from aiokafka.errors import KafkaError

from equipoise.brokers.load.bus import LOADS, SAMPLES, group_of, worker_topics
from equipoise.brokers.load.worker.access import KafkaAccess, access_of
from equipoise.brokers.load.worker.streams import Place, Streams
from equipoise.channel.core.errors import Bug, OperatorError
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.channel.kafka.answers import KafkaFailed, Trouble
from equipoise.channel.kafka.client import Clients
from equipoise.channel.kafka.settings import KafkaAddress
from equipoise.channel.kafka.side_log import made
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.failures import RepeatedFailures
from equipoise.channel.system.stop_signals import stop_event

logger = logging.getLogger(__name__)

STOP_S: Final = 5.0
"""How long a stop may take. All state is on Kafka, so a worker that is cut off afterwards loses
nothing."""

# The same exit code as of a command whose log is unavailable.
_FAILED: Final = 3

# These loggers report every start and every assignment, which is no news to an operator.
_TALKATIVE: Final = ("aiokafka", "faust", "mode")

# The limit of one attempt: six topics to describe and create, some milliseconds each on a healthy
# Kafka.
_LOOK_MS: Final = 5_000
_TRY_AGAIN_S: Final = 1.0
_LOG_INTERVAL_MS: Final = 10_000


def run_load_worker(
    address: KafkaAddress, *, log_url: str, settings: Mapping[str, str], timeout_ms: int
) -> None:
    """Work for the log at `address`, named `log_url`, until SIGTERM or SIGINT. Waits up to
    `timeout_ms` for Kafka at the start.

    `settings` are the checked settings of Kafka's client. Raises `CallerError` for one that
    a load worker does not support, OSError for a file in them that cannot be read, `OperatorError`
    for a topic with other partitions, `OperatorError`, `LogUnavailable` after the wait, and
    `PeerError` if the worker cannot continue.
    """
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    access = access_of(settings)
    clients = Clients(servers=address.servers, settings=settings)
    start = _Start(address, access=access, clients=clients, log_url=log_url)
    # For Faust's table files, which our tables do not have. Others on the machine must not know its
    # name in advance.
    with tempfile.TemporaryDirectory(
        prefix="equipoise-load-", ignore_cleanup_errors=True
    ) as folder:
        asyncio.run(_work(start, Path(folder), timeout_ms=timeout_ms))


async def _work(start: _Start, folder: Path, *, timeout_ms: int) -> None:
    stopping = stop_event()
    place = await start.found(stopping, Deadline.after(timeout_ms=timeout_ms))
    if place is None:
        return
    app = Streams(place, folder=folder).app
    # A start waits for the group and restores the tables. A stop must not wait for that.
    tasks = [asyncio.create_task(_carry(app, place)), asyncio.create_task(stopping.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    reason = app.crash_reason
    if reason is None and tasks[0].done():
        reason = tasks[0].exception()
    error = None if reason is None or stopping.is_set() else _as_error(reason, place.log)
    _end_soon(error)
    await app.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if error is not None:
        raise error from reason
    logger.info("load worker stopped", extra={"group": group_of(place.log)})


async def _carry(app: faust.App, place: Place) -> None:
    """Start the app, and return when it has ended."""
    await app.start()
    logger.info(
        "load worker started", extra={"group": group_of(place.log), "partitions": place.partitions}
    )
    await app.wait_until_stopped()


def _end_soon(error: Exception | None) -> None:
    """Ensure that the process ends in time, even if the loop, a thread or the interpreter waits for
    Kafka.
    """

    def cut_off() -> None:
        logger.warning(
            "load worker cut off while it stopped",
            extra={"problem": str(error or "Kafka does not answer")},
        )
        logging.shutdown()
        os._exit(0 if error is None else _FAILED)

    timer = threading.Timer(STOP_S, cut_off)
    timer.daemon = True
    timer.start()


def _as_error(reason: BaseException, log: str) -> Exception:
    """Return our error for what ended the app."""
    if isinstance(reason, KafkaError):
        return SideLogUnavailable(
            LOADS, place=f"of the topics {log}-*", problem=str(reason) or type(reason).__name__
        )
    return Bug(
        f"the load worker of {group_of(log)} ended with {type(reason).__name__}: {reason}; please"
        " report it"
    )


class _Start:
    """Waits for Kafka and creates missing topics."""

    def __init__(
        self, address: KafkaAddress, *, access: KafkaAccess, clients: Clients, log_url: str
    ) -> None:
        self._address = address
        self._access = access
        self._clients = clients
        self._log_url = log_url

    async def found(self, stopping: asyncio.Event, deadline: Deadline) -> Place | None:
        """Return where to work, or None if `stopping` is set first. Raises as `run_load_worker`
        does.
        """
        failures = RepeatedFailures(interval_ms=_LOG_INTERVAL_MS)
        while not stopping.is_set():
            try:
                return await asyncio.to_thread(
                    self._looked, Deadline.after(timeout_ms=min(_LOOK_MS, deadline.remaining_ms()))
                )
            except KafkaFailed as failed:
                if failed.trouble is not Trouble.AWAY or not deadline.remaining_ms():
                    raise failed.as_error(log=self._log_url, in_doubt=False) from failed
                if failures.failed(time.monotonic_ns() // 1_000_000) is not None:
                    extra = {"seconds_left": deadline.remaining_ms() // 1_000}
                    logger.warning("waiting for the log: %s", failed.problem, extra=extra)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_TRY_AGAIN_S, deadline.remaining_ms() / 1_000)):
                    await stopping.wait()
        return None

    def _looked(self, deadline: Deadline) -> Place:
        log = self._address.topic
        with self._clients.administrator() as administrator:
            if administrator.describe(log, timeout_ms=deadline.remaining_ms()) is None:
                # Brokers may start later and create it, or the name is mistyped.
                logger.warning(
                    "there is no such channel yet, and no broker of it",
                    extra={"log": self._log_url},
                )
            create = partial(
                made, administrator, replication=self._address.replication, deadline=deadline
            )
            samples = SAMPLES.beside(log)
            partitions = create(samples, SAMPLES).partitions
            create(LOADS.beside(log), LOADS)
            # Faust assigns the same partition of these topics to one worker, so that a row is where
            # its messages are.
            for topic in worker_topics(partitions).values():
                name = topic.beside(log)
                facts = create(name, topic)
                if facts.partitions != partitions:
                    raise OperatorError(
                        f"load workers cannot use the topic {name}: it has {facts.partitions}"
                        f" partitions, and needs {partitions}, as many as {samples}; stop the load"
                        " workers and delete the topic. They create it again, and only the averages"
                        " are lost"
                    )
        return Place(
            servers=self._address.servers, access=self._access, log=log, partitions=partitions
        )
