"""Tests of the program in equipoise/examples/visits.py, as users would write them for their own."""

from __future__ import annotations

from equipoise.pytest import MakeCluster, MovesAtEveryAwait

APP = "equipoise.examples.visits:app"


def test_no_visit_is_lost_wherever_the_page_moves(equipoise_moves: MovesAtEveryAwait) -> None:
    for programs in equipoise_moves(APP, "web/pages", "home"):
        visited = [programs.request("POST", "/visits/home").json() for _ in range(3)]
        assert [1, 2, 3] == [page["visits"] for page in visited]


def test_what_only_memory_has_dies_with_its_program(equipoise_cluster: MakeCluster) -> None:
    programs = equipoise_cluster(APP)
    assert programs.request("POST", "/visits/home").json()["visits"] == 1
    owner = programs.owner(programs.bundle("web/pages", "home"))
    assert owner is not None
    programs.kill(owner)
    assert programs.request("POST", "/visits/home").json()["visits"] == 1
