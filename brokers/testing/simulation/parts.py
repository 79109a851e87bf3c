"""The parts that every component of a run shares: time, chance, faults, story."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.brokers.testing.simulation.chance import Chance
from equipoise.brokers.testing.simulation.clock import Schedule
from equipoise.brokers.testing.simulation.faults import Faults
from equipoise.brokers.testing.simulation.scenario import Scenario
from equipoise.brokers.testing.simulation.story import Story


@dataclass(slots=True, kw_only=True)
class Parts:
    """The shared parts. `faults` are the scenario's; after the fault period they are reduced to
    hardly any.
    """

    scenario: Scenario
    schedule: Schedule
    chance: Chance
    story: Story
    faults: Faults
