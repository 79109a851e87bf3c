"""The memory of strategies between rounds."""

from __future__ import annotations

from equipoise.shedder.snapshot import Memory


def test_a_move_is_remembered_at_both_ends_for_as_long_as_they_live() -> None:
    """Brokers that are gone leave nothing behind, whichever strategy runs."""
    memory = Memory(gave_ms={"gone": 1, "a": 2}, got_ms={"gone": 1}).after_move("b", "a", now_ms=7, live={"a", "b"})
    assert ({"a": 2, "b": 7}, {"a": 7}) == (memory.gave_ms, memory.got_ms)
    memory = memory.after_move("a", None, now_ms=9, live={"a"})
    assert ({"a": 9}, {"a": 7}) == (memory.gave_ms, memory.got_ms)
