"""What the Pulsar job does outside of Spark."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from equipoise.pulsar_cluster.archive import open_archive
from equipoise.pulsar_cluster.records import BROKER_LOADS, Report
from equipoise.spark_jobs.audit import pulsar as job
from equipoise.spark_jobs.sequence.rows import Table
from tests.unit.pulsar_cluster.written import BUNDLE, Written


@pytest.mark.parametrize(
    ("later_ms", "beginnings", "rules"),
    [
        (30_000, [], []),
        (31_000, [], ["pulsar_stuck"]),
        (31_000, [0], ["pulsar_stuck"]),
        (31_000, [1], []),
    ],
)
def test_a_bundle_is_stuck_if_load_reports_went_on(
    later_ms: int, beginnings: list[int], rules: list[str], tmp_path: Path
) -> None:
    """The channel of a quiet cluster has no later message. What was open when messages were lost
    has no known end.
    """
    path, written = tmp_path / "pulsar.db", Written()
    written.add(BUNDLE, "a:80", "Assigning", to="a:80")
    with open_archive(path, create_for="pulsar://127.0.0.1:6650") as archive:
        archive.append(written.reads)
        assert written.now_ms == job.newest_ms(str(path), messages=1, reports=0)
        archive.add_reports([Report(written.now_ms + later_ms, BROKER_LOADS, "a:80", None)])
    newest_ms = job.newest_ms(str(path), messages=1, reports=1)
    read = job.read_messages(str(path), [pd.DataFrame({"first": [0]})])
    frames = job.audit_bundles(newest_ms, read, beginnings=beginnings)
    rows = pd.concat(frames)
    assert rules == rows[rows["table"] == Table.FINDINGS.value]["kind"].tolist()
