"""Audit a channel: fold the whole log again, and name the records that are wrong.

The audit does not know what the writers meant. It does not check the fold; the tests do.

The checks
1. Storage: what `Log.read` and, where the log has it, `check_storage` raise as damage.
2. Form: bytes that are not a record, and records that do not belong to this log (before the
   genesis, of another cluster).
3. References: a proposal is based on the last record that its author's view ACCEPTED for the key.
   If that is rejected here or missing, one of the two is not what its writer wrote.
4. Digests: a renewal carries the digest of its author's view just after its last renewal. If this
   view differs, its author read another record somewhere since the last agreement.
5. Invariants of the view: bundles cover each namespace's hash space once, tokens rise, holders are
   alive.
6. Both snapshots: the rows against their checksums and the marker's digest, and the marker against
   the fold of the log at that offset. Without the log's beginning the fold starts from the history
   snapshot, or else the compacted one; step 4 then checks that start, too.
7. Times: a record whose time is far ahead of this machine's clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import (
    BrokerChanged,
    BundleChanged,
    BundleEntry,
    Change,
    NamespaceChanged,
)
from equipoise.channel.core.errors import (
    CompactedSnapshotDamaged,
    LogClosed,
    LogDamaged,
    LogWentBack,
    OperatorError,
)
from equipoise.channel.core.log import (
    CLOCK_AHEAD_MS_MAX,
    FIRST_OFFSET,
    READ_ENTRIES_MAX,
    Check,
    Entry,
    Log,
    Progress,
    unchecked,
    unwatched,
)
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import (
    QUIET_REASONS,
    Genesis,
    Joined,
    Reason,
    Record,
    Renewed,
    Unreadable,
)
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import (
    FoundSnapshot,
    Marker,
    check_log,
    decode_marker,
    history_snapshot_of,
    is_whole,
    view_of,
)


class Kind(StrEnum):
    """The kind of a finding."""

    DAMAGED = "damaged"
    MALFORMED = "malformed"
    FOREIGN = "foreign"
    BASELESS = "baseless"
    DIVERGED = "diverged"
    NOT_COVERED = "not_covered"
    TOKEN_FELL = "token_fell"  # noqa: S105 - a fencing token
    DEAD_HOLDER = "dead_holder"
    NOT_SERVED = "not_served"
    SNAPSHOT = "snapshot"
    HISTORY = "history_snapshot"
    INCOMPLETE = "incomplete"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem with the records from `first` to `last` (logical offsets, both included; equal for
    one record).

    `suspects` are the records that more likely caused it. They may lie outside that range, when
    several records contradict each other.
    """

    kind: Kind
    first: int
    last: int
    text: str
    suspects: tuple[int, ...] = ()

    def names(self, offset: int) -> bool:
        """Return whether this finding names the record at `offset`."""
        return self.first <= offset <= self.last or offset in self.suspects


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of an audit.

    * `findings`: the likeliest cause first, at most `FINDINGS_MAX` of `findings_count`.
    * `folded_to`: the last folded logical offset (-1: none).
    * `records`, `accepted`, `rejected` (by reason): counts of the folded records.
    * `agreements`: the number of renewals whose digest matches this view.
    * `snapshot_to`: the horizon of the compacted snapshot (None: none can be read).
      `from_snapshot`: the fold began there, not with the log.
    * `history_to`, `from_history_snapshot`: the same for the history snapshot.
    """

    snapshot_to: int | None = None
    from_snapshot: bool = False
    history_to: int | None = None
    from_history_snapshot: bool = False
    folded_to: int
    records: int
    accepted: int
    rejected: Mapping[Reason, int]
    agreements: int
    findings_count: int
    findings: tuple[Finding, ...]

    @property
    def in_order(self) -> bool:
        """Whether nothing was found."""
        return not self.findings_count


FINDINGS_MAX: Final = 100
"""Findings that are kept; the rest is counted. One damaged record may invalidate all later ones."""

SUSPECTS_MAX: Final = 20
"""The newest odd records, kept as suspects."""

AGREEMENTS_MAX: Final = 1_000
"""The newest digest agreements, kept: brokers confirm one another's views within a lease or two."""


@runtime_checkable
class SelfChecking(Protocol):
    """A log whose storage may have damage that reads do not notice."""

    def check_storage(self) -> None:
        """Raise `LogDamaged` if the storage contradicts itself."""
        ...


def verify(
    log: Log,
    *,
    cluster: str | None = None,
    check: Check = unchecked,
    progress: Progress = unwatched,
) -> Findings:
    """Audit a log up to its present end, with both its snapshots. Damage is a finding, not an
    error.

    `check` is called before each read and may end the audit by raising. `progress` counts offsets.
    Raises `LogTruncated` if the log is compacted meanwhile, and `LogUnavailable`, `OperatorError`.
    """
    audit = Audit(Reader(log=log.name, cluster=cluster))
    damage = _damaged_storage(log)
    # The history snapshot first: if a compactor moves it meanwhile, it lies below the log's start,
    # which the read detects. In the other order it may lie above the compacted snapshot, whose
    # horizon the audit would then skip.
    # The audit needs only the view: keep no second copy.
    history_snapshot = replace(history_snapshot_of(log, check=check), rows={})
    _begin(audit, log, compacted_snapshot_of(log, check=check), history_snapshot)
    end = log.end()
    limit = READ_ENTRIES_MAX
    while audit.goes_on and audit.position <= end:
        check()
        progress(audit.position, end + 1)
        try:
            entries = log.read(audit.position, limit=limit)
        except LogDamaged as error:
            if limit == 1:
                audit.damaged(error, end=end)
                return audit.findings()
            limit = 1  # Reads one by one up to the damage, to find its offset.
            continue
        if not entries:
            break
        for entry in entries:
            audit.feed(entry)
    if damage is not None and audit.goes_on:
        audit.damaged_beside(damage, end=end)
    _check_times(audit, log)
    return audit.findings()


def compacted_snapshot_of(log: Log, *, check: Check) -> FoundSnapshot:
    """Return the compacted snapshot of a log, without its rows. Raises what `check` and
    `SnapshotStore.load` raise, except damage.
    """
    marker: Marker | None = None
    try:
        image = log.compacted_snapshot().load(check=check)
        if image is None:
            return FoundSnapshot()
        marker = decode_marker(image.marker)
        check_log(marker, log.identity)
        return FoundSnapshot(marker=marker, view=view_of(image, check=check))
    except (CompactedSnapshotDamaged, LogDamaged) as error:
        return FoundSnapshot(marker=marker, problem=error.problem)


def _check_times(audit: Audit, log: Log) -> None:
    try:
        ahead = log.ahead(log.start())
    except LogDamaged:
        return  # A read, or the check of the storage, has found it.
    if ahead is not None:
        audit.ahead(ahead)


def _begin(
    audit: Audit, log: Log, compacted_snapshot: FoundSnapshot, history_snapshot: FoundSnapshot
) -> None:
    """Begin with the log's first record, else with the history snapshot, else with the compacted
    one.
    """
    try:
        whole = is_whole(log)
    except LogDamaged:
        whole = True  # The beginning is there, and the audit will find the damage.
    facts = {Kind.HISTORY: history_snapshot, Kind.SNAPSHOT: compacted_snapshot}
    if (
        compacted_snapshot.marker is not None
        and history_snapshot.marker is not None
        and log.start() <= compacted_snapshot.marker.position < history_snapshot.marker.position
    ):
        # A compactor died after it had moved the history snapshot.
        facts = {Kind.SNAPSHOT: compacted_snapshot, Kind.HISTORY: history_snapshot}
    audit.knows(facts, whole=whole)
    if not whole and compacted_snapshot.view is None and history_snapshot.view is None:
        audit.incomplete(log.start(), compacted_snapshot)


def _damaged_storage(log: Log) -> LogDamaged | None:
    try:
        if isinstance(log, SelfChecking):
            log.check_storage()
    except LogDamaged as error:
        return error
    return None


class Audit:
    """Audits a log entry by entry for `verify`. `position` is the next physical offset.

    `goes_on` becomes false once later records can no longer be interpreted.
    """

    def __init__(self, reader: Reader) -> None:
        """Audit what `reader` folds. It has folded nothing yet."""
        self.goes_on = True
        self._reader = reader
        self._records = 0
        self._accepted = array("q")  # The offsets of accepted records, which rise: 8 bytes each.
        self._brokers: dict[int, str] = {}
        self._rejected: Counter[Reason] = Counter()
        self._gaps: list[tuple[int, int]] = []
        self._digests = _Digests()
        self._findings: list[Finding] = []
        self._findings_count = 0
        self._images: Mapping[Kind, FoundSnapshot] = {}
        self._begun_from: Kind | None = None
        self._promises: list[tuple[Kind, Marker]] = []  # Still to be compared with the fold.

    def knows(self, images: Mapping[Kind, FoundSnapshot], *, whole: bool) -> None:
        """Check the log's two snapshots. Fold on from the first usable one, unless the log is
        `whole`.
        """
        self._images = images
        for kind, facts in images.items():
            if facts.problem is not None:
                self._of(kind, facts.marker, facts.problem)
            if facts.marker is not None and facts.view is not None:
                if whole or self._begun_from is not None:
                    self._promises.append((kind, facts.marker))
                else:
                    self._begin_from(kind, facts.view)
        self._keep_promises()  # Both snapshots may have the same horizon.

    def _begin_from(self, kind: Kind, view: View) -> None:
        self._begun_from = kind
        try:
            self._reader = Reader(log=self._reader.log, cluster=self._reader.cluster, view=view)
        except OperatorError as error:
            self.goes_on = False
            self._add(
                Finding(kind=Kind.FOREIGN, first=view.offset, last=view.offset, text=str(error))
            )

    def incomplete(self, start: int, compacted_snapshot: FoundSnapshot) -> None:
        """Note that the log begins at physical offset `start`, and nothing replaces the records
        before it.
        """
        why = (
            "it has no snapshot that stands for them"
            if compacted_snapshot.problem is None
            else "its snapshot cannot be used"
        )
        self._stop(
            Kind.INCOMPLETE,
            FIRST_OFFSET,
            f"these records are gone, and {why}; what follows was not folded",
            last=max(start - 1, 1),
        )

    def _of(self, kind: Kind, marker: Marker | None, text: str) -> None:
        horizon = 0 if marker is None else marker.horizon
        self._add(
            Finding(
                kind=kind,
                first=horizon,
                last=horizon,
                text=f"the {kind.replace('_', ' ')} up to there: {text}",
            )
        )

    def _keep_promises(self) -> None:
        """Compare the view with each marker whose horizon it has reached."""
        view = self._reader.view
        for kind, marker in [
            promise for promise in self._promises if promise[1].horizon <= view.offset
        ]:
            self._promises.remove((kind, marker))
            if view.offset > marker.horizon:
                self._of(kind, marker, "nothing stands there on the log")
            elif view.digest() != marker.digest:
                self._of(
                    kind,
                    marker,
                    f"it has digest {marker.digest}, and the log folds to digest {view.digest()}",
                )

    @property
    def position(self) -> int:
        """The next physical offset."""
        return self._reader.position

    def feed(self, entry: Entry) -> None:
        """Fold and check one entry. Do nothing once `goes_on` is false."""
        if not self.goes_on:
            return
        position = self._reader.position
        try:
            folded = self._reader.feed(entry)
        except LogClosed as closed:  # A regular end: the channel was copied to another log.
            self.goes_on = False
            self._records += 1
            self._accepted.append(closed.offset)
            return
        except LogWentBack:
            self._stop(
                Kind.DAMAGED,
                entry.offset,
                f"the log gives it after offset {position - 1}: the entries are out of order",
            )
            return
        except OperatorError as error:  # Another cluster's, or of a newer format version.
            self._stop(Kind.FOREIGN, entry.offset, str(error))
            return
        if entry.offset > position:
            self._gaps.append((position, entry.offset - 1))
        self._records += 1
        self._check_form(folded, entry)
        self._check_ties(folded)
        self._check_digest(folded)
        if self._promises:
            self._keep_promises()
        if folded.verdict.reason is not None:
            self._rejected[folded.verdict.reason] += 1
            return
        self._accepted.append(folded.offset)
        if isinstance(folded.record, Joined):
            self._brokers[folded.offset] = folded.record.key
        for kind, text in problems_of(folded.verdict.changes, self._reader.view):
            self._found(kind, folded.offset, text)

    def damaged(self, error: LogDamaged, *, end: int) -> None:
        """Note that the log could not return the entry at `position`, or any entry from there to
        `end`.
        """
        first = self.position if error.offset is None else error.offset
        last = end if error.offset is None else error.offset
        self._stop(
            Kind.DAMAGED,
            first,
            f"{error.problem}; what follows was not folded",
            last=max(first, last),
        )

    def damaged_beside(self, error: LogDamaged, *, end: int) -> None:
        """Note storage damage although all returned entries are whole: missing ones can only be in
        the gaps.
        """
        gaps = [*self._gaps, (self.position, end)] if self.position <= end else self._gaps
        first, last = (gaps[0][0], gaps[-1][1]) if gaps else (FIRST_OFFSET, max(end, FIRST_OFFSET))
        missing = (
            "where nothing could be read" if gaps else "though each record that was read is whole"
        )
        self._stop(Kind.DAMAGED, first, f"{error.problem}; {missing}", last=last)

    def ahead(self, position: int) -> None:
        """Note that the entry at `position` is the first with a time ahead of this machine's
        clock.
        """
        offset = position + self._reader.view.base
        text = (
            f"its time is more than {CLOCK_AHEAD_MS_MAX // 60_000} minutes ahead of this machine's"
            " clock: one of the two clocks was wrong. Set the clock of the machine that stores the"
            " log, or of this one. Retention goes on by the times of later records"
        )
        self._found(Kind.CLOCK, offset, text)

    def findings(self) -> Findings:
        """Return the findings so far, with the checks that need the end."""
        view = self._reader.view
        for kind, marker in self._promises if self.goes_on else ():
            self._of(kind, marker, f"the log ends before it, at offset {view.offset}")
        self._promises.clear()
        at_the_end = [
            Finding(kind=kind, first=view.offset, last=view.offset, text=text)
            for kind, text in problems_of_view(view)
        ]
        divergence = self._digests.finding()
        found = [
            *self._findings,
            *at_the_end[:FINDINGS_MAX],
            *([] if divergence is None else [divergence]),
        ]
        # Storage losses first, because they explain other findings; then records that may explain
        # later ones.
        found.sort(
            key=lambda finding: (
                finding.kind not in _EXPLAINING,
                min(finding.first, *finding.suspects, finding.last),
            )
        )
        return Findings(
            snapshot_to=self._horizon_of(Kind.SNAPSHOT),
            from_snapshot=self._begun_from is Kind.SNAPSHOT,
            history_to=self._horizon_of(Kind.HISTORY),
            from_history_snapshot=self._begun_from is Kind.HISTORY,
            folded_to=view.offset,
            records=self._records,
            accepted=len(self._accepted),
            rejected=dict(self._rejected),
            agreements=self._digests.agreements,
            findings_count=self._findings_count + len(at_the_end) + (divergence is not None),
            findings=tuple(found[:FINDINGS_MAX]),
        )

    def _horizon_of(self, kind: Kind) -> int | None:
        marker = self._images.get(kind, FoundSnapshot()).marker
        return None if marker is None else marker.horizon

    def _check_form(self, folded: Folded, entry: Entry) -> None:
        reason = folded.verdict.reason
        if reason in _NOT_OF_THIS_LOG:
            self._found(Kind.FOREIGN, folded.offset, f"it was rejected as {reason}")
        if isinstance(folded.record, Unreadable):
            self._found(Kind.MALFORMED, folded.offset, folded.record.problem)
        elif reason is Reason.MALFORMED:
            self._found(Kind.MALFORMED, folded.offset, str(folded.verdict.problem))
        unusual = reason is not None and reason not in QUIET_REASONS
        if unusual or isinstance(folded.record, Unreadable) or encode(folded.record) != entry.data:
            self._digests.suspect(folded.offset)

    def _check_ties(self, folded: Folded) -> None:
        """Check that a record refers only to accepted records: its author saw them accepted in the
        same log.
        """
        record = folded.record
        first = self._accepted[0] if self._accepted else folded.offset
        if isinstance(record, Unreadable | Genesis):
            return
        for offset in ties(record):
            # Offset 0, and offsets below the beginning of a copied log, cannot be looked up.
            if offset >= first and not self._was_accepted(offset):
                text = (
                    f"it refers to offset {offset}, where nothing was accepted: one of the two is"
                    " not what was written"
                )
                self._found(
                    Kind.BASELESS,
                    folded.offset,
                    text,
                    suspects=(offset,) if offset < folded.offset else (),
                )
                return
        incarnation = record.incarnation
        if (
            incarnation is not None
            and self._brokers.get(incarnation, record.publisher) != record.publisher
        ):
            text = (
                f"it is signed by {record.publisher} as incarnation {incarnation}, which is one of"
                f" {self._brokers[incarnation]}"
            )
            self._found(Kind.BASELESS, folded.offset, text, suspects=(incarnation,))

    def _was_accepted(self, offset: int) -> bool:
        place = bisect_left(self._accepted, offset)
        return place < len(self._accepted) and self._accepted[place] == offset

    def _check_digest(self, folded: Folded) -> None:
        if isinstance(folded.record, Renewed) and folded.verdict.accepted:
            self._add(
                self._digests.compare(
                    folded.offset, folded.record, agrees=not folded.verdict.diverged
                )
            )

    def _stop(self, kind: Kind, physical: int, text: str, *, last: int | None = None) -> None:
        base = self._reader.view.base
        self.goes_on = False
        self._add(
            Finding(
                kind=kind,
                first=physical + base,
                last=(physical if last is None else last) + base,
                text=text,
            )
        )

    def _found(self, kind: Kind, offset: int, text: str, suspects: tuple[int, ...] = ()) -> None:
        self._add(Finding(kind=kind, first=offset, last=offset, text=text, suspects=suspects))

    def _add(self, finding: Finding | None) -> None:
        if finding is not None:
            self._findings_count += 1
            if len(self._findings) < FINDINGS_MAX:
                self._findings.append(finding)


class _Digests:
    """Where the digests of renewals agree with this view, and where they diverge."""

    def __init__(self) -> None:
        self.agreements = 0
        # The highest offsets at which the digest is known to agree, in order.
        self._agreed_at: list[int] = []
        self._diverged_by: int | None = None  # The first renewal with another digest, and
        self._diverged_at = 0  # the lowest offset known to have another digest.
        self._suspects: deque[int] = deque(maxlen=SUSPECTS_MAX)

    def suspect(self, offset: int) -> None:
        """Note that the record at `offset` is odd."""
        self._suspects.append(offset)

    def compare(self, offset: int, record: Renewed, *, agrees: bool) -> Finding | None:
        """Compare the renewal at `offset`, which carries its author's digest just after the
        expected offset.

        Return a finding if the digests agree before and after a disagreement: one record caused it
        and was overwritten.
        """
        at = record.expected_offset
        if agrees:
            self.agreements += 1
            insort(self._agreed_at, at)
            del self._agreed_at[:-AGREEMENTS_MAX]
            if self._diverged_by is not None and at >= self._diverged_at:
                diverged_by, self._diverged_by = self._diverged_by, None
                return self._finding(diverged_by, self._diverged_at, "agree again later")
        elif self._agreed_at and at <= self._agreed_at[-1]:
            return self._finding(offset, at, "agree again later")
        elif self._diverged_by is None:
            self._diverged_by, self._diverged_at = offset, at
        else:
            self._diverged_at = min(self._diverged_at, at)
        return None

    def finding(self) -> Finding | None:
        """Return where this view and the brokers' views have diverged for good, or None."""
        return (
            None
            if self._diverged_by is None
            else self._finding(self._diverged_by, self._diverged_at, "never agree again")
        )

    def _finding(self, renewal: int, at: int, later: str) -> Finding:
        place = bisect_left(self._agreed_at, at)
        first = self._agreed_at[place - 1] + 1 if place else FIRST_OFFSET
        if place < len(self._agreed_at) and self._agreed_at[place] == at:
            text = f"its digest is not that of the view at {at}, which others confirm"
            return Finding(kind=Kind.DIVERGED, first=renewal, last=renewal, text=text)
        suspects = (*(offset for offset in self._suspects if first <= offset <= at), renewal)
        text = (
            f"the renewal at {renewal} has another digest than the view had at {at}, digests agree"
            f" before {first} and {later}: one of these records, or that renewal itself, is not"
            " what others have read"
        )
        return Finding(kind=Kind.DIVERGED, first=first, last=at, text=text, suspects=suspects)


_EXPLAINING: Final = frozenset({Kind.DAMAGED, Kind.INCOMPLETE, Kind.SNAPSHOT, Kind.HISTORY})
_NOT_OF_THIS_LOG: Final = frozenset({Reason.NO_GENESIS, Reason.FOREIGN_GENESIS})


def ties(record: Record) -> tuple[int, ...]:
    """Return the offsets that a record refers to. All of them must be accepted records."""
    named = (
        record.expected_offset,
        record.incarnation,
        getattr(record, "owner", None),
        getattr(record, "source", None),
        getattr(record, "expected_offset_right", None),
    )
    return tuple(offset for offset in named if offset)


# --- the invariants ---


def problems_of(changes: Sequence[Change], view: View) -> Iterator[tuple[Kind, str]]:
    """Yield the invariants that the accepted changes of one record break; `view` is as it is after
    them.
    """
    bundles = [change for change in changes if isinstance(change, BundleChanged)]
    yield from _tokens_that_fell(bundles)
    yield from _holes(changes, bundles)
    for bundle in bundles:
        if bundle.after is not None:
            yield from _wrong_holders(bundle.after, view)
    for change in changes:
        if (
            isinstance(change, BrokerChanged)
            and change.dead is not None
            and view.held_count(change.dead)
        ):
            yield (
                Kind.DEAD_HOLDER,
                (
                    f"{change.name} died as incarnation {change.dead}, and"
                    f" {view.held_by(change.dead)[0].name} still names it"
                ),
            )


def problems_of_view(view: View) -> Iterator[tuple[Kind, str]]:
    """Yield the invariants that a view breaks."""
    for namespace in view.namespaces:
        ranges = [(bundle.low, bundle.high) for bundle in view.bundles_of(namespace)]
        if not _covers(ranges, [(0, HASH_MAX)]):
            yield Kind.NOT_COVERED, f"the bundles of {namespace} do not cover the hash space once"
    for bundle in view.bundles.values():
        yield from _wrong_holders(bundle, view)


def _tokens_that_fell(bundles: Sequence[BundleChanged]) -> Iterator[tuple[Kind, str]]:
    """Yield falling tokens: over any point tokens only rise, and a new server needs a higher
    one.
    """
    gone = [
        change.before for change in bundles if change.after is None and change.before is not None
    ]
    for change in bundles:
        after = change.after
        if after is None:
            continue
        befores = (
            [change.before]
            if change.before is not None
            else [old for old in gone if _overlap(old, after)]
        )
        for before in befores:
            is_new_ownership = after.phase == "owned" and after.owner != before.server
            if after.token < before.token + is_new_ownership:
                yield (
                    Kind.TOKEN_FELL,
                    f"the token of {after.name} went from {before.token} to {after.token}",
                )


def _holes(
    changes: Sequence[Change], bundles: Sequence[BundleChanged]
) -> Iterator[tuple[Kind, str]]:
    """Yield holes: a record must put back the ranges that it removes, unless their namespace came
    or went.
    """
    created = [
        change
        for change in changes
        if isinstance(change, NamespaceChanged) and change.before is None
    ]
    deleted = [
        change
        for change in changes
        if isinstance(change, NamespaceChanged) and change.after is None
    ]
    gone = (
        [(0, HASH_MAX)]
        if created
        else [
            (b.before.low, b.before.high)
            for b in bundles
            if b.before is not None and b.after is None
        ]
    )
    come = (
        [(0, HASH_MAX)]
        if deleted
        else [
            (b.after.low, b.after.high) for b in bundles if b.after is not None and b.before is None
        ]
    )
    if not _covers(come, gone):
        yield (
            Kind.NOT_COVERED,
            (
                f"the bundles that it makes ({len(come)}) do not cover those that it takes away"
                f" ({len(gone)}) once"
            ),
        )


def _wrong_holders(bundle: BundleEntry, view: View) -> Iterator[tuple[Kind, str]]:
    for holder in (bundle.owner, bundle.source):
        broker = None if holder is None else view.live.get(holder)
        if holder is not None and broker is None:
            yield Kind.DEAD_HOLDER, f"{bundle.name} names incarnation {holder}, which is not alive"
        elif broker is not None and not broker.joined.serves(bundle.namespace):
            yield (
                Kind.NOT_SERVED,
                (
                    f"{bundle.name} names {broker.broker}, whose program does not serve"
                    f" {bundle.namespace}"
                ),
            )


def _overlap(one: BundleEntry, other: BundleEntry) -> bool:
    return one.namespace == other.namespace and max(one.low, other.low) < min(one.high, other.high)


def _covers(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Return whether two sets of ranges cover the same points, each once."""
    return _joined(some) == _joined(others)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, touching ones joined. Overlapping ones stay apart and so equal
    nothing.
    """
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined
