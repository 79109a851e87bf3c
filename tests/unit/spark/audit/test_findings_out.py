"""Tests of findings beside the log: their documents, and a topic that Kafka denies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.side_log import SideLogUnavailable, read_on
from equipoise.channel.log.memory_log import MemorySideLog
from equipoise.channel.log.open_log import open_log, open_side_log
from equipoise.spark_jobs.audit.findings_out import FINDINGS, FindingsOut
from equipoise.spark_jobs.rules.rule import Finding, parse_finding

FOUND = Finding(
    rule="hole", subject="namespace:t/n", offsets=(3,), at_ms=7, text="a hole", command="look"
)


def test_a_document_is_the_finding(tmp_path: Path) -> None:
    """A repeated batch is kept once."""
    url = f"sqlite:{tmp_path}/log"
    open_log(url).close()
    out = FindingsOut(url)
    other = replace(FOUND, offsets=(4,))
    out.put([])
    out.put([FOUND])
    FindingsOut(url).put([FOUND, other])
    assert f"in {tmp_path}/log.observations" == out.place
    kept = list(read_on(open_side_log(url, FINDINGS), 0))
    assert [FOUND, other] == [parse_finding(each.value or b"") for each in kept]
    assert {FOUND.subject} == {each.key for each in kept}


@pytest.mark.parametrize("is_denied", [True, False])
def test_a_missing_right_is_logged_once_and_another_failure_raised(
    is_denied: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise SideLogUnavailable(FINDINGS, place="there", problem="no right", is_denied=is_denied)

    monkeypatch.setattr(MemorySideLog, "append", fail)
    monkeypatch.setattr(
        "equipoise.spark_jobs.audit.findings_out.open_side_log",
        MemorySideLog,
    )
    out = FindingsOut("kafka://localhost:1/channel")
    if not is_denied:
        with pytest.raises(SideLogUnavailable, match="the archive has the findings meanwhile"):
            out.put([FOUND])
        return
    out.put([FOUND])
    out.put([FOUND])
    (line,) = caplog.messages
    assert line.startswith("findings are only in the archive: ")


def test_a_log_in_memory_is_refused() -> None:
    with pytest.raises(CallerError, match="cannot open a log at"):
        FindingsOut("memory:test")
