"""A test of equipoise/examples/shadows.py, as users would write one for their own program."""

from __future__ import annotations

from equipoise.pytest import MovesAtEveryAwait


def test_what_was_answered_survives_a_kill(equipoise_moves: MovesAtEveryAwait) -> None:
    app = "equipoise.examples.shadows:app"
    for programs in equipoise_moves(app, "iot/shadows", "lamp", kills=True):
        for level in range(3):
            programs.request("PUT", "/devices/lamp/desired", json={"level": level})
        shadow = programs.request("GET", "/devices/lamp").json()
        assert {"reported": {}, "desired": {"level": 2}} == shadow
