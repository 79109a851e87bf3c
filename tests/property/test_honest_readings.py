"""Honest brokers are accused of nothing, however the log and the evidence beside it are read: out
of step, late, or hours in one batch.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.spark_jobs.audit.auditor import Auditor
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Arrival
from tests.injected.honest import BEGAN_MS, Run, honest, play

SECONDS = 20
HOUR_MS = 3_600_000
BATCH = 50


@pytest.fixture(scope="module", params=["calm", "ordinary"])
def run(request: pytest.FixtureRequest) -> Run:
    """Brokers that move, split and merge bundles, and put down what they serve."""
    played = play(honest(request.param, seconds=SECONDS), 1, evidence=True)
    assert played.serving
    return played


def read_out_of_step(run: Run, ahead_ms: int) -> list[Finding]:
    """What is found where evidence is read so far ahead of the channel, or so far behind it."""
    ends = [*range(0, len(run.channel), BATCH), len(run.channel)]
    pipeline, read = Auditor(), 0
    found: list[Finding] = []
    for first, end in pairwise(ends):
        channel = run.channel[first:end]
        until_ms = channel[-1].at_ms + ahead_ms
        further = next(
            (
                place
                for place in range(read, len(run.serving))
                if run.serving[place].at_ms > until_ms
            ),
            len(run.serving),
        )
        found += pipeline.feed([*channel, *run.serving[read:further]])
        read = further
    return found


@pytest.mark.parametrize("ahead_ms", [-3_000, 0, 5, 100, 1_000, 60_000])
def test_evidence_may_be_read_before_its_records_or_after_them(run: Run, ahead_ms: int) -> None:
    assert [] == read_out_of_step(run, ahead_ms)


@pytest.mark.parametrize("hours", [0.5, 1.1, 3.0])
def test_a_batch_may_span_hours(run: Run, hours: float) -> None:
    quiet_ms = BEGAN_MS + 1_000 * (SECONDS + 14)
    channel = [
        each._replace(at_ms=each.at_ms + int(hours * HOUR_MS)) if each.at_ms >= quiet_ms else each
        for each in run.channel
    ]
    serving = [each for each in run.serving if each.at_ms < quiet_ms]
    assert channel[-1].at_ms - channel[0].at_ms > hours * HOUR_MS
    assert [] == list(Auditor().feed([*channel, *serving]))


@pytest.mark.parametrize("hours", [0.5, 1.1, 3.0])
def test_evidence_may_come_hours_after_the_log_was_read(run: Run, hours: float) -> None:
    last = run.channel[-1]
    later = Arrival(
        last.source, last.offset + FIRST_OFFSET, last.at_ms + int(hours * HOUR_MS), b"{}"
    )
    pipeline = Auditor()
    found = [*pipeline.feed([*run.channel, later]), *pipeline.feed(run.serving)]
    assert {"malformed"} >= {finding.rule for finding in found}
