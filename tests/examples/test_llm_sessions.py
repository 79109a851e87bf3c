"""A test of the program in equipoise/examples/llm_sessions.py."""

from __future__ import annotations

from equipoise.pytest import MovesAtEveryAwait


def test_a_conversation_is_read_again_only_where_it_moves(
    equipoise_moves: MovesAtEveryAwait,
) -> None:
    """Without a move, each call reads the new message alone."""
    app = "equipoise.examples.llm_sessions:app"
    for programs in equipoise_moves(app, "llm/conversations", "ann"):
        replies = [
            programs.request("POST", f"/conversations/ann?message={word}").json()
            for word in ("one", "two", "three")
        ]
        assert [f"You said {word!r}." for word in ("one", "two", "three")] == [
            reply["text"] for reply in replies
        ]
        read = [reply["read"] for reply in replies]
        assert read in ([1, 1, 1], [1, 3, 1], [1, 1, 5])
        assert programs.move is not None or read == [1, 1, 1]
