"""Check every `DecisionLog` for what brokers/decision_log promises, and what only files can
suffer.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from equipoise.brokers.balancing.decisions import DecisionLog
from equipoise.brokers.decision_log import open_decision_log
from equipoise.brokers.decision_log.sqlite import SqliteDecisionLog
from equipoise.channel.core.errors import CallerError, PeerError
from equipoise.channel.log.open_log import log_path, open_log
from tests.decisions import AT_MS, idle, move, shed


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One kind of decision log. `url_in` returns the URL of a new channel, given a folder and the
    fixtures.
    """

    id: str
    url_in: Callable[[Path, pytest.FixtureRequest], str]


ADAPTERS = (
    Adapter(id="memory", url_in=lambda folder, _: f"memory:{folder}"),
    Adapter(id="sqlite", url_in=lambda folder, _: f"sqlite:{folder}/log.db?synchronous=normal"),
    Adapter(id="kafka", url_in=lambda _, request: _topic_url(request)),
)


def _topic_url(request: pytest.FixtureRequest) -> str:
    kafka = request.getfixturevalue("kafka")
    return f"kafka://{kafka.address}/{kafka.topic('decisions')}"


@pytest.fixture(
    params=[
        pytest.param(each, id=each.id, marks=[pytest.mark.integration] * (each.id == "kafka"))
        for each in ADAPTERS
    ]
)
def open_decisions(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], DecisionLog]]:
    """The opener of handles beside one new channel, for each adapter. One handle stays open, so
    that memory lives on.
    """
    url = request.param.url_in(tmp_path, request)
    if log_path(url) is not None:
        open_log(url).close()
    held = open_decision_log(url)
    yield lambda: open_decision_log(url)
    held.newest(1)


def test_a_new_log_is_empty(open_decisions: Callable[[], DecisionLog]) -> None:
    assert [] == list(open_decisions().newest(10))


def test_what_is_written_is_read_by_every_handle(open_decisions: Callable[[], DecisionLog]) -> None:
    """Decisions keep their order of arrival, whatever their time."""
    one, other = open_decisions(), open_decisions()
    written = [
        shed(AT_MS + 5),
        idle(AT_MS),
        replace(shed(moves=0), kind="split", counted={("Success", "Topics"): 1}),
    ]
    for place, decision in enumerate(written):
        (one, other)[place % 2].write(decision)
    assert written == list(one.newest(10)) == list(other.newest(10))


def test_the_newest_are_the_last_that_came(open_decisions: Callable[[], DecisionLog]) -> None:
    """Oldest first."""
    log = open_decisions()
    for number in range(5):
        log.write(idle(AT_MS + number))
    assert [AT_MS + 3, AT_MS + 4] == [decision.at_ms for decision in log.newest(2)]
    assert [] == list(log.newest(0))
    log.write(idle(AT_MS + 5))
    assert [AT_MS + 4, AT_MS + 5] == [decision.at_ms for decision in log.newest(2)]


def test_a_round_of_many_moves_is_kept(open_decisions: Callable[[], DecisionLog]) -> None:
    """It counts the moves that were left out."""
    log = open_decisions()
    moves = tuple(replace(move(number), reason="x" * 1_000) for number in range(2_000))
    log.write(replace(shed(), moves=moves, counted={("Success", "Overloaded"): 2_000}))
    (found,) = log.newest(1)
    assert 2_000 == len(found.moves) + found.moves_left_out
    assert moves[: len(found.moves)] == found.moves
    assert 100 < len(found.moves)


def test_a_log_of_another_kind_has_no_decisions() -> None:
    with pytest.raises(CallerError, match="kafka"):
        open_decision_log("kafka:localhost:9092/channel")
    with pytest.raises(CallerError, match="no decision log"):
        open_decision_log("ftp:log")


# --- what only files can suffer ---


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    with closing(open_log(f"sqlite:{path}")) as log:
        log.append([b"a"], timeout_ms=10_000)
    return path


def edit(path: Path, *statements: str) -> None:
    """Change the file as another program might."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def entries(path: Path) -> list[bytes]:
    with closing(open_log(f"sqlite:{path}", create=False)) as log:
        return [entry.data for entry in log.read(1, limit=10)]


def test_the_channel_stands_beside_its_decisions(path: Path) -> None:
    """A channel stays whole if it was open at the first decision, and if it is opened, claimed or
    copied afterwards.
    """
    with closing(open_log(f"sqlite:{path}")) as log:
        open_decision_log(f"sqlite:{path}").write(shed())
        log.append([b"b"], timeout_ms=10_000)
        log.history_snapshot().claim(timeout_ms=10_000)
    copy = path.with_name("copy.db")
    edit(path, f"VACUUM INTO '{copy}'")
    assert [b"a", b"b"] == entries(path) == entries(copy)
    assert [shed()] == list(open_decision_log(f"sqlite:{copy}").newest(10))


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE decisions",
        "CREATE INDEX by_time ON decisions (at_ms)",
        "ALTER TABLE decisions ADD COLUMN remark TEXT",
        "UPDATE decisions SET document = 'none'",
        "UPDATE decisions SET document = x'ff'",
        "UPDATE decisions SET document = 5",
    ],
)
def test_whatever_becomes_of_the_table_the_channel_stands(path: Path, damage: str) -> None:
    """A change of the table by another program does not affect the channel, and the next decision
    is kept.
    """
    log = open_decision_log(f"sqlite:{path}")
    log.write(shed())
    edit(path, damage)
    assert [b"a"] == entries(path)
    log.write(idle())
    assert [idle()] == list(log.newest(1))


def test_a_table_of_another_program_is_told(path: Path) -> None:
    """The error names the file."""
    edit(path, "CREATE TABLE decisions (id INTEGER)")
    log = open_decision_log(f"sqlite:{path}")
    with pytest.raises(PeerError, match=r"log\.db"):
        log.write(shed())
    with pytest.raises(PeerError, match=r"log\.db"):
        log.newest(1)
    assert [b"a"] == entries(path)


def test_the_oldest_decisions_go(path: Path) -> None:
    log = SqliteDecisionLog(str(path), name="a log", rows_max=3)
    for number in range(5):
        log.write(idle(AT_MS + number))
    assert [AT_MS + 2, AT_MS + 3, AT_MS + 4] == [decision.at_ms for decision in log.newest(10)]


def test_the_table_can_be_read_by_sql(path: Path) -> None:
    """Time, broker, kind, strategy, result and cause are columns."""
    open_decision_log(f"sqlite:{path}").write(shed())
    with closing(sqlite3.connect(path)) as connection:
        [row] = connection.execute(
            "SELECT at_ms, broker, kind, strategy, result, cause FROM decisions"
        ).fetchall()
        [(document,)] = connection.execute("SELECT document FROM decisions").fetchall()
    assert (AT_MS, "a", "shed", "TransferShedder", "Success", "Overloaded") == row
    assert ["t/n/0", "t/n/1"] == [each["bundle"] for each in json.loads(document)["moves"]]


def test_a_held_lock_costs_a_decision_and_no_more_than_half_a_second(path: Path) -> None:
    """The error says so."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PeerError, match="held its lock for 500 ms"):
            open_decision_log(f"sqlite:{path}").write(shed())
    open_decision_log(f"sqlite:{path}").write(shed())
    assert [shed()] == list(open_decision_log(f"sqlite:{path}").newest(10))


def test_many_writers_lose_nothing(path: Path) -> None:
    """Threads that create the table at once create one."""

    def write(number: int) -> None:
        open_decision_log(f"sqlite:{path}").write(idle(AT_MS + number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(40)))
    assert set(range(40)) == {
        decision.at_ms - AT_MS for decision in open_decision_log(f"sqlite:{path}").newest(100)
    }


def test_no_channel_no_decisions(tmp_path: Path) -> None:
    """A missing file is not created."""
    log = open_decision_log(f"sqlite:{tmp_path}/log.db")
    with pytest.raises(PeerError, match="there is no file"):
        log.newest(1)
    with pytest.raises(PeerError, match="there is no file"):
        log.write(shed())
    assert [] == list(tmp_path.iterdir())
