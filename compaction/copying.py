"""Copy a channel to another log: close the old log for good, and start the new one above its end.

A backup leaves the old log open, and starts its log far above that end (`back_up`).

How a channel is copied
1. Claim the target's snapshot. Refuse a target that holds anything, so that a mistaken URL costs
   nothing, except the rest of a copy that died after step 4. That is compared with the source
   later.
2. Fold the source to its end.
3. Wait for records of brokers that look alive, for the longest of their leases and grace periods.
   If one writes, refuse the copy. Declare the silent ones dead, with their instance ids from the
   log as the proof. That record expects the broker's last known offset, so a renewal in between
   makes it stale.
4. Close the source:
   * A target that was made aside first takes its name, so that it can be found after any failure.
     It is checked again.
   * A record that names the target raises the source to a format version that no code supports. It
     is accepted once no broker is alive. No reader folds a later record, not even older code that
     does not know copies.
   * So no broker can go on with the source, even after a sleep, and no token is issued twice.
5. Write the target's genesis, which must be its first entry. Its base is the offset at which the
   source was closed, so all offsets and tokens of the target lie above the source's. Nobody can
   start on this log before it has its snapshot. A log that somebody else has begun meanwhile gets
   none, so nobody takes it for a copy.
6. Write the view just before the close to the target's snapshot, in one transaction. Restore the
   target as a broker would; its digest must be equal.

`again` finishes a copy that died after step 4: it reads the source up to its close. Two copies
would issue the same tokens. So the target must be the log that the closing record names, unless the
operator confirms that no broker can ever start on that one.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from equipoise.brokers.errors import Rejected
from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.errors import (
    Bug,
    CallerError,
    CompactedSnapshotDamaged,
    LogClosed,
    LogDamaged,
    LogNotBegun,
    LogUnavailable,
    OperatorError,
)
from equipoise.channel.core.log import (
    FIRST_OFFSET,
    READ_ENTRIES_MAX,
    CompactedSnapshot,
    Entry,
    Log,
    Progress,
    SnapshotStore,
    unwatched,
)
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import INTEGER_MAX, AnyRecord, Genesis, LevelRecord
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import propose as propose_and_wait
from equipoise.channel.log.open_log import log_path, open_log
from equipoise.channel.snapshots.restore import earliest, restored
from equipoise.channel.snapshots.snapshot_rows import (
    decode_marker,
    encode_marker,
    marker_of,
    rows_of,
)
from equipoise.channel.sqlite.file import sync_folder, usable_path
from equipoise.channel.system.clocks import Deadline

AHEAD: Final = 1_000_000_000
"""Offsets left out above the end of a backup by default. It must exceed what the old log has issued
since: at 1,000 records/s it covers eleven days. Nine billion such restores are possible."""

OFFSET_MAX: Final = INTEGER_MAX // 4
"""The limit of a backup's end, and of `ahead`: their sum leaves room for a channel's life."""

LOOK_MS: Final = 200
"""How long one wait for a broker's record lasts: a copy may exceed its deadline by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy or a backup: the view of `cluster`, in a log that goes on above `base`,
    with `digest`.

    `declared_dead` are the brokers that looked alive but were silent for their lease and grace
    period.
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
    """The format version before the record that closed the log, and the offset of the record that
    set it.

    Also the log of the copy, if the record names it.
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
    """Copy the channel on `source` to `target`, and close `source`. Both logs are open.

    * `publisher` is `admin:NAME`.
    * `name_target` gives a target that was made aside its name, and returns a handle under that
      name.
    * `progress` counts the entries read from the source.

    These errors are raised:

    * `CallerError` if `target` is not empty, `OperatorError` if brokers are alive.
    * `LogClosed` if the source was copied before and `again` is not set.
    * `OperatorError` if that copy went to another log and `other_is_lost` is not set.
    * `LogNotBegun` if there is nothing to copy.
    * `Rejected` if the source could not be closed.
    * `DeadlineExceeded`, and what `restored`, `propose` and the ports raise.
    """
    compacted_snapshot = _claimed(target, deadline)  # 1.
    found = _found(target, compacted_snapshot, deadline)
    copier = _Copier(source, publisher=publisher, deadline=deadline)
    closing = copier.read_to_end(progress)  # 2.
    if closing is not None and not again:
        raise LogClosed(log=source.name, offset=copier.view.offset)
    if copier.view.genesis is None:
        raise LogNotBegun(log=source.name, problem="no broker has started on it yet")
    # Not the rest of this copy, because the source is still open.
    if closing is None and found != NOTHING:
        raise _other_copy(target)
    if (
        closing is not None
        and closing.identity not in (None, target.identity)
        and not other_is_lost
    ):
        raise _copied_elsewhere(
            log=source.name,
            offset=copier.view.offset,
            copied_to=closing.copied_to,
            target=target.name,
        )
    declared_dead = copier.declare_silent_dead() if closing is None else ()  # 3.
    if name_target is not None:  # 4.
        target = name_target()
        compacted_snapshot = _claimed(target, deadline)
    if closing is None:
        if _found(target, compacted_snapshot, deadline) != NOTHING:
            raise _begun_meanwhile(target)
        closing = copier.close(target)
    view = copier.view
    view.go_on_above(view.offset, level=closing.level, level_last=closing.level_last)
    if not found.is_of(view):
        raise _other_copy(target)
    begin_above(target, compacted_snapshot, view, found=found, deadline=deadline)  # 5., 6.
    return _copied(view, declared_dead)


def back_up(
    source: Log,
    target: Log,
    *,
    deadline: Deadline,
    ahead: int = AHEAD,
    name_target: Callable[[], Log] | None = None,
    progress: Progress = unwatched,
) -> Copied:
    """Copy the channel on `source` to `target` as it is now, and leave `source` open.

    `source` may issue further tokens, so the offsets of `target` start `ahead` above its present
    end, even if a power failure has undone the last records. All that is left of its records is
    folded, so a damaged snapshot stops no backup. `name_target` and `progress` are as for `copy`.

    Raises `CallerError` if `target` is not empty, `LogNotBegun` if there is nothing to copy,
    `LogClosed`, `DeadlineExceeded`, and what `earliest` and the ports raise.
    """
    copier = _Copier(source, publisher="admin:copy", deadline=deadline)
    closing = copier.read_to_end(progress, begin=earliest)
    view = copier.view
    if closing is not None:
        raise LogClosed(log=source.name, offset=view.offset)
    if view.genesis is None:
        raise LogNotBegun(log=source.name, problem="no broker has started on it yet")
    end = max(view.offset, view.base + source.end())
    if end > OFFSET_MAX:
        raise OperatorError(
            f"the log {source.name} cannot be copied: no offsets are left above its end, {end};"
            " nothing was copied, use another backup of it"
        )
    compacted_snapshot = empty_target(target, deadline=deadline)
    view.go_on_above(end + ahead, level=view.level, level_last=view.level_last)
    begin_above(target, compacted_snapshot, view, deadline=deadline)
    if name_target is not None:  # A backup that fails leaves no file.
        name_target()
    return _copied(view)


def _copied(view: View, declared_dead: tuple[str, ...] = ()) -> Copied:
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
class Found:
    """The content of a target: its first entry and its snapshot. With either it is a copy, finished
    or not.
    """

    first: Entry | None = None
    image: CompactedSnapshot | None = None

    def is_of(self, view: View) -> bool:
        """Return whether the content belongs to the copy of `view`."""
        if self.image is not None and decode_marker(self.image.marker).digest != view.digest():
            return False
        genesis = None if self.first is None else decode(self.first.data)
        copied = view.cluster, view.base, view.level
        return not isinstance(genesis, Genesis) or copied == (
            genesis.cluster,
            genesis.base,
            genesis.level,
        )


NOTHING: Final = Found()


def not_empty(log: str, problem: str) -> CallerError:
    """Return the error for a target that holds something. `problem` is what was found."""
    return CallerError(
        f"nothing can be copied to {log}: {problem}; name a new log, or delete this one if nobody"
        " uses it"
    )


def _in_use(log: str, *brokers: str) -> OperatorError:
    return OperatorError(
        f"the log {log} is in use by {', '.join(brokers)}: stop all its brokers, then copy it;"
        " nothing has changed"
    )


def _other_copy(target: Log) -> CallerError:
    return not_empty(target.name, "it has the beginning of another channel, or of another copy")


def _begun_meanwhile(target: Log) -> CallerError:
    return not_empty(target.name, "somebody began it while the copy was made")


def empty_target(target: Log, *, deadline: Deadline) -> SnapshotStore:
    """Return the claimed snapshot of `target`. Raises `CallerError` if log or snapshot hold
    anything, and what the ports raise.
    """
    compacted_snapshot = _claimed(target, deadline)
    if _found(target, compacted_snapshot, deadline) != NOTHING:
        raise not_empty(target.name, "it has records already, or the snapshot of a copy")
    return compacted_snapshot


def _claimed(target: Log, deadline: Deadline) -> SnapshotStore:
    compacted_snapshot = target.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=deadline.remaining_ms())
    return compacted_snapshot


def begin_above(
    target: Log,
    compacted_snapshot: SnapshotStore,
    view: View,
    *,
    found: Found = NOTHING,
    deadline: Deadline,
) -> None:
    """Start the log `target`, on which `found` is done already, with `view`, whose offset is its
    base.

    Raises `CallerError` if somebody else began it meanwhile, and what the ports raise.
    """
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
    if (
        mine.view.digest() != theirs.view.digest()
        or theirs.view.genesis != view.base + first.offset
    ):
        raise Bug(
            f"{target.name} does not come to the view that was copied to it; do not use it, and"
            " report this"
        )


def _with_genesis(target: Log, view: View, cluster: str, deadline: Deadline) -> Entry:
    """Return the first entry of the target: the genesis of a copy of `view`."""
    author = Author(publisher="admin:copy", timestamp_ms=time.time_ns() // 1_000_000)
    genesis = encode(propose.genesis(author, cluster=cluster, base=view.base, level=view.level))
    target.append([genesis], timeout_ms=deadline.remaining_ms())
    first, *_ = target.read(FIRST_OFFSET, limit=1)
    if first.data != genesis:
        raise _begun_meanwhile(target)
    return first


def _found(target: Log, compacted_snapshot: SnapshotStore, deadline: Deadline) -> Found:
    """Return the content of a target. Raises `CallerError` if it cannot be an unfinished or new
    copy.
    """
    if target.start() != FIRST_OFFSET:
        raise not_empty(target.name, "it has records already")
    first = next(iter(target.read(FIRST_OFFSET, limit=1)), None)
    if first is not None:
        genesis = decode(first.data)
        if not isinstance(genesis, Genesis) or not genesis.base:
            raise not_empty(target.name, "it has records already")
    try:
        image = compacted_snapshot.load(
            check=lambda: deadline.check(f"reading the snapshot of {target.name}")
        )
        if image is not None and not decode_marker(image.marker).copied:
            raise not_empty(target.name, "it has a snapshot already")
    except CompactedSnapshotDamaged as error:
        raise not_empty(
            target.name, f"it has a snapshot already, which cannot be used: {error.problem}"
        ) from error
    return Found(first=first, image=image)


class _Copier:
    """The source of a copy, and the steps on it."""

    def __init__(self, log: Log, *, publisher: str, deadline: Deadline) -> None:
        # Unique, because the same admin may run two copies at once.
        self._publisher = f"{publisher}/copy-{uuid.uuid4().hex[:8]}"
        self._log = log
        self._deadline = deadline
        self._reader = Reader(log=log.name)

    @property
    def view(self) -> View:
        """The source's view, as far as it has been read."""
        return self._reader.view

    def read_to_end(
        self, progress: Progress, *, begin: Callable[..., Reader] = restored
    ) -> _Closing | None:
        """Fold the source to its end. If its last record closed it, return the state before that,
        else None.
        """
        log = self._log
        self._reader = begin(log, check=self._check, progress=progress)
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
                    return replace(
                        before, copied_to=record.copied_to, identity=record.copied_to_identity
                    )
            progress(self._reader.position - first, end + 1 - first)
        return None

    def declare_silent_dead(self) -> tuple[str, ...]:
        """Declare dead all brokers that look alive and stay silent. Raises `OperatorError` for
        those that write.
        """
        silent = self.view.live_brokers()
        self._listen(
            Deadline.after(
                # Brokers that are cut off from the log together may serve for their extensions.
                timeout_ms=max((broker.joined.unheard_ms for broker in silent), default=0)
            )
        )
        for broker, last in [(broker.broker, broker.last) for broker in silent]:
            if not self._propose(_down(self._log.name, broker, last)).verdict.accepted:
                raise _in_use(self._log.name, broker)
        return tuple(broker.broker for broker in silent)

    def _listen(self, silence: Deadline) -> None:
        """Raise `OperatorError` if any broker writes before the deadline. Name all that write
        within one renewal.
        """
        active: set[str] = set()
        while remaining_ms := silence.remaining_ms():
            self._check()
            self._log.wait(self._reader.position, timeout_ms=min(remaining_ms, LOOK_MS))
            was_silent = not active
            for entry in self._log.read(self._reader.position, limit=READ_ENTRIES_MAX):
                folded = self._reader.feed(entry)
                publisher = self.view.live.get(folded.record.incarnation or folded.offset)
                if publisher is not None:
                    active.add(publisher.broker)
            living = self.view.live_brokers()
            if active and active.issuperset(broker.broker for broker in living):
                break
            if active and was_silent:
                silence = Deadline.after(
                    timeout_ms=min(remaining_ms, max(broker.joined.renew_ms for broker in living))
                )
        if active:
            raise _in_use(self._log.name, *sorted(active))

    def close(self, target: Log) -> _Closing:
        """Append the record that closes the source in favour of `target`, and fold up to it."""
        made: list[tuple[bytes, _Closing]] = []

        def closing(view: View, author: Author) -> LevelRecord:
            record = propose.close_log(
                author, view, copied_to=target.name, identity=target.identity
            )
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
            raise _in_use(self._log.name, *(broker.broker for broker in self.view.live_brokers()))
        reason = str(folded.verdict.reason)
        raise Rejected(
            key="level", reason=reason, problem=folded.verdict.problem, offset=folded.offset
        )

    def _propose(self, make_record: Callable[[View, Author], AnyRecord]) -> Folded:
        return propose_and_wait(
            self._log, self._reader, make_record, publisher=self._publisher, deadline=self._deadline
        )

    def _check(self) -> None:
        self._deadline.check(f"copying {self._log.name}")


def _down(log: str, broker: str, last: int) -> Callable[[View, Author], AnyRecord]:
    """Return a function that makes the record to declare `broker` dead, if offset `last` is still
    its last record.
    """

    def make(view: View, author: Author) -> AnyRecord:
        entry = view.brokers.get(broker)
        if entry is None or entry.last != last:
            raise _in_use(log, broker)
        return propose.down(
            author,
            entry,
            instance_id=entry.joined.instance_id,
            reason="silent while the channel was copied",
        )

    return make


def _copied_elsewhere(
    *, log: str, offset: int, copied_to: str | None, target: str
) -> OperatorError:
    """Return the error for a second copy of `log`, which was closed at `offset` for its copy to
    `copied_to`.
    """
    first = copied_to or "another log"
    return OperatorError(
        f"the log {log} was closed at offset {offset} for its copy to {first}, and {target} is not"
        " that log: two copies would issue the same tokens; finish the first one (equipoise"
        f" channel copy {log} {first} --again). Only if it is surely lost, so that no broker can"
        " ever start on it, add --other-is-lost"
    )


class Aside:
    """A new log that takes the name `url` later. A log that is not a file has it at once."""

    def __init__(self, url: str, log: Log, *, part: Path | None) -> None:
        """`log` lies in the file `part`, if it is a file."""
        self._url, self._part = url, part
        self.log = log

    def take_name(self) -> None:
        """Close the log and give it its name. Raises `CallerError` if a file of that name exists
        now.
        """
        name = log_path(self._url)
        if self._part is not None and name is not None:
            self.log.close()  # While it is open its other files have the old name.
            _take_name(self._part, Path(name), self._url)

    def named(self) -> Log:
        """Give the log its name and return it, open. Raises what `take_name` and `open_log`
        raise.
        """
        self.take_name()
        self.log = open_log(self._url, create=False)
        return self.log


@contextmanager
def made_aside(url: str) -> Iterator[Aside]:
    """Yield a new log. The block's end deletes it, unless it has taken its name.

    Raises `CallerError` if there is a file, and what `open_log` raises.
    """
    name = log_path(url)
    if name is None:
        with closing(open_log(url)) as log:
            yield Aside(url, log, part=None)
        return
    with suppress(LogNotBegun, LogDamaged):
        open_log(url, create=False).close()
    if os.path.lexists(name):
        raise not_empty(url, f"there is a file {name}")
    usable_path(name, url=url, create=True)
    part = f"{name}.{uuid.uuid4().hex[:8]}.part"
    try:
        log = open_log(
            f"{url.partition(':')[0]}:{part}{url.partition(':')[2][len(name) :]}", name=url
        )
        aside = Aside(url, log, part=Path(part))
        try:
            yield aside
        finally:
            aside.log.close()
    finally:
        for suffix in ("", "-wal", "-shm", "-bell"):
            Path(f"{part}{suffix}").unlink(missing_ok=True)


def _take_name(part: Path, path: Path, url: str) -> None:
    if Path(f"{part}-wal").exists():  # The last one to close the file removes this one.
        raise LogUnavailable(log=url, problem=f"another process has {part} open", in_doubt=False)
    try:
        os.link(part, path)  # Unlike a rename, this never replaces a file.
    except FileExistsError as error:
        raise not_empty(url, f"a file {path} appeared meanwhile") from error
    part.unlink()  # Two names of one log would have two sets of SQLite files.
    sync_folder(path)
