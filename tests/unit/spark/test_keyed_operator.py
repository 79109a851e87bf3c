"""The memory of a subject on Spark's state: what is read and written, and how often; and the rows that findings become."""

from __future__ import annotations

from dataclasses import replace

from equipoise.spark_jobs.audit.keyed_operator import KeyedMemory, emitted
from equipoise.spark_jobs.rules.findings import Finding, parse_finding
from tests.spark_state import FakeSpark


def remember(spark: FakeSpark, **values: bytes) -> None:
    """Put values under names, in a batch of their own."""
    memory = KeyedMemory(spark, spark)
    for name, value in values.items():
        memory.put(name.replace("__", ":"), value)
    memory.flush()


def test_small_names_cost_one_read_and_one_write() -> None:
    """However many small names a checker has, a batch reads their page once, and writes it once, if it has changed."""
    spark = FakeSpark()
    remember(spark, state=b"owned", alarms=b"{}", ownerships=b"\xff\x00")
    assert {"get": 1, "put": 1} == dict(spark.calls)
    spark.calls.clear()
    memory = KeyedMemory(spark, spark)
    assert (b"owned", b"\xff\x00", None) == (memory.get("state"), memory.get("ownerships"), memory.get("other"))
    memory.put("state", b"owned")
    memory.flush()
    assert {"get": 1} == dict(spark.calls)


def test_a_name_with_a_colon_has_a_row_of_its_own() -> None:
    """Of names of which there may be thousands, only those that are asked for are read, and only those that changed written."""
    spark = FakeSpark()
    remember(spark, range__1=b"a", range__2=b"b", range__3=b"c", other=b"d")
    spark.calls.clear()
    memory = KeyedMemory(spark, spark)
    assert b"b" == memory.get("range:2")
    memory.put("range:4", b"e")
    memory.remove("range:1")
    assert ["range:2", "range:3", "range:4"] == memory.names("range:")
    assert ["other"] == memory.names("o")
    memory.flush()
    assert {"get": 2, "keys": 1, "put": 1, "remove": 1} == dict(spark.calls)
    assert ["other", "range:2", "range:3", "range:4"] == KeyedMemory(spark, spark).names("")


def test_what_was_put_is_seen_before_it_is_written() -> None:
    """Within a batch a memory says what was put last, although nothing is written before its end."""
    spark = FakeSpark()
    memory = KeyedMemory(spark, spark)
    memory.put("range:1", b"a")
    memory.put("small", b"b")
    assert (b"a", b"b", {}) == (memory.get("range:1"), memory.get("small"), spark.rows)
    memory.remove("range:1")
    memory.remove("small")
    assert (None, None) == (memory.get("range:1"), memory.get("small"))


def test_a_memory_in_which_nothing_is_left_takes_no_room() -> None:
    """A subject of which nothing is to be remembered leaves no row behind."""
    spark = FakeSpark()
    remember(spark, small=b"a", range__1=b"b")
    memory = KeyedMemory(spark, spark)
    for name in memory.names(""):
        memory.remove(name)
    memory.flush()
    assert {} == spark.rows


def test_a_timer_that_is_put_off_is_left_standing() -> None:
    """A time-out that moves on with each renewal costs no timer in each batch: it goes off once in vain, and is then set anew."""
    spark = FakeSpark()
    for due_ms in (1_000, 2_000, 3_000):
        memory = KeyedMemory(spark, spark)
        memory.wake_at(due_ms)
        memory.flush()
    assert ({1_000}, 3_000) == (spark.timers, spark.due_ms())
    assert [] == spark.advance({"broker": None}, "broker:b1", 1_500)  # type: ignore[dict-item]  # Nobody may be asked.
    assert ({3_000}, 3_000) == (spark.timers, spark.due_ms())


def test_a_timer_that_comes_sooner_replaces_the_one_that_stands() -> None:
    """Spark keeps one timer for each subject, at or before the moment that is wanted."""
    spark = FakeSpark()
    for due_ms in (3_000, 1_000):
        memory = KeyedMemory(spark, spark)
        memory.wake_at(due_ms)
        memory.flush()
    assert ({1_000}, 1) == (spark.timers, spark.calls["delete"])


def test_a_timer_taken_back_wakes_nobody_and_leaves_nothing() -> None:
    """After a timer that is no longer wanted has gone off, nothing remembers it."""
    spark = FakeSpark()
    for due_ms in (1_000, None):
        memory = KeyedMemory(spark, spark)
        memory.wake_at(due_ms)
        memory.flush()
    assert spark.due_ms() is None
    assert [] == spark.advance({"broker": None}, "broker:b1", 1_500)  # type: ignore[dict-item]  # As above.
    assert ({}, set()) == (spark.rows, spark.timers)


def test_a_finding_of_another_moment_is_the_same() -> None:
    """Who reads the log anew in other batches finds again what was found, and those who keep it must know that."""
    first = Finding(rule="served_past_lease", subject="bundle:t/n/x", offsets=(9,), at_ms=1_000, text="a", command="c")
    [frame] = emitted([first, replace(first, at_ms=2_000), replace(first, text="b")])
    once, again, other = frame["ordinal"]
    assert (True, False) == (once == again, once == other)


def test_findings_as_rows() -> None:
    """A row has the identity of its finding, whichever task and batch it was found in; without findings there is no frame."""
    first = Finding(rule="hole", subject="namespace:t/n", offsets=(3, 9), at_ms=1_700_000_000_123, text="a", command="c", publisher="b1")
    second = Finding(rule="hole", subject="namespace:t/m", offsets=(9,), at_ms=1_700_000_000_123, text="a", command="c")
    [frame] = emitted([first, second])
    assert [first, second] == [parse_finding(body) for body in frame["body"]]
    assert [(9, "findings", "hole", "b1"), (9, "findings", "hole", None)] == list(
        zip(frame["offset"], frame["table"], frame["kind"], frame["publisher"], strict=True)
    )
    assert "2023-11-14 22:13:20.123000" == str(frame["at"][0])
    [again] = emitted([second])
    assert (frame["ordinal"][1], 2) == (again["ordinal"][0], len(set(frame["ordinal"])))
    assert [] == list(emitted([]))
