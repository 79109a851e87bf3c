"""Start and stop a worker's records of serving: evidence for tests, observations for audits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from equipoise.brokers.agent.effects import Effect
from equipoise.brokers.agent.events import Event
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.observations import are_kept, open_observations
from equipoise.brokers.runtime.observations.evidence import EvidenceFile
from equipoise.brokers.runtime.observations.observation_writer import ObservationWriter
from equipoise.brokers.runtime.observations.witness import Standing, Witness
from equipoise.brokers.runtime.service import Evidence
from equipoise.channel.sqlite.file import BOOT_ID, this_boot


class Witnesses:
    """The witnesses of one worker, if configured and begun."""

    def __init__(self, config: WorkerConfig, *, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._file: EvidenceFile | None = None
        self._writer: ObservationWriter | None = None
        self._witness: Witness | None = None

    def begin(self, log: str) -> None:
        """Start, with the open log's identity. Raise `InvalidConfig` if the evidence file cannot be written."""
        broker = self._config.id
        if self._config.evidence is not None:
            self._file = EvidenceFile(self._config.evidence, broker=broker)
        log_url = self._config.log_url
        if self._config.observations and are_kept(log_url):
            self._writer = ObservationWriter(partial(open_observations, log_url), broker=broker, clock=self._clock)
            self._witness = Witness(log=log, broker=broker, boot=this_boot(BOOT_ID), clock=self._clock, tell=self._writer.served)

    @property
    def of_work(self) -> Callable[[Evidence], None] | None:
        """The callback for work that passed both checks; None without evidence."""
        return None if self._file is None else self._file.write

    def begun(self, effect: Effect) -> None:
        """Note an effect that is about to be carried out."""
        if self._witness is not None:
            self._witness.begun(effect)

    def stepped(self, event: Event, agent: Standing) -> None:
        """Note an event that the agent has taken, and whose effects are in progress."""
        if self._witness is not None:
            self._witness.stepped(event, agent)

    def ended(self) -> None:
        """Note that the broker has ended and serves nothing any more."""
        if self._witness is not None:
            self._witness.stopped()

    def close(self) -> None:
        """Write what is left, in bounded time. Call it in a thread, after `ended`."""
        for each in (self._file, self._writer):
            if each is not None:
                each.close()
