"""Test retention holds: unread records stay on the log while their archives are alive."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import orjson
import pytest

from equipoise.brokers.operations.access import opened
from equipoise.brokers.operations.on_channel import submit
from equipoise.channel.core import propose
from equipoise.channel.core.entries import PolicyEntry
from equipoise.channel.core.errors import InvalidName, NotFound
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import Document
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.clocks import Deadline
from equipoise.compaction.retention import (
    DAYS_LIMIT,
    DAYS_MAX,
    Held,
    hold_document,
    hold_key,
    holds_in,
)
from equipoise.spark_jobs.archive.holding import (
    AT_LEAST_EVERY_S,
    EVERY_S,
    OPEN_MS,
    OPEN_MS_MAX,
    READ_MS,
    Hold,
    release_hold,
)
from equipoise.spark_jobs.plain.archive import run_archive
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from tests.channels.compacting import NOTHING, compacted, renewed, restored_to_end, written
from tests.channels.folding import Channel, channel_with
from tests.channels.gap_log import GapLog
from tests.unit.cli.fabricated import run, write

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
FRESH: Document = hold_document(archived_to=7, at_ms=NOW_MS, days_max=DAYS_MAX)


def policies(**documents: Document) -> dict[str, PolicyEntry]:
    """Holds by their names."""
    return {
        f"archives/{name}": PolicyEntry(name=f"archives/{name}", last=1, document=document)
        for name, document in documents.items()
    }


def held(channel: Channel, archived_to: int, *, name: str = "main", days_old: int = 0) -> Channel:
    """Let an archive hold the log from what follows this offset on."""
    at_ms = time.time_ns() // 1_000_000 - days_old * DAY_MS
    document = hold_document(archived_to=archived_to, at_ms=at_ms, days_max=DAYS_MAX)
    channel.accept(
        propose.set_policy(channel.admin(), channel.view, name=hold_key(name), document=document)
    )
    return channel


def test_the_lowest_hold_counts() -> None:
    """Of several archives the one that has read least is waited for, by its name."""
    found = holds_in(
        policies(one=FRESH, two={**FRESH, "archived_to": 3}, three={**FRESH, "archived_to": 5}),
        now_ms=NOW_MS,
    )
    assert Held(archived_to=3, by="two") == found
    assert (4, 1, 0) == (found.position(0), found.position(3), found.position(99))


def test_a_hold_lapses() -> None:
    """An archive that has not moved for longer than its hold is good for is told, and not waited
    for.
    """
    old = {**FRESH, "at_ms": NOW_MS - DAYS_MAX * DAY_MS - 1}
    assert Held(archived_to=7, by="two", lapsed=("one",)) == holds_in(
        policies(one=old, two=FRESH), now_ms=NOW_MS
    )
    found = holds_in(policies(one=old), now_ms=NOW_MS)
    assert (None, ("one",)) == (found.position(0), found.lapsed)
    assert Held(archived_to=7, by="one") == holds_in(
        policies(one={**old, "days_max": 60}), now_ms=NOW_MS
    )
    ancient = {**FRESH, "at_ms": NOW_MS - DAYS_LIMIT * DAY_MS - 1, "days_max": 10**15}
    assert Held(lapsed=("one",)) == holds_in(policies(one=ancient), now_ms=NOW_MS)


@pytest.mark.parametrize("field", ["archived_to", "at_ms", "days_max"])
@pytest.mark.parametrize("value", ["x", True])
def test_what_is_no_hold_holds_nothing(field: str, value: str | bool) -> None:
    """A record that cannot be read as a hold, and a policy of another kind, keep nothing."""
    others = {"pin/main": PolicyEntry(name="pin/main", last=1, document=FRESH)}
    assert Held() == holds_in(policies(main={**FRESH, field: value}) | others, now_ms=NOW_MS)


def test_a_name_is_checked() -> None:
    """A hold has a name of some letters, as all policies have."""
    with pytest.raises(InvalidName, match="name of an archive"):
        hold_key("a b")


def test_what_is_not_archived_stays(log: GapLog) -> None:
    """A compaction that would remove all keeps what an archive has not read, says for whom, and
    removes it once it has been read.
    """
    channel = written(log, held(renewed(channel_with("a:1"), 10), 5))
    done = compacted(log)
    assert (6, "main", ()) == (done.start, done.held_by, done.lapsed)
    written(log, held(channel, channel.view.offset))
    done = compacted(log)
    assert (channel.view.offset, "main") == (done.start, done.held_by)


def test_a_hold_that_keeps_no_more_than_the_rest_is_not_named(log: GapLog) -> None:
    """Where the retention keeps as much anyway, nobody is told that an archive does."""
    channel = written(log, held(renewed(channel_with("a:1"), 10), 5))
    done = compacted(log, retain=replace(NOTHING, amount=channel.view.offset))
    assert (1, None) == (done.start, done.held_by)


def test_a_dead_archive_does_not_fill_the_disk(log: GapLog) -> None:
    """A hold that is too old is as none, and its archive is named."""
    channel = written(log, held(renewed(channel_with("a:1"), 10), 5, days_old=DAYS_MAX + 1))
    done = compacted(log)
    assert (channel.view.offset + 1, None, ("main",)) == (done.start, done.held_by, done.lapsed)


def view_of(url: str) -> View:
    """What a log comes to."""
    with closing(open_log(url)) as log:
        return restored_to_end(log)


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def say(url: str) -> int:
    """Let somebody write a record that is no hold, and be accepted at this offset."""
    with opened(url, timeout_ms=10_000, publisher="admin:alice") as access:
        return submit(
            access,
            lambda view, author: propose.set_policy(author, view, name="pin/main", document={}),
        ).offset


def reach(hold: Hold, url: str) -> int:
    """Let an archive come to the log's end, and say so if it is time; where the log ends after
    it.
    """
    with closing(open_log(url)) as log:
        hold.archived(log.end())
        return log.end()


def test_an_archive_moves_its_hold(tmp_path: Path) -> None:
    """The hold is written at once, then no sooner than every so often, not for its own record, and
    in any case once a day.
    """
    channel = channel_with("a:1")
    url, told, clock = write(channel.entries, tmp_path), list[str](), Clock()
    hold = Hold(url, "main", note=told.append, now_s=clock)

    def archived_to(position: int | None, after_s: float) -> object:
        clock.now_s += after_s
        hold.archived(-1 if position is None else position - 1)
        view = view_of(url)
        return view.policies["archives/main"].document["archived_to"] if view.policies else None

    end = channel.view.offset
    assert [None, end] == [archived_to(None, 0), archived_to(end + 1, 0)]
    assert end == archived_to(end + 2, EVERY_S), "that is its own record"
    said = say(url)
    assert [end, said] == [archived_to(said + 1, EVERY_S - 1), archived_to(said + 1, 1)]
    written_ms = view_of(url).policies["archives/main"].document["at_ms"]
    assert said == archived_to(said + 1, AT_LEAST_EVERY_S)
    assert written_ms != view_of(url).policies["archives/main"].document["at_ms"]
    hold.close()
    assert [] == told
    said = say(url)
    assert ("archives/main", said + 1) == release_hold(url, "main")
    with pytest.raises(NotFound, match="archives/main"):
        release_hold(url, "main")


def test_a_hold_that_is_lifted_is_told(tmp_path: Path) -> None:
    """`--release` says where the record stands that did it, to people and to programs."""
    url, told = write(channel_with("a:1").entries, tmp_path), list[str]()
    screen = Screen(result=told.append, note=told.append)
    for name, as_json in (("one", False), ("two", True)):
        hold = Hold(url, name, note=told.append)
        hold.archived(0, at_once=True)
        hold.close()
        options = ArchiveOptions(
            log_url=url, archive=tmp_path / "unused", release=name, as_json=as_json
        )
        assert 0 == run_archive(options, screen)
    text, document = told
    said = orjson.loads(document)
    assert ("archives/two", say(url) - 1) == (said["policy"], said["offset"])
    assert (
        f"accepted at offset {said['offset'] - 2}: released the hold archives/one; compaction no"
        " longer waits" in text
    )


def test_archives_do_not_follow_one_another(tmp_path: Path) -> None:
    """Two archives that hold a log on which nobody else writes fall silent, both follow what is
    said then, and write once a day.
    """
    url, told, clock = write(channel_with("a:1").entries, tmp_path), list[str](), Clock()
    holds = [Hold(url, name, note=told.append, now_s=clock) for name in ("one", "two")]

    def ends(times: int) -> list[int]:
        found = []
        for _ in range(times):
            found += [reach(hold, url) for hold in holds]
            clock.now_s += EVERY_S
        return found

    assert 1 == len(set(ends(10)[1:]))
    said = say(url)
    assert {said + 2} == set(ends(10)[1:])
    assert [said] == [view_of(url).policies["archives/one"].document["archived_to"]]
    clock.now_s += AT_LEAST_EVERY_S
    assert {said + 4} == set(ends(10)[1:])
    for hold in holds:
        hold.close()
    assert [] == told


def test_what_a_hold_has_not_read_itself_counts(tmp_path: Path) -> None:
    """An archive that is behind the snapshot from which its hold began to read moves the hold all
    the same, record by record.
    """
    channel = renewed(channel_with("a:1"), 20)
    url, told, clock = write(channel.entries, tmp_path), list[str](), Clock()
    with closing(open_log(url)) as log:
        compacted(log)
    hold = Hold(url, "main", note=told.append, now_s=clock)
    for reached in (5, 9):
        hold.archived(reached)
        assert reached == view_of(url).policies["archives/main"].document["archived_to"]
        clock.now_s += EVERY_S
    hold.close()
    assert [] == told


def test_a_snapshot_that_loads_slowly_is_given_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the view was not there in time the next try waits twice as long, up to a bound, so that
    one comes to the end of it.
    """
    waited, told, clock = list[int](), list[str](), Clock()

    def slowly(*_: object, **__: object) -> Reader:
        raise Deadline.after(timeout_ms=waited[-1]).exceeded("reading the snapshot")

    class Patient(Deadline):
        """Notes how long it is."""

        @classmethod
        def after(cls, *, timeout_ms: int) -> Deadline:
            """See `Deadline.after`."""
            waited.append(timeout_ms)
            return Deadline.after(timeout_ms=timeout_ms)

    monkeypatch.setattr("equipoise.spark_jobs.archive.holding.Deadline", Patient)
    url = write(channel_with("a:1").entries, tmp_path)
    hold = Hold(url, "main", note=told.append, now_s=clock)
    with monkeypatch.context() as slow:
        slow.setattr("equipoise.spark_jobs.archive.holding.restored", slowly)
        for _ in range(7):
            reach(hold, url)
            clock.now_s += EVERY_S
    assert [OPEN_MS, 2 * OPEN_MS, 4 * OPEN_MS] == waited[:3]
    assert OPEN_MS_MAX == waited[-1] == max(waited)
    assert len(waited) == len(told)
    reach(hold, url)
    hold.close()
    assert "archives/main" in view_of(url).policies


def test_a_batch_does_not_wait_for_a_long_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a channel that takes long to read each batch reads a part, and the hold is written by the
    one that comes to the end of it.
    """

    class Impatient(Deadline):
        """Comes after the first part of the channel."""

        parts: ClassVar[list[str]] = []

        def check(self, what: str) -> None:
            """See `Deadline.check`."""
            self.parts.append(what)
            if self.timeout_ms == READ_MS and not len(self.parts) % 2:
                raise self.exceeded(what)

    monkeypatch.setattr("equipoise.spark_jobs.archive.holding.Deadline", Impatient)
    monkeypatch.setattr("equipoise.channel.log.blocking_view.READ_ENTRIES_MAX", 5)
    channel = renewed(channel_with("a:1"), 20)
    url, told, clock = write(channel.entries, tmp_path), list[str](), Clock()
    hold = Hold(url, "main", note=told.append, now_s=clock)
    batches = 0
    while "archives/main" not in view_of(url).policies:
        batches += 1
        hold.archived(batches)
        clock.now_s += 1
    hold.close()
    assert batches == view_of(url).policies["archives/main"].document["archived_to"]
    assert channel.view.offset // 5 < batches
    [line] = told
    assert line.endswith("the channel is read up to position 5; each batch continues")


def test_a_hold_is_dated_by_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive whose machine is a month behind, or a year ahead, writes the time of the log's
    newest entry all the same.
    """
    channel = channel_with("a:1")
    told = list[str]()
    now_ns = time.time_ns()
    for wrong_ns in (-31 * DAY_MS * 1_000_000, 365 * DAY_MS * 1_000_000):
        # A log of its own: the record of a hold gets its time from the wrong clock, too.
        (folder := tmp_path / str(wrong_ns)).mkdir()
        url = write(channel.entries, folder)
        monkeypatch.setattr(time, "time_ns", lambda wrong_ns=wrong_ns: now_ns + wrong_ns)
        hold = Hold(url, "main", note=told.append)
        hold.archived(1, at_once=True)
        hold.close()
        monkeypatch.undo()
        at_ms = view_of(url).policies["archives/main"].document["at_ms"]
        assert isinstance(at_ms, int)
        assert abs(at_ms - now_ns // 1_000_000) < DAY_MS
    assert [] == told


def test_a_failed_write_is_tried_again_soon(tmp_path: Path) -> None:
    """A failure does not stop the archive: it is reported, and the next try comes after the time in
    the message.
    """
    told, clock = list[str](), Clock()
    hold = Hold(f"sqlite:{tmp_path}/nowhere.db", "main", note=told.append, now_s=clock)
    for after_s in (0, EVERY_S - 1, 1):
        clock.now_s += after_s
        hold.archived(1)
    assert 2 == len(told)
    assert "cannot update the hold archives/main" in told[0]


def test_the_command_names_who_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever compacts by hand is told for whom more is kept, and for whom no longer."""
    monkeypatch.setattr(
        "equipoise.compaction.compactor.newest_ms",
        lambda *_, **__: time.time_ns() // 1_000_000 + 3_600_000,
    )
    channel = held(held(renewed(channel_with("a:1"), 10), 5), 3, name="old", days_old=DAYS_MAX + 1)
    result = run(
        "channel", "compact", "--retain", "0 offsets", log=write(channel.entries, tmp_path)
    )
    assert (
        "the log now begins at offset 6, instead of 1; more is kept for the archive main, which has"
        " not read it" in result.stdout
    )
    assert result.stdout.endswith("; nothing is kept any longer for old, whose hold has lapsed\n")
