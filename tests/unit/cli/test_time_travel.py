"""`equipoise channel at`, `diff` and `why` on logs whose history has times, was cut off, or was
ended.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.log.open_log import open_log
from tests.channels.carried import cut_off
from tests.channels.folding import Channel, joined
from tests.unit.cli.fabricated import LEFT, RIGHT, owned_channel, run, write

POLICY = "groups"


def moved_channel() -> Channel:
    """After nine records, at which a owns `LEFT`: it goes to b, c dies, d joins, and a policy
    comes.
    """
    channel = owned_channel()
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("b"))
    )
    channel.accept(propose.prepared(channel.author("b"), channel.bundle()))
    channel.accept(propose.hand_over(channel.author("a"), channel.bundle()))
    channel.die("c")
    channel.accept(joined("d", channel.view, instance_id="instance_id of d"))
    channel.accept(
        propose.set_policy(channel.admin(), channel.view, name=POLICY, document={"limit": 1})
    )
    channel.accept(propose.renewed(channel.author("a"), channel.broker("a")))
    return channel


@pytest.fixture
def log(tmp_path: Path) -> str:
    return write(moved_channel().entries, tmp_path)


def digest_at(offset: int) -> str:
    """The digest of the view of `moved_channel` at an offset, as it is printed."""
    channel = Channel()
    for _, data in moved_channel().entries[:offset]:
        channel.put_bytes(data)
    return f"0x{channel.view.digest():016x}"


def test_diff_prints_what_changed(log: str) -> None:
    result = run("channel", "diff", "9", "16", log=log)
    assert (
        f"""\
offset: 9 -> 16
level: 1
leader: a
digest: {digest_at(9)} -> {digest_at(16)}
~ broker a: bundles 1 -> 0
~ broker b: bundles 1 -> 2
~ broker c: status up -> down
+ broker d: status up, incarnation 14
~ bundle {LEFT}: owner a -> b, serves a -> b, token 7 -> 12, last 7 -> 12
+ policy {POLICY}: document limit=1
"""
        == result.stdout
    )
    assert ("", 0) == (result.stderr, result.exit_code)


def test_diff_prints_json(log: str) -> None:
    document = json.loads(run("channel", "diff", "9", "16", "--json", log=log).stdout)
    assert (9, 16) == (document["before"]["offset"], document["after"]["offset"])
    assert ["d"] == [row["broker"] for row in document["brokers"]["added"]]
    [bundle] = document["bundles"]["changed"]
    assert (LEFT, {"owner": "a", "serves": "a", "token": 7, "last": 7}) == (
        bundle["bundle"],
        bundle["before"],
    )
    assert {"added": [], "removed": [], "changed": []} == document["namespaces"]
    assert [{"policy": POLICY, "document": {"limit": 1}}] == document["policies"]["added"]


def test_diff_ignores_renewals(log: str) -> None:
    result = run("channel", "diff", "15", "16", log=log)
    assert ["offset: 15 -> 16", "nothing changed except renewals"] == [
        result.stdout.splitlines()[0],
        result.stdout.splitlines()[-1],
    ]
    assert "~" not in result.stdout


def test_diff_needs_the_earlier_moment_first(log: str) -> None:
    for moments in (("16", "9"), ("now", "-1h")):
        result = run("channel", "diff", *moments, log=log)
        assert ("", 2) == (result.stdout, result.exit_code)
        assert (
            f"{moments[1]} is before {moments[0]}; give the earlier moment first" in result.stderr
        )


def test_a_time_is_compared_with_the_clock_of_the_log(tmp_path: Path) -> None:
    channel = moved_channel()
    url = write(channel.entries[:9], tmp_path)
    between = time.time_ns() // 1_000_000 + 5
    while time.time_ns() // 1_000_000 <= between:
        time.sleep(0.001)
    log = open_log(url)
    log.append([data for _, data in channel.entries[9:]], timeout_ms=1_000)
    log.close()
    moment = datetime.fromtimestamp(between / 1_000, tz=UTC).isoformat()
    assert 9 == json.loads(run("channel", "at", moment, "--json", log=url).stdout)["offset"]
    difference = json.loads(run("channel", "diff", moment, "now", "--json", log=url).stdout)
    assert (9, 16) == (difference["before"]["offset"], difference["after"]["offset"])
    assert 16 == json.loads(run("channel", "at", "now", "--json", log=url).stdout)["offset"]


def truncated(url: str) -> None:
    """Cut the log off: its snapshot stands at offset 9, and its entries below 8 are gone."""
    log = open_log(url)
    cut_off(log, horizon=9, below=8)
    log.close()


def test_the_past_begins_at_the_snapshot_of_a_truncated_log(log: str) -> None:
    whole = run("channel", "at", "12", log=log).stdout
    truncated(log)
    assert whole == run("channel", "at", "12", log=log).stdout
    assert digest_at(9) in run("channel", "at", "9", log=log).stdout
    assert digest_at(16) in run("channel", "at", "now", log=log).stdout
    for moment in ("8", "-1h"):
        result = run("channel", "at", moment, log=log)
        told = (
            f"error: the log {log} no longer has the view at"
            f" {'now' if moment.startswith('-') else ''}{moment}: the records before offset 9"
        )
        assert ("", 2, True) == (result.stdout, result.exit_code, result.stderr.startswith(told))


def test_a_record_before_the_snapshot_is_not_shown(log: str) -> None:
    truncated(log)
    result = run("channel", "show", "8", log=log)
    told = (
        f"error: the log {log} no longer has the view at offset 8: the records before offset 9 have"
        " been compacted"
    )
    assert ("", 2, True) == (result.stdout, result.exit_code, result.stderr.startswith(told))
    assert 0 == run("channel", "show", "10", log=log).exit_code
    assert ["10"] == [
        line.split()[0]
        for line in run("channel", "tail", "--from", "10", log=log).stdout.splitlines()
    ][:1]


def test_why_begins_at_the_snapshot_of_a_truncated_log(log: str) -> None:
    story = run("channel", "why", LEFT, log=log).stdout.splitlines()
    truncated(log)
    result = run("channel", "why", LEFT, log=log)
    assert [
        "the history begins after offset 9: this log has no earlier records",
        f"then {LEFT} is owned by a, token 7, last changed at offset 7",
        *story[-4:],
    ] == result.stdout.splitlines()
    first, *_, last = (
        json.loads(line)
        for line in run("channel", "why", RIGHT, "--json", log=log).stdout.splitlines()
    )
    assert {
        "known_from": 9,
        "beginning": [f"{RIGHT} is owned by b, token 9, last changed at offset 9"],
    } == first
    assert {"ending", "outcome"} == set(last)
    assert 2 == run("channel", "why", "other/ns/0x00000000_0xffffffff", log=log).exit_code


def test_the_history_of_a_closed_log_can_be_read(tmp_path: Path) -> None:
    channel = moved_channel()
    for broker in ("a", "b", "d"):
        channel.die(broker)
    closing = propose.close_log(channel.admin(), channel.view)
    url = write([*channel.entries, (20, encode(closing)), (21, b"too late")], tmp_path)
    assert "the channel continues in a copy" in run("channel", "tail", log=url).stdout
    assert "20  close      log  by admin:ops" in run("channel", "show", "20", log=url).stdout
    assert f"now {LEFT} is free, token 12" in run("channel", "why", LEFT, log=url).stdout
    assert 19 == json.loads(run("channel", "at", "19", "--json", log=url).stdout)["offset"]
    assert 0 == run("channel", "diff", "9", "19", log=url).exit_code
    refused = run("bundles", "list", log=url)
    assert (4, True) == (
        refused.exit_code,
        refused.stderr.startswith(f"error: the log {url} was closed at offset 20"),
    )


@pytest.mark.parametrize("command", [("at", "now"), ("diff", "9", "now")])
def test_a_time_after_a_log_was_closed_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    channel = moved_channel()
    for broker in ("a", "b", "d"):
        channel.die(broker)
    url = write(
        [*channel.entries, (20, encode(propose.close_log(channel.admin(), channel.view)))], tmp_path
    )
    result = run("channel", *command, log=url)
    assert ("", 4) == (result.stdout, result.exit_code)
    assert "was closed at offset 20, when its channel was copied to another log" in result.stderr


@pytest.mark.parametrize("command", [("at", "{}"), ("diff", "{}", "now"), ("diff", "9", "{}")])
def test_a_time_in_the_future_is_refused(log: str, command: tuple[str, ...]) -> None:
    result = run("channel", *(each.format("2999-01-01T00:00") for each in command), log=log)
    assert ("", 2) == (result.stdout, result.exit_code)
    assert "2999-01-01T00:00 is in the future" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "command", [("at", "-1h"), ("diff", "-1h", "now"), ("at", "1970-01-01T00:00:01Z")]
)
def test_a_time_before_the_log_is_refused(log: str, command: tuple[str, ...]) -> None:
    result = run("channel", *command, log=log)
    assert ("", 2) == (result.stdout, result.exit_code)
    assert f"error: the log {log} does not have the view at " in result.stderr
    assert "its first record was appended later" in result.stderr


def test_a_moment_before_a_copy_is_refused(log: str, tmp_path: Path) -> None:
    made = f"sqlite:{tmp_path / 'copy.db'}"
    assert 0 == run("channel", "copy", log, made).exit_code
    for command in (("at", "-1h"), ("diff", "-1h", "now"), ("at", "8")):
        result = run("channel", *command, log=made)
        assert ("", 2) == (result.stdout, result.exit_code)
        assert f"error: the log {made} does not have the view at " in result.stderr
        assert "it is a copy; the records before offset" in result.stderr
    assert 0 == run("channel", "at", "now", log=made).exit_code
