"""What all parts of a run stand on: its time, its chance, its faults, its story.

May live here: the one object that is handed to every part.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.brokers.testing.simulation.chance import Chance
from equipoise.brokers.testing.simulation.clock import Schedule
from equipoise.brokers.testing.simulation.faults import Faults
from equipoise.brokers.testing.simulation.scenario import Scenario
from equipoise.brokers.testing.simulation.story import Story


@dataclass(slots=True, kw_only=True)
class Stage:
    """`faults` are the scenario's until the calm begins, and hardly any from then on."""

    scenario: Scenario
    schedule: Schedule
    chance: Chance
    story: Story
    faults: Faults
