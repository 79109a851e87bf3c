"""A channel copied to another log: the old one is closed for good, and the new one goes on above its end.

May live here: the copy of a live channel, and the beginning of a log that goes on above another one, which an import makes too.

How a channel is copied
1. The target's snapshot is claimed, and a target that holds anything is refused, so that a mistaken URL costs nothing. Only what
   a copy left that died after step 4 may be there, and is compared with the source when that has been read.
2. The source is folded to its end.
3. Brokers that look alive are listened for, for as long as the longest of their leases and margins. One that says anything
   is alive, and the copy is refused. One that said nothing is declared down, with its nonce from the log as the proof: the
   record is based on the last one that was heard of it, so a renewal that came in between makes it stale.
4. A target that was made aside takes its name, so that it is found again whatever happens from here on. It is looked at again,
   and the source is closed, by a record that names the target: its level is raised to one that no version supports. That is
   accepted once nobody is alive, and is the last record that any reader folds, those of versions too that know nothing of
   copies. So no broker can go on with it, also one that was stopped in its sleep and wakes, and no token can be issued twice.
5. The target gets its genesis, which must be its first entry. Its base is the offset at which the source was closed, so every
   offset and token of the target lies above all of the source. Until its snapshot is there nobody can begin with such a log; and
   a log that somebody else has begun meanwhile gets no snapshot, so that it cannot be taken for a copy.
6. The view just before the source was closed is written to the target's snapshot, in one transaction. The target is restored as
   a broker would restore it, and must come to the same digest.

A copy that died after step 4 is made again with `again`, which reads the source up to where it was closed. Two copies would
issue the same tokens, so that is done only to the log for which the source was closed, unless somebody who knows that no broker
can ever start on that one says so.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from equipoise.brokers.errors import BrokersAlive, CopiedElsewhere, Rejected, TargetNotEmpty
from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.errors import Bug, CompactedSnapshotDamaged, LogClosed, LogNotBegun
from equipoise.channel.core.log import FIRST_OFFSET, READ_ENTRIES_MAX, Entry, Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import AnyRecord, Genesis, LevelRecord
from equipoise.channel.core.snapshot_store import CompactedSnapshot, Progress, SnapshotStore, unwatched
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import propose as propose_and_wait
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.snapshots.snapshot_rows import decode_marker, encode_marker, marker_of, rows_of
from equipoise.channel.system.deadline import Deadline

LOOK_MS: Final = 200
"""How long one wait for the word of a broker lasts, and so how much later than its deadline a copy may end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was copied: the view of `cluster`, to a log whose offsets go on above `base`, and which now has `digest`.

    `declared_dead` are the brokers that looked alive, said nothing for their lease and margin, and were declared down.
    """

    cluster: str
    base: int
    digest: int
    brokers: int
    namespaces: int
    bundles: int
    declared_dead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Closing:
    """What the level of the rules was, and the offset of the record that set it, before the record that closed the log.

    And where that says that the channel goes on, if it says so: earlier versions did not.
    """

    level: int
    level_last: int
    copied_to: str | None = None
    identity: str | None = None


def copy(
    source: Log,
    target: Log,
    *,
    publisher: str,
    deadline: Deadline,
    again: bool = False,
    other_is_lost: bool = False,
    name_target: Callable[[], Log] | None = None,
    progress: Progress = unwatched,
) -> Copied:
    """Copy the channel on `source` to `target`, and close `source`; `publisher` is `admin:NAME`. Both logs are open.

    A target that does not bear its name yet gets it by `name_target`, which gives a handle on it under that name. `progress`
    counts the entries of the source that have been read.

    Raises `TargetNotEmpty`, `BrokersAlive`, `LogClosed` if the source was copied before and `again` is not set,
    `CopiedElsewhere` if that was to another log and `other_is_lost` is not set, `LogNotBegun` if there is nothing to copy,
    `Rejected` if the source would not be closed, `DeadlineExceeded`, and what `restored`, `propose` and the ports raise.
    """
    compacted_snapshot = _claimed(target, deadline)  # 1.
    found = _found(target, compacted_snapshot, deadline)
    copier = _Copier(source, publisher=publisher, deadline=deadline)
    closing = copier.read_to_end(progress)  # 2.
    if closing is not None and not again:
        raise LogClosed(log=source.name, offset=copier.view.offset)
    if copier.view.genesis is None:
        raise LogNotBegun(log=source.name, problem="no broker has started on it yet")
    if closing is None and found != _NOTHING:  # It cannot be this one's, which has not been closed for any.
        raise _other_copy(target)
    if closing is not None and closing.identity not in (None, target.identity) and not other_is_lost:
        raise CopiedElsewhere(log=source.name, offset=copier.view.offset, copied_to=closing.copied_to, target=target.name)
    declared_dead = copier.declare_silent_dead() if closing is None else ()  # 3.
    if name_target is not None:  # 4.
        target = name_target()
        compacted_snapshot = _claimed(target, deadline)
    if closing is None:
        if _found(target, compacted_snapshot, deadline) != _NOTHING:
            raise _begun_meanwhile(target)
        closing = copier.close(target)
    view = copier.view
    view.go_on_above(view.offset, level=closing.level, level_last=closing.level_last)
    if not found.is_of(view):
        raise _other_copy(target)
    _begin_above(target, compacted_snapshot, view, found, deadline)  # 5., 6.
    return Copied(
        cluster=view.cluster or "",
        base=view.base,
        digest=view.digest(),
        brokers=len(view.brokers),
        namespaces=len(view.namespaces),
        bundles=len(view.bundles),
        declared_dead=declared_dead,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a target has: the entry with its genesis, and its snapshot. With either it is a copy, finished or not."""

    first: Entry | None = None
    image: CompactedSnapshot | None = None

    def is_of(self, view: View) -> bool:
        """Whether what is there belongs to the copy of `view`."""
        if self.image is not None and decode_marker(self.image.marker).digest != view.digest():
            return False
        genesis = None if self.first is None else decode(self.first.data)
        copied = view.cluster, view.base, view.level
        return not isinstance(genesis, Genesis) or copied == (genesis.cluster, genesis.base, genesis.level)


_NOTHING: Final = _Found()


def _other_copy(target: Log) -> TargetNotEmpty:
    return TargetNotEmpty(log=target.name, problem="it has the beginning of another channel, or of another copy")


def _begun_meanwhile(target: Log) -> TargetNotEmpty:
    return TargetNotEmpty(log=target.name, problem="somebody began it while the copy was made")


def empty_target(target: Log, *, deadline: Deadline) -> SnapshotStore:
    """The snapshot of `target`, claimed. Raises `TargetNotEmpty` if log or snapshot hold anything, and what the ports raise."""
    compacted_snapshot = _claimed(target, deadline)
    if _found(target, compacted_snapshot, deadline) != _NOTHING:
        raise TargetNotEmpty(log=target.name, problem="it has records already, or the snapshot of a copy")
    return compacted_snapshot


def _claimed(target: Log, deadline: Deadline) -> SnapshotStore:
    compacted_snapshot = target.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=deadline.remaining_ms())
    return compacted_snapshot


def begin_above(target: Log, compacted_snapshot: SnapshotStore, view: View, *, deadline: Deadline) -> None:
    """Begin the empty log `target` with `view`, whose offset is its base; it is then the view at the end of that log.

    Raises `TargetNotEmpty` if somebody else began it meanwhile, and what the ports raise.
    """
    _begin_above(target, compacted_snapshot, view, _NOTHING, deadline)


def _begin_above(target: Log, compacted_snapshot: SnapshotStore, view: View, found: _Found, deadline: Deadline) -> None:
    """As `begin_above`, for a target on which some of it is done."""
    assert view.offset == view.base, "a log goes on above a view that was made for it"
    assert view.cluster is not None, "a view without a genesis is none of a channel"
    first = found.first or _with_genesis(target, view, view.cluster, deadline)
    if found.image is None:
        marker = encode_marker(marker_of(view, log=target.identity, copied=True))
        compacted_snapshot.replace(rows_of(view, -1), marker, timeout_ms=deadline.remaining_ms())
    mine = Reader(log=target.name, view=view)
    mine.feed(first)
    theirs = restored(target, check=lambda: deadline.check(f"restoring {target.name}"))
    theirs.feed(first)
    if mine.view.digest() != theirs.view.digest() or theirs.view.genesis != view.base + first.offset:
        raise Bug(f"{target.name} does not come to the view that was copied to it; do not use it, and report this")


def _with_genesis(target: Log, view: View, cluster: str, deadline: Deadline) -> Entry:
    """The first entry of the target, which is the genesis of a copy of `view`."""
    author = Author(publisher="admin:copy", timestamp_ms=time.time_ns() // 1_000_000)
    genesis = encode(propose.genesis(author, cluster=cluster, base=view.base, level=view.level))
    target.append([genesis], timeout_ms=deadline.remaining_ms())
    first, *_ = target.read(FIRST_OFFSET, limit=1)
    if first.data != genesis:
        raise _begun_meanwhile(target)
    return first


def _found(target: Log, compacted_snapshot: SnapshotStore, deadline: Deadline) -> _Found:
    """What a target has. Raises `TargetNotEmpty` for one that cannot be a copy, or not one that was just made."""
    if target.start() != FIRST_OFFSET:
        raise TargetNotEmpty(log=target.name, problem="it has records already")
    first = next(iter(target.read(FIRST_OFFSET, limit=1)), None)
    if first is not None:
        genesis = decode(first.data)
        if not isinstance(genesis, Genesis) or not genesis.base:
            raise TargetNotEmpty(log=target.name, problem="it has records already")
    try:
        image = compacted_snapshot.load(check=lambda: deadline.check(f"reading the snapshot of {target.name}"))
        if image is not None and not decode_marker(image.marker).copied:
            raise TargetNotEmpty(log=target.name, problem="it has a snapshot already")
    except CompactedSnapshotDamaged as error:
        raise TargetNotEmpty(log=target.name, problem=f"it has a snapshot already, which cannot be used: {error.problem}") from error
    return _Found(first=first, image=image)


class _Copier:
    """The source of a copy, and what is done to it."""

    def __init__(self, log: Log, *, publisher: str, deadline: Deadline) -> None:
        # Known again among records of others, also of the same admin who copies the channel in two windows at once.
        self._publisher = f"{publisher}/copy-{uuid.uuid4().hex[:8]}"
        self._log = log
        self._deadline = deadline
        self._reader = Reader(log=log.name)

    @property
    def view(self) -> View:
        """The source as far as it has been read."""
        return self._reader.view

    def read_to_end(self, progress: Progress) -> _Closing | None:
        """Fold the source to its end; what was before its last record, if that closed it."""
        log = self._log
        self._reader = restored(log, check=self._check, progress=progress)
        first, end = self._reader.position, log.end()
        while entries := log.read(self._reader.position, limit=READ_ENTRIES_MAX):
            self._check()
            for entry in entries:
                before = _Closing(level=self.view.level, level_last=self.view.level_last)
                try:
                    self._reader.feed(entry)
                except LogClosed:
                    record = decode(entry.data)
                    assert isinstance(record, LevelRecord), "no other record closes a log"
                    return replace(before, copied_to=record.copied_to, identity=record.copied_to_identity)
            progress(self._reader.position - first, end + 1 - first)
        return None

    def declare_silent_dead(self) -> tuple[str, ...]:
        """Declare down all brokers that look alive and say nothing. Raises `BrokersAlive` for those that do."""
        silent = self.view.live_brokers()
        self._listen(Deadline.after(timeout_ms=max((broker.joined.lease_ms + broker.joined.margin_ms for broker in silent), default=0)))
        for broker, last in [(broker.broker, broker.last) for broker in silent]:
            if not self._propose(_down(self._log.name, broker, last)).verdict.accepted:
                raise BrokersAlive(log=self._log.name, brokers=(broker,))
        return tuple(broker.broker for broker in silent)

    def _listen(self, silence: Deadline) -> None:
        """Raise `BrokersAlive` if anybody says anything before the deadline; with all who do while each of them renews once."""
        heard: set[str] = set()
        while remaining_ms := silence.remaining_ms():
            self._check()
            self._log.wait(self._reader.position, timeout_ms=min(remaining_ms, LOOK_MS))
            was_silent = not heard
            for entry in self._log.read(self._reader.position, limit=READ_ENTRIES_MAX):
                folded = self._reader.feed(entry)
                publisher = self.view.live.get(folded.record.incarnation or folded.offset)
                if publisher is not None:
                    heard.add(publisher.broker)
            living = self.view.live_brokers()
            if heard and heard.issuperset(broker.broker for broker in living):
                break
            if heard and was_silent:
                silence = Deadline.after(timeout_ms=min(remaining_ms, max(broker.joined.renew_ms for broker in living)))
        if heard:
            raise BrokersAlive(log=self._log.name, brokers=tuple(sorted(heard)))

    def close(self, target: Log) -> _Closing:
        """Append the record that closes the source for its copy to `target`, and fold to it."""
        made: list[tuple[bytes, _Closing]] = []

        def closing(view: View, author: Author) -> LevelRecord:
            record = propose.close_log(author, view, copied_to=target.name, identity=target.identity)
            made.append((encode(record), _Closing(level=view.level, level_last=view.level_last)))
            return record

        try:
            folded = self._propose(closing)
        except LogClosed as closed:
            [entry] = self._log.read(closed.offset - self.view.base, limit=1)
            for data, before in made:
                if entry.data == data:
                    return before
            raise  # Another copy was faster, and the channel goes on there.
        if self.view.live:
            raise BrokersAlive(log=self._log.name, brokers=tuple(broker.broker for broker in self.view.live_brokers()))
        reason = str(folded.verdict.reason)
        raise Rejected(key="level", reason=reason, problem=folded.verdict.problem, offset=folded.offset)

    def _propose(self, make_record: Callable[[View, Author], AnyRecord]) -> Folded:
        return propose_and_wait(self._log, self._reader, make_record, publisher=self._publisher, deadline=self._deadline)

    def _check(self) -> None:
        self._deadline.check(f"copying {self._log.name}")


def _down(log: str, broker: str, last: int) -> Callable[[View, Author], AnyRecord]:
    """A record that declares `broker` down, if what it said at offset `last` is still the last that was heard of it."""

    def make(view: View, author: Author) -> AnyRecord:
        entry = view.brokers.get(broker)
        if entry is None or entry.last != last:
            raise BrokersAlive(log=log, brokers=(broker,))
        return propose.down(author, entry, nonce=entry.joined.nonce, reason="silent while the channel was copied")

    return make
