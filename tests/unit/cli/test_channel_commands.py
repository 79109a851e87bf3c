"""`equipoise channel` beyond its transcripts: the history of logs that have other parts beside
them, gaps, times, or were compacted. Damaged files are in test_damaged_logs.py.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from equipoise.brokers.decision_log import DecisionLog
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.log import SnapshotRow
from equipoise.channel.core.propose import Author
from equipoise.channel.log.open_log import log_path, open_log
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.sqlite.log import SqliteLog
from equipoise.compaction.retention import Retention
from equipoise.shedder.plan import Stay
from tests.channels.carried import leave_out
from tests.channels.compacting import TIMEOUT_MS, compacted, restored_to_end
from tests.channels.folding import Channel
from tests.decisions import idle, outcome, with_plan
from tests.unit.cli.fabricated import LEFT, owned_channel, run, write
from tests.unit.cli.worlds import moved_channel


def test_show_prints_at_most_a_hundred_changes(tmp_path: Path) -> None:
    channel = Channel()
    channel.genesis()
    channel.create((*range(0, 150 * 1_000, 1_000), 0xFFFFFFFF))
    url = write(channel.entries, tmp_path)
    lines = run("channel", "show", "2", log=url).stdout.splitlines()
    assert 100 == sum(line.startswith("now ") for line in lines)
    assert 151 == len(json.loads(run("channel", "show", "2", "--json", log=url).stdout)["text"])


def test_why_prints_why_the_last_round_did_not_move_a_bundle(log: str) -> None:
    """Or why it moved nothing from its owner."""
    before = run("channel", "why", LEFT, log=log).stdout
    (owner,) = (line.split()[5].strip(",") for line in before.splitlines() if "now " in line)
    decisions = DecisionLog(log)
    for stays in (((owner, "no other has room"),), ((LEFT, "it rests"), (owner, "it is even")), ()):
        decisions.write(
            with_plan(idle(), stays=tuple(Stay(subject=name, reason=why) for name, why in stays))
        )
        last = f"why the balancer does not move it: {': '.join(stays[0])}\n" if stays else ""
        assert f"{before}{last}" == run("channel", "why", LEFT, log=log).stdout
        decisions.write(outcome())


def test_why_prints_what_came_of_the_last_move_by_the_balancer(log: str) -> None:
    """Decisions that cannot be read leave it out."""
    before = run("channel", "why", LEFT, log=log).stdout
    (moved,) = outcome().plan.moves
    decisions = DecisionLog(log)
    decisions.write(
        replace(with_plan(outcome(), moves=(replace(moved, bundle=LEFT),)), durations_ms={LEFT: 12})
    )
    decisions.write(outcome())
    loads = (
        "a had 160 % of the mean load, 120 % was predicted, 125 % was measured; b had 40 % of the"
        " mean load"
    )
    line = (
        f"{LEFT}: a -> b; took 12 ms, 10 ms was predicted; {loads}, 80 % was predicted, not"
        " measured: t/n/7 moved, too"
    )
    assert (
        f"{before}its last move by the balancer: {line}\n"
        == run("channel", "why", LEFT, log=log).stdout
    )
    assert (
        line
        == json.loads(run("channel", "why", LEFT, "--json", log=log).stdout.splitlines()[-1])[
            "outcome"
        ]
    )
    with closing(sqlite3.connect(f"{log_path(log)}.observations")) as connection:
        connection.execute("ALTER TABLE decisions RENAME COLUMN document TO other")
        connection.commit()
    assert before == run("channel", "why", LEFT, log=log).stdout


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("tenant/ns/key", "tenant/ns key"),
        ("tenant/ns/a key/0x1", "tenant/ns 'a key/0x1'"),
        ("tenant/ns", "tenant/ns KEY"),
        ("key", "NAMESPACE key"),
    ],
)
def test_why_says_how_to_ask_for_a_key(log: str, given: str, meant: str) -> None:
    result = run("channel", "why", given, log=log)
    assert 2 == result.exit_code
    assert result.stderr.endswith(f"before it: equipoise channel why {meant}\n"), result.stderr
    malformed = run("channel", "why", "tenant/ns/0x0_0x1", log=log)
    assert "is not a bundle name" in malformed.stderr


def test_at_accepts_an_offset_in_a_gap(tmp_path: Path) -> None:
    url = write(owned_channel().entries, tmp_path)
    with closing(SqliteLog(url.removeprefix("sqlite:"), name=url)) as log:
        leave_out(log, 100)
        log.append([b""], timeout_ms=1_000)
    assert 9 == json.loads(run("channel", "at", "99", "--json", log=url).stdout)["offset"]
    assert 100 == json.loads(run("channel", "at", "100", "--json", log=url).stdout)["offset"]
    assert (2, 2) == (
        run("channel", "at", "0", log=url).exit_code,
        run("channel", "at", "101", log=url).exit_code,
    )


def test_a_time_is_compared_with_the_clock_of_the_log(tmp_path: Path) -> None:
    channel = moved_channel()
    url = write(channel.entries[:9], tmp_path)
    between = time.time_ns() // 1_000_000 + 5
    while time.time_ns() // 1_000_000 <= between:
        time.sleep(0.001)
    with closing(open_log(url)) as log:
        log.append([data for _, data in channel.entries[9:]], timeout_ms=1_000)
    moment = datetime.fromtimestamp(between / 1_000, tz=UTC).isoformat()
    assert 9 == json.loads(run("channel", "at", moment, "--json", log=url).stdout)["offset"]
    difference = json.loads(run("channel", "diff", moment, "now", "--json", log=url).stdout)
    assert (9, 16) == (difference["before"]["offset"], difference["after"]["offset"])
    assert 16 == json.loads(run("channel", "at", "now", "--json", log=url).stdout)["offset"]


# --- compacted logs: they print what they print of a whole log ---


KEPT = Retention(unit="offsets", amount=6)
RENEWALS = 5


def renew(url: str, times: int) -> None:
    with closing(open_log(url)) as log:
        for _ in range(times):
            view = restored_to_end(log)
            broker = view.brokers["a"]
            author = Author(
                publisher="a", incarnation=broker.incarnation, sequence=broker.sequence + 1
            )
            log.append([encode(propose.renewed(author, broker))], timeout_ms=TIMEOUT_MS)


@pytest.fixture
def whole(tmp_path: Path) -> str:
    """A log of nine records, and fifteen renewals after them."""
    url = write(owned_channel().entries, tmp_path)
    renew(url, 3 * RENEWALS)
    return url


@pytest.fixture
def short(tmp_path: Path) -> str:
    """The same log, compacted after each five renewals."""
    (tmp_path / "compacted").mkdir()
    url = write(owned_channel().entries, tmp_path / "compacted")
    for _ in range(3):
        renew(url, RENEWALS)
        with closing(open_log(url)) as opened:
            compacted(opened, retain=KEPT)
    return url


@pytest.mark.parametrize(
    "command", [["show", "20"], ["diff", "18", "24"], ["tail", "--from", "19", "--renewals"]]
)
def test_a_compacted_log_prints_what_the_whole_log_prints(
    short: str, whole: str, command: list[str]
) -> None:
    result = run("channel", *command, log=short)
    assert (run("channel", *command, log=whole).stdout, 0) == (result.stdout, result.exit_code)


def test_a_compacted_copy_is_shown_from_its_beginning(whole: str, tmp_path: Path) -> None:
    with closing(open_log(whole)) as opened:
        view = restored_to_end(opened)
        for name in ("a", "b", "c"):
            opened.append(
                [
                    encode(
                        propose.left(
                            Author(
                                publisher=name,
                                incarnation=view.brokers[name].incarnation,
                                sequence=view.brokers[name].sequence + 1,
                            ),
                            view.brokers[name],
                        )
                    )
                ],
                timeout_ms=TIMEOUT_MS,
            )
    copy = f"sqlite:{tmp_path}/copy.db"
    assert 0 == run("channel", "copy", whole, copy).exit_code
    with closing(open_log(copy)) as opened:
        base = restored(opened).view.offset
        for retain in (Retention(unit="offsets", amount=100), Retention(unit="offsets", amount=50)):
            policy = propose.set_policy(
                Author(publisher="admin:ops", as_of=opened.end() + base),
                restored_to_end(opened),
                name="p",
                document={},
            )
            opened.append([encode(policy)], timeout_ms=TIMEOUT_MS)
            compacted(opened, retain=retain)
    for offset in range(base, base + 4):
        result = run("channel", "at", str(offset), "--json", log=copy)
        assert (offset, 0) == (json.loads(result.stdout)["offset"], result.exit_code)
    assert 0 == run("channel", "verify", log=copy).exit_code


def test_a_tail_from_an_offset_that_is_not_on_the_log_is_refused(short: str) -> None:
    for place, code, words in (
        ("17", 2, "no longer has the view at offset 17"),
        ("0", 2, "no longer has the view at offset 0"),
        ("25", 2, "its last record is at 24"),
    ):
        result = run("channel", "tail", "--from", place, log=short)
        assert ("", code) == (result.stdout, result.exit_code)
        assert words in result.stderr
    assert 2 == run("channel", "at", "25", log=short).exit_code
    assert 2 == run("channel", "tail", "--from", "26", "--follow", log=short).exit_code
    # A renewal, which is not shown.
    assert "" == run("channel", "tail", "--from", "24", log=short).stdout


def test_without_its_history_snapshot_a_log_starts_at_the_snapshot(short: str) -> None:
    with closing(open_log(short)) as opened:
        image = opened.history_snapshot().load()
        assert image is not None
        opened.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
        opened.history_snapshot().replace(
            [SnapshotRow("broker:a", b"{}")], image.marker, timeout_ms=TIMEOUT_MS
        )
    assert 2 == run("channel", "at", "20", log=short).exit_code
    result = run("channel", "at", "24", log=short)
    assert 0 == result.exit_code
    verified = run("channel", "verify", log=short)
    assert 1 == verified.exit_code
    assert (
        "offset 0: history_snapshot: the history snapshot up to there: its row 'broker:a' does not"
        " match its checksum\n" in verified.stdout
    )
