"""Tests of a memory in Spark's state: what is read and written, and how often; and the rows that
findings become.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from equipoise.spark_jobs.audit.keyed_operator import emitted
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.namespace import NamespaceMemory
from equipoise.spark_jobs.rules.rule import Finding, parse_finding
from tests.spark.spark_state import FakeSpark


def saved(spark: FakeSpark, **fields: Any) -> None:  # noqa: ANN401 - the fields of a memory
    """Save the memory with these fields, in a batch of its own."""
    stored = spark.audit()
    stored.audit.memory = replace(stored.audit.memory, **fields)
    stored.save()


def test_a_batch_reads_once_and_writes_changes_once() -> None:
    """A blank memory is not stored."""
    spark = FakeSpark("namespace:t/n")
    saved(spark)
    saved(spark, failures=2)
    assert {"get": 2, "update": 1} == dict(spark.calls)
    saved(spark, failures=2)
    assert NamespaceMemory(failures=2) == spark.audit().audit.memory
    saved(spark, failures=0)
    assert ({"get": 5, "update": 1, "clear": 1}, None) == (dict(spark.calls), spark.value)


def test_every_memory_is_restored() -> None:
    member = {
        "kind": "broker",
        "key": "b1",
        "status": "joined",
        "expected_offset": 1,
        "publisher": "b1",
    }
    state = {"phase": "owned", "owner": 3, "source": None, "last": 7, "token": 7}
    evidence = {
        "broker": "b1",
        "boot": "x",
        **dict.fromkeys(
            ("incarnation", "token", "started_ns", "lease_deadline_ns", "at_ms", "at_ns"), 7
        ),
    }
    facts = (
        Fact(
            subject="broker:b1",
            source="channel",
            offset=7,
            at_ms=1_000,
            record=member,
            verdict="accepted",
        ),
        Fact(
            subject="bundle:t/n/0x00000000_0xffffffff",
            source="channel",
            offset=7,
            at_ms=1_000,
            verdict="accepted",
            before=state,
            after=state,
        ),
        Fact(
            subject="bundle:t/n/0x00000000_0xffffffff",
            source="serving",
            offset=7,
            at_ms=1_000,
            record=evidence,
        ),
        Fact(
            subject="log:",
            source="channel",
            offset=7,
            at_ms=1_000,
            record={"kind": "genesis", "publisher": "admin:a"},
            verdict="stale",
        ),
    )
    for fact in facts:
        spark = FakeSpark(fact.subject)
        stored = spark.audit()
        stored.audit.check(fact)
        stored.save()
        assert not stored.audit.is_blank
        assert stored.audit.memory == spark.audit().audit.memory


def test_an_earlier_timer_replaces_the_one_that_is_set() -> None:
    spark = FakeSpark("namespace:t/n")
    for due_ms in (3_000, 1_000):
        saved(spark, forget_ms=due_ms)
    assert ({1_000}, 1) == (spark.timers, spark.calls["delete"])


def test_a_finding_at_another_time_is_the_same() -> None:
    """A repeated audit cuts other batches."""
    first = Finding(
        rule="served_past_lease",
        subject="bundle:t/n/x",
        offsets=(9,),
        at_ms=1_000,
        text="a",
        command="c",
    )
    [frame] = emitted([first, replace(first, at_ms=2_000), replace(first, text="b")])
    once, again, other = frame["ordinal"]
    assert (True, False) == (once == again, once == other)


def test_findings_as_rows() -> None:
    first = Finding(
        rule="hole",
        subject="namespace:t/n",
        offsets=(3, 9),
        at_ms=1_700_000_000_123,
        text="a",
        command="c",
        publisher="b1",
    )
    second = Finding(
        rule="hole",
        subject="namespace:t/m",
        offsets=(9,),
        at_ms=1_700_000_000_123,
        text="a",
        command="c",
    )
    [frame] = emitted([first, second])
    assert [first, second] == [parse_finding(body) for body in frame["body"]]
    assert [(9, "findings", "hole", "b1"), (9, "findings", "hole", None)] == list(
        zip(frame["offset"], frame["table"], frame["kind"], frame["publisher"], strict=True)
    )
    assert "2023-11-14 22:13:20.123000" == str(frame["at"][0])
    [again] = emitted([second])
    assert (frame["ordinal"][1], 2) == (again["ordinal"][0], len(set(frame["ordinal"])))
    assert [] == list(emitted([]))
