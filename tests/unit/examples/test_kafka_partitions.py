"""The store of the example that owns Kafka partitions: who may write, and what a crash leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import Shard, Tasks
from equipoise.errors import PeerError
from equipoise.examples.kafka_partitions import Partitions, Results
from equipoise.pytest import MakeCluster
from tests.load.cpu_clocks import cpu_clocks


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Results]:
    """A new store."""
    with closing(Results(tmp_path / "results.db")) as store:
        yield store


def rows(path: Path) -> list[tuple[int, int, str]]:
    """The results, by partition and offset."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT partition, offset, result FROM results ORDER BY partition, offset"
        ).fetchall()


def test_the_next_owner_continues_after_the_last_commit(results: Results, tmp_path: Path) -> None:
    """Each partition on its own."""
    assert results.claim(0, 5) is None
    # Kafka leaves gaps, where it compacted or a transaction ended.
    results.put(0, 5, {0: "a", 1: "b", 7: "c"})
    assert (8, None) == (results.claim(0, 6), results.claim(1, 5))
    assert [(0, 0, "a"), (0, 1, "b"), (0, 7, "c")] == rows(tmp_path / "results.db")


def test_a_former_owner_is_refused_from_the_claim_on(results: Results, tmp_path: Path) -> None:
    """Also before the next owner has written anything; an owner that opens again under its token is
    not.
    """
    results.claim(0, 5)
    results.put(0, 5, {0: "a"})
    assert 1 == results.claim(0, 5)
    with closing(Results(tmp_path / "results.db")) as next_owner:
        assert 1 == next_owner.claim(0, 6)
        with pytest.raises(
            PeerError, match="partition 0 has been claimed under token 6, and 5 is older"
        ):
            results.put(0, 5, {1: "stale"})
        with pytest.raises(PeerError):
            results.claim(0, 5)
        next_owner.put(0, 6, {1: "b"})
    assert [(0, 0, "a"), (0, 1, "b")] == rows(tmp_path / "results.db")


def test_a_commit_that_fails_leaves_nothing(results: Results, tmp_path: Path) -> None:
    """Neither results nor the offset."""
    results.claim(0, 5)
    results.put(0, 5, {0: "a"})
    with pytest.raises(sqlite3.IntegrityError):
        results.put(0, 5, {1: "b", 0: "again"})
    assert 1 == results.claim(0, 5)
    assert [(0, 0, "a")] == rows(tmp_path / "results.db")


OWNERS = 3


@given(
    st.lists(
        st.tuples(st.integers(0, OWNERS - 1), st.sampled_from(["claim", "put"]), st.integers(1, 3)),
        max_size=30,
    )
)
def test_whoever_is_stale_each_record_has_one_result(steps: list[tuple[int, str, int]]) -> None:
    """Owners claim with rising tokens, and write what follows their own last commit. The results
    have no gap and no second writer.
    """
    with TemporaryDirectory() as folder, closing(Results(Path(folder) / "results.db")) as results:
        results.connection.execute("PRAGMA synchronous = OFF")  # Nobody cuts the power.
        play(results, steps)


def play(results: Results, steps: list[tuple[int, str, int]]) -> None:
    """Take the steps, and compare each with what must come of it."""
    # Token, and the next offset, as each owner knows them.
    owners: list[tuple[int, int]] = [(0, 0)] * OWNERS
    expected: list[str] = []
    newest = 0
    for owner, step, count in steps:
        token, offset = owners[owner]
        if step == "claim":
            newest += 1
            owners[owner] = newest, results.claim(0, newest) or 0
            assert len(expected) == owners[owner][1]
        elif token:
            batch = {offset + number: f"{token}" for number in range(count)}
            if token == newest:
                results.put(0, token, batch)
                expected += batch.values()
                owners[owner] = token, offset + count
            else:
                with pytest.raises(PeerError):
                    results.put(0, token, batch)
    assert expected == [
        text for (text,) in results.connection.execute("SELECT result FROM results ORDER BY offset")
    ]


class Message:
    """A record of a partition, or a consumer that has one of each."""

    def __init__(self, partition: int = 0) -> None:
        self.number = partition

    def error(self) -> None:
        """Return None: it was read."""

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return 5

    def consume(self, _most: int, _wait_seconds: float) -> list[Message]:
        return [Message(0), Message(1), Message(2)]


def test_a_thread_without_an_end_is_charged_for_each_partition_of_a_round(
    equipoise_cluster: MakeCluster, results: Results, tmp_path: Path
) -> None:
    """What it has processed counts where its next work begins, although its function goes on."""

    async def idle(_: Shard) -> None:
        return

    cluster = equipoise_cluster(lambda: Tasks("shop/orders", idle), brokers=1)
    (bundle,) = cluster.create("shop/orders", bundles=1)
    cluster.give(bundle, "broker-1")
    shard = Shard(cluster.ownership("shop/orders", "0"))
    account = shard.ownership.account
    before_ns = account.cpu_ns
    with cpu_clocks() as clocks:

        def process(message: object) -> str:
            clocks.use(10)
            return "done"

        partitions = Partitions("orders", 3, kafka={}, results=tmp_path / "x", process=process)
        with account.charge():
            partitions.make_round(shard, results, Message())  # type: ignore[arg-type]
            assert account.cpu_ns - before_ns == 20
    assert len(rows(tmp_path / "results.db")) == 3
