"""Whole programs in virtual time: what a test finds, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.brokers.sharded.virtual_programs import Programs
from equipoise.brokers.testing.moving_cluster import moves_at_every_await
from equipoise.errors import CallerError, PeerError

PROGRAM = """
import asyncio
from dataclasses import dataclass
from fastapi import FastAPI
from equipoise import Equipoise, Keyed

@dataclass
class Stock:
    sold: int = 0

app, bare, beside = FastAPI(), FastAPI(), {}
stocks = Keyed("shop/stock", Stock)

@app.post("/{item}")
@stocks.route("item")
async def sell(item: str, stock: Stock) -> int:
    stock.sold += 1
    return stock.sold

@app.post("/{item}/beside")
@stocks.route("item")
async def sell_beside(item: str, stock: Stock) -> int:
    beside[item] = beside.get(item, 0) + 1
    return beside[item]

@app.post("/{item}/slowly")
@stocks.route("item")
async def sell_slowly(item: str, stock: Stock) -> int:
    await asyncio.sleep(0)
    stock.sold += 1
    return stock.sold

Equipoise("sqlite:a.db", stocks, cluster="a", address="http://127.0.0.1:8000").install(app)
"""

WRAPPED = """
from stock_program import Equipoise, FastAPI, Keyed, Stock

program, stocks = FastAPI(), Keyed("shop/stock", Stock)

@program.post("/{item}")
async def sell(item: str) -> int:
    async with stocks.at(item) as stock:
        stock.sold += 1
        return stock.sold

member = Equipoise("sqlite:a.db", stocks, cluster="a", address="http://127.0.0.1:8000")
app = member.wrap(program, keys={"/{key}": "shop/stock"})
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stock_program.py").write_text(PROGRAM)
    (tmp_path / "wrapped_program.py").write_text(WRAPPED)
    monkeypatch.syspath_prepend(tmp_path)


def sold(path: str, *, kills: bool = False) -> set[tuple[int, ...]]:
    """Return what three calls were answered, over all runs."""
    found = set()
    for programs in moves_at_every_await(
        lambda at: Programs("stock_program:app", "shop/stock", "tea", at=at, kills=kills),
        about="tea",
    ):
        found.add(tuple(programs.request("POST", path).json() for _ in range(3)))
    return found


def test_state_that_is_not_in_the_object_is_found_to_be_lost() -> None:
    assert {(1, 2, 3)} == sold("/tea")
    assert (1, 2, 3) in sold("/tea/beside")
    assert len(sold("/tea/beside")) > 1


def test_a_call_whose_program_is_killed_is_not_repeated_unless_it_may_be() -> None:
    with pytest.raises(PeerError, match="nobody knows whether POST /tea/slowly was executed"):
        sold("/tea/slowly", kills=True)


def test_a_wrapped_program_runs_as_an_installed_one_does() -> None:
    with Programs("wrapped_program:app") as programs:
        assert [programs.request("POST", "/tea").json() for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        ("nowhere_program:app", "there is no module nowhere_program"),
        ("stock_program:bare", "stock_program:bare is no app with an Equipoise"),
        ("stock_program:missing", "stock_program:missing is no app with an Equipoise"),
    ],
)
def test_an_app_without_a_program_is_named(app: str, problem: str) -> None:
    with pytest.raises(CallerError, match=problem), Programs(app):
        pass
