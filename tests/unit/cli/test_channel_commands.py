"""Test `equipoise channel` on whole logs: the full output of each command. Damaged files are in
test_damaged_logs.py.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.decision_log import DecisionLog
from equipoise.channel.core import propose
from equipoise.channel.core.ranges import key_hash, parse_bundle, topic_hash
from equipoise.channel.log.open_log import log_path, open_log
from equipoise.channel.sqlite.log import SqliteLog
from tests.channels.carried import leave_out
from tests.channels.folding import NAMESPACE, Channel
from tests.decisions import outcome, with_plan
from tests.unit.cli.fabricated import LEFT, owned_channel, run, write

TIMESTAMP_MS = 1_767_225_600_123  # 2026-01-01 00:00:00.123 UTC
NO_RECORD = b'{"kind": "\\u001b[2J"}'
PROBLEM = r"there is no kind '\x1b[2J'"
BUNDLES = (LEFT, "tenant/ns/0x80000000_0xffffffff")
BLANK = " " * len("00:00:00.123")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are local; here they are those of Greenwich."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def eventful_channel() -> Channel:
    """A bundle goes from a to b; c dies, and a transfer to it is refused; a renews; and some bytes
    are no record.
    """
    channel = owned_channel()
    transfer = propose.transfer(
        channel.admin(),
        channel.bundle(),
        destination=channel.incarnation("b"),
        reason="to spread the load",
    )
    channel.accept(replace(transfer, timestamp_ms=TIMESTAMP_MS))
    channel.accept(propose.prepared(channel.author("b"), channel.bundle()))
    channel.accept(propose.hand_over(channel.author("a"), channel.bundle()))
    channel.die("c")
    channel.put(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("c"))
    )
    channel.accept(propose.renewed(channel.author("a"), channel.broker("a")))
    channel.put_bytes(NO_RECORD)
    return channel


@pytest.fixture
def log(tmp_path: Path) -> str:
    return write(eventful_channel().entries, tmp_path)


TAIL = f"""\
9  {BLANK}  open       tenant/ns/0x80000000_0xffffffff  token 9  by b
2026-01-01
10  00:00:00.123  transfer   {LEFT}  a -> b  by admin:ops
    reason: to spread the load
11  {BLANK}  ready      {LEFT}  a -> b  by b
12  {BLANK}  handover   {LEFT}  a -> b, token 12  by a
13  {BLANK}  down       c  by admin:ops
14  {BLANK}  transfer   {LEFT}  b -> c  by admin:ops  rejected as dead_target
    dead_target: c is not alive
16  {BLANK}  unknown    by nobody known  rejected as malformed
    malformed: {PROBLEM}
"""


def test_tail_prints_the_newest_records(log: str) -> None:
    result = run("channel", "tail", "--lines", "7", log=log)
    assert (TAIL, "", 0) == (result.stdout, result.stderr, result.exit_code)


def test_tail_prints_all_records_from_an_offset(log: str) -> None:
    result = run("channel", "tail", "--from", "13", "--renewals", log=log)
    renewal = f"15  {BLANK}  renew      a  by a"
    lines = TAIL.splitlines()
    assert [*lines[6:9], renewal, *lines[9:]] == result.stdout.splitlines()


def test_tail_prints_twenty_records_by_default(tmp_path: Path) -> None:
    channel = owned_channel()
    for number in range(30):
        channel.put(
            propose.set_policy(channel.admin(), channel.view, name=f"policy-{number}", document={})
        )
    url = write(channel.entries, tmp_path)
    assert [*map(str, range(20, 40))] == [
        line.split()[0] for line in run("channel", "tail", log=url).stdout.splitlines()
    ]
    assert "" == run("channel", "tail", "-n", "0", log=url).stdout


def test_tail_prints_json(log: str) -> None:
    result = run("channel", "tail", "--from", "14", "--json", log=log)
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (14, False, "dead_target") == (first["offset"], first["accepted"], first["reason"])
    assert ("bundle", LEFT, 4, 3) == tuple(
        first["record"][name] for name in ("kind", "key", "owner", "source")
    )
    assert [
        f"transfer   {LEFT}  b -> c  by admin:ops  rejected as dead_target",
        "dead_target: c is not alive",
    ] == first["text"]
    assert (16, None, "malformed") == (second["offset"], second["record"], second["reason"])


SHOW = f"""\
10  transfer   {LEFT}  a -> b  by admin:ops
    reason: to spread the load
kind             bundle
state            assigning
owner            b
source           a
reason           to spread the load
key              {LEFT}
expected offset  7
publisher        admin:ops
as of            9
time             2026-01-01 00:00:00.123
now {LEFT} is assigning to b from a, token 7, last changed at offset 10
"""


def test_show_prints_one_record(log: str) -> None:
    result = run("channel", "show", "10", log=log)
    assert (SHOW, 0) == (result.stdout, result.exit_code)
    document = json.loads(run("channel", "show", "10", "--json", log=log).stdout)
    first, second, *_, last = SHOW.splitlines()
    assert [first.removeprefix("10  "), second.strip(), last] == document["text"]


def test_show_escapes_bytes_that_are_no_record(log: str) -> None:
    result = run("channel", "show", "16", log=log)
    text = f"16  unknown    by nobody known  rejected as malformed\n    malformed: {PROBLEM}\n"
    assert (text, 0) == (result.stdout, result.exit_code)


def test_show_prints_at_most_a_hundred_changes(tmp_path: Path) -> None:
    channel = Channel()
    channel.genesis()
    channel.create((*range(0, 150 * 1_000, 1_000), 0xFFFFFFFF))
    url = write(channel.entries, tmp_path)
    lines = run("channel", "show", "2", log=url).stdout.splitlines()
    assert 100 == sum(line.startswith("now ") for line in lines)
    assert 151 == len(json.loads(run("channel", "show", "2", "--json", log=url).stdout)["text"])


@pytest.mark.parametrize("command", ["show", "at"])
def test_an_offset_without_a_record_is_a_usage_error(command: str, log: str) -> None:
    for offset in (0, 17):
        result = run("channel", command, str(offset), log=log)
        problem = (
            f"the log {log} has no record at offset {offset}; its last record is at 16, and gaps"
            " are normal"
        )
        told = f"error: {problem}; list its records: equipoise channel tail\n"
        assert ("", told, 2) == (result.stdout, result.stderr, result.exit_code)


WHY = f"""\
5  {BLANK}  create     tenant/ns  2 bundles  by admin:ops
    {LEFT}: absent -> free, token 5
6  {BLANK}  assign     {LEFT}  to a  by admin:ops
7  {BLANK}  open       {LEFT}  token 7  by a
2026-01-01
10  00:00:00.123  transfer   {LEFT}  a -> b  by admin:ops
    reason: to spread the load
11  {BLANK}  ready      {LEFT}  a -> b  by b
12  {BLANK}  handover   {LEFT}  a -> b, token 12  by a
14  {BLANK}  transfer   {LEFT}  b -> c  by admin:ops  rejected as dead_target
    dead_target: c is not alive
now {LEFT} is owned by b, token 12, last changed at offset 12
"""


def test_why_prints_the_whole_history(log: str) -> None:
    result = run("channel", "why", LEFT, log=log)
    assert (WHY, "", 0) == (result.stdout, result.stderr, result.exit_code)


def test_why_prints_what_came_of_the_last_move_by_the_balancer(log: str) -> None:
    """Decisions that cannot be read leave it out."""
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
        f"{WHY}its last move by the balancer: {line}\n"
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
    assert WHY == run("channel", "why", LEFT, log=log).stdout


def test_why_prints_json(log: str) -> None:
    *records, ending = (
        json.loads(line)
        for line in run("channel", "why", LEFT, "--json", log=log).stdout.splitlines()
    )
    assert [5, 6, 7, 10, 11, 12, 14] == [record["offset"] for record in records]
    assert {
        "ending": [f"{LEFT} is owned by b, token 12, last changed at offset 12"],
        "outcome": None,
    } == ending


@pytest.mark.parametrize(
    ("what", "point"),
    [
        (("tenant/ns", "alice"), key_hash("alice")),
        (("persistent://tenant/ns/t",), topic_hash("persistent://tenant/ns/t")),
    ],
)
def test_why_finds_the_bundle_of_a_key_or_a_topic(
    what: tuple[str, ...], point: int, log: str
) -> None:
    of_point = run("channel", "why", *what, log=log)
    of_bundle = run(
        "channel",
        "why",
        next(
            bundle
            for bundle in BUNDLES
            if parse_bundle(bundle).low <= point < parse_bundle(bundle).high
        ),
        log=log,
    )
    assert (of_bundle.stdout, "", 0) == (of_point.stdout, of_point.stderr, of_point.exit_code)
    unknown = run("channel", "why", "other/ns", "alice", log=log)
    assert ("", 2) == (unknown.stdout, unknown.exit_code)
    assert unknown.stderr.startswith("error: there is no namespace 'other/ns'")


def test_why_refuses_an_unknown_bundle(log: str) -> None:
    unknown = run("channel", "why", "other/ns/0x00000000_0xffffffff", log=log)
    assert ("", 2) == (unknown.stdout, unknown.exit_code)
    assert unknown.stderr.startswith("error: there is no bundle 'other/ns/0x00000000_0xffffffff'")
    assert (2, "") == (
        run("channel", "why", "nonsense", log=log).exit_code,
        run("channel", "why", "nonsense", log=log).stdout,
    )


AT = f"""\
time     2026-01-01 00:00:00.123
offset   10
cluster  test
level    1
leader   a
digest   {{digest}}

broker  status  leader  incarnation  bundles  capacity  http      lease ms
a       up      yes     2            1        100       http://a  3000
b       up      no      3            2        100       http://b  3000
c       up      no      4            0        100       http://c  3000

namespace  status   bundles  owned  moving  free  on channel loss
tenant/ns  created  2        1      1       0     fence

bundle                           state      owner  source  token  last
{LEFT}  assigning  b      a       7      10
tenant/ns/0x80000000_0xffffffff  owned      b      -       9      9
"""


def test_at_shows_a_past_view(log: str) -> None:
    channel = Channel()
    for _, data in eventful_channel().entries[:10]:
        channel.put_bytes(data)
    result = run("channel", "at", "10", log=log)
    assert (AT.format(digest=f"0x{channel.view.digest():016x}"), 0) == (
        result.stdout,
        result.exit_code,
    )


def test_at_prints_json(log: str) -> None:
    document = json.loads(run("channel", "at", "16", "--json", log=log).stdout)
    assert (16, "test", "a", f"0x{eventful_channel().view.digest():016x}") == tuple(
        document[name] for name in ("offset", "cluster", "leader", "digest")
    )
    assert ["up", "up", "down"] == [broker["status"] for broker in document["brokers"]]
    assert [("owned", "b", "b")] * 2 == [
        (bundle["state"], bundle["owner"], bundle["serves"]) for bundle in document["bundles"]
    ]
    assert [NAMESPACE] == [namespace["namespace"] for namespace in document["namespaces"]]


def test_at_accepts_an_offset_in_a_gap(tmp_path: Path) -> None:
    url = write(owned_channel().entries, tmp_path)
    log = SqliteLog(url.removeprefix("sqlite:"), name=url)
    leave_out(log, 100)
    log.append([b""], timeout_ms=1_000)
    log.close()
    assert 9 == json.loads(run("channel", "at", "99", "--json", log=url).stdout)["offset"]
    assert 100 == json.loads(run("channel", "at", "100", "--json", log=url).stdout)["offset"]
    assert (2, 2) == (
        run("channel", "at", "0", log=url).exit_code,
        run("channel", "at", "101", log=url).exit_code,
    )


def test_verify_reports_that_all_is_in_order(tmp_path: Path) -> None:
    channel = eventful_channel()
    url = write(channel.entries[:-1], tmp_path)
    result = run("channel", "verify", log=url)
    told = (
        "15 records up to offset 15: 14 accepted; rejected: 1 dead_target\ndigests of brokers that"
        " agree: 1\nall is in order\n"
    )
    assert (told, 0) == (result.stdout, result.exit_code)


def test_verify_reports_an_invalid_record(log: str) -> None:
    result = run("channel", "verify", log=log)
    told = f"""\
16 records up to offset 16: 14 accepted; rejected: 1 dead_target, 1 malformed
digests of brokers that agree: 1
offset 16: malformed: {PROBLEM}
findings: 1
"""
    assert (told, 1) == (result.stdout, result.exit_code)
    document = json.loads(run("channel", "verify", "--json", log=log).stdout)
    assert (False, 1, "malformed", 16) == (
        document["in_order"],
        document["findings_count"],
        document["findings"][0]["kind"],
        document["findings"][0]["first"],
    )


def test_verify_reports_another_cluster(log: str) -> None:
    assert (0, 1) == (
        run("channel", "verify", "--cluster", "test", log=write_sound(log)).exit_code,
        run("channel", "verify", "--cluster", "other", log=log).exit_code,
    )


def write_sound(log: str) -> str:
    """The same log without the bytes at its end that are no record, beside it."""
    folder = Path(log.removeprefix("sqlite:")).parent / "sound"
    folder.mkdir()
    return write(eventful_channel().entries[:-1], folder)


def test_an_empty_log_has_no_records(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/channel.db"
    open_log(url).close()
    assert ("", 0) == (
        run("channel", "tail", log=url).stdout,
        run("channel", "tail", log=url).exit_code,
    )
    assert 0 == run("channel", "verify", log=url).exit_code
    assert 2 == run("channel", "at", "0", log=url).exit_code


@pytest.mark.parametrize(
    "command",
    [
        ("tail",),
        ("show", "1"),
        ("why", LEFT),
        ("at", "1"),
        ("diff", "1", "now"),
        ("verify",),
        ("compact",),
    ],
)
def test_reading_creates_no_log(command: tuple[str, ...], tmp_path: Path) -> None:
    result = run("channel", *command, log=f"sqlite:{tmp_path}/channel.db")
    assert 2 == result.exit_code
    assert (
        f"error: the log sqlite:{tmp_path}/channel.db has not begun: there is no file"
        in result.stderr
    )
    assert [] == list(tmp_path.iterdir())
