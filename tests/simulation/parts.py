"""The parts that every component of a run shares: time, chance, faults, story."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.chance import Chance
from tests.simulation.clock import Schedule
from tests.simulation.faults import Faults
from tests.simulation.scenario import Scenario
from tests.simulation.story import Story


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
