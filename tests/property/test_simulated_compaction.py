"""Run compaction in a simulated cluster with faults, and check every invariant."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.run import simulate
from tests.simulation.scenario import SCENARIOS

# One of them takes a second, most of it in the calm.
RUNS = 25


@settings(max_examples=RUNS, deadline=None)
@given(
    name=st.sampled_from(
        ("compaction", "three-brokers", "drains", "lost-directories", "reshaping", "serving-on")
    ),
    seed=st.integers(0, 2**32),
    every_ms=st.integers(50, 4_000),
)
def test_no_compaction_breaks_an_invariant(name: str, seed: int, every_ms: int) -> None:
    """A short run of a scenario of the catalogue, whose log is compacted as often as one likes,
    recovers.
    """
    scenario = replace(SCENARIOS[name], compact_every_ms=every_ms, seconds=8)
    outcome = simulate(scenario, seed)
    assert outcome.violation is None, "\n".join(outcome.tail[-40:])
