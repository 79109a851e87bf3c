"""Define every error that Equipoise raises on purpose, grouped by who must act.

A lost race on the channel is not an error: it is a `Verdict` with a reason.
"""

from __future__ import annotations

import re


class EquipoiseError(Exception):
    """The root of all errors that Equipoise raises on purpose."""

    def __init__(self, message: str = "", *, code: str | None = None, **attributes: object) -> None:
        """`code` names the error for programs, in JSON; it is the class's name by default."""
        super().__init__(message)
        vars(self).update(attributes)
        self.code = code or type(self).__name__


class CallerError(EquipoiseError):
    """The caller passed a wrong value and can pass another one."""


class OperatorError(EquipoiseError):
    """The operator must act: a wrong setting, a damaged file, a full disk."""


class PeerError(EquipoiseError):
    """Another part is away, slow or changed its mind. A later retry may work."""


class NotFound(CallerError):
    """The caller named something that does not exist. HTTP answers 404."""


class Bug(EquipoiseError):
    """Equipoise broke an invariant of its own. Report it with the message."""


class InvalidName(CallerError):
    """A malformed cluster, tenant, namespace, bundle, broker id or topic."""

    def __init__(self, *, what: str, name: str, expected: str) -> None:
        """`what` is the kind of name, `expected` the form it must have."""
        self.what = what
        self.name = name
        self.expected = expected
        super().__init__(f"{name!r} is not a {what}: expected {expected}")


class LogNotBegun(CallerError):
    """The log to read does not exist, or no broker has started on it yet."""

    def __init__(self, *, log: str, problem: str) -> None:
        """`log` is its URL, `problem` what was found instead."""
        self.log = log
        self.problem = problem
        super().__init__(
            f"the log {log} has not begun: {problem}; start a broker on it, or check the URL"
        )


class LogUnavailable(PeerError):
    """The log did not answer in time. Records in flight may be on it, unless `in_doubt` is
    false.
    """

    def __init__(self, *, log: str, problem: str, in_doubt: bool = True) -> None:
        """`problem` is what the log did. `in_doubt` is false where nothing can have been
        appended.
        """
        self.log = log
        self.problem = problem
        self.in_doubt = in_doubt
        outcome = (
            "records in flight may or may not be on it"
            if in_doubt
            else "nothing was appended; try again later"
        )
        super().__init__(f"the log {log} is unavailable: {problem}; {outcome}")


class LogDamaged(OperatorError):
    """The log's storage cannot be read, or is not an Equipoise log."""

    def __init__(self, *, log: str, problem: str, offset: int | None = None) -> None:
        """`offset` is the damaged entry, if known."""
        self.log = log
        self.problem = problem
        self.offset = offset
        super().__init__(
            f"the log {log} cannot be used: {problem}; restore it from a copy, or use another log"
        )


class LogStorageFull(OperatorError):
    """The log's disk is full. Nothing was appended."""

    def __init__(self, *, log: str) -> None:
        """`log` names the log whose disk is full."""
        self.log = log
        super().__init__(
            f"the disk of the log {log} is full and nothing was appended; free space on it"
        )


class LogWentBack(OperatorError):
    """The log ends below the reader's position: it is another log of the same name."""

    def __init__(self, *, log: str, position: int, end: int) -> None:
        """`position` is the next offset that the reader expects, `end` the end of the log now."""
        self.log = log
        self.position = position
        self.end = end
        super().__init__(
            f"the log {log} ends at {end}, but a reader expects offset {position} next: it was"
            " replaced or restored from an older copy; stop all brokers of it before they start"
            " again"
        )


class LogReplaced(OperatorError):
    """A file of the log was replaced or deleted while open: other processes now read another
    log.
    """

    def __init__(self, *, log: str, path: str) -> None:
        """`path` is the file that is no longer the one that was opened."""
        super().__init__(
            f"{path} of the log {log} was replaced or deleted while it was open: "
            "stop all brokers of it, put one whole copy in its place, and start them again",
            log=log,
            path=path,
        )


class BegunAbove(PeerError):
    """A log that was empty now starts as the copy of another log. The state before its genesis is
    in its snapshot.
    """

    def __init__(self, *, log: str, base: int) -> None:
        """The log goes on above offset `base`."""
        self.log = log
        self.base = base
        super().__init__(
            f"a channel was copied to the log {log} while it was read: it goes on above offset"
            f" {base} of another log; read it again, from its snapshot"
        )


class LogTruncated(PeerError):
    """The reader's position lies below the first offset that the log still has."""

    def __init__(self, *, log: str, position: int, start: int) -> None:
        """`position` is the next offset that the reader expects, `start` the first one left."""
        self.log = log
        self.position = position
        self.start = start
        super().__init__(
            f"the log {log} starts at {start}, offset {position} is gone; load a snapshot and read"
            " on from there"
        )


class LevelTooNew(OperatorError):
    """The log was raised to a format version that this code does not know."""

    def __init__(self, *, level: int, supported: int, offset: int) -> None:
        """Format version `level` is active from `offset` on. This code supports versions up to
        `supported`.
        """
        self.level = level
        self.supported = supported
        self.offset = offset
        super().__init__(
            f"the channel was raised to format version {level} at offset {offset}, but this program"
            f" supports versions up to {supported}; upgrade it"
        )


class LogClosed(OperatorError):
    """The log was closed for good, because its channel was copied to another log."""

    def __init__(self, *, log: str, offset: int) -> None:
        """`offset` is the log's last record, which closed it."""
        self.log = log
        self.offset = offset
        super().__init__(
            f"the log {log} was closed at offset {offset}, when its channel was copied to another"
            " log: brokers cannot use it any more; use the copy, or complete an incomplete copy:"
            " equipoise channel copy --again (its history can still be read: equipoise channel"
            " tail, why, at, diff)"
        )


class SnapshotDamaged(PeerError):
    """A snapshot's bytes do not match its checksum or digest. A fold from the log's start replaces
    it.
    """

    def __init__(self, *, problem: str) -> None:
        """`problem` is the mismatch."""
        self.problem = problem
        super().__init__(
            f"the snapshot cannot be used: {problem}; fold the log from its start instead"
        )


class DeadlineExceeded(PeerError):
    """An awaited event did not happen in time. It may still happen."""

    def __init__(
        self,
        *,
        what: str,
        waited_ms: int,
        message: str | None = None,
        code: str | None = None,
        **attributes: object,
    ) -> None:
        """`what` is the event."""
        usual = f"{what} did not happen within {waited_ms} ms; ask again, it may still happen"
        super().__init__(message or usual, code=code, **attributes)
        self.what = what
        self.waited_ms = waited_ms


class Overloaded(PeerError):
    """A bounded queue or pool is full."""

    def __init__(self, *, what: str, limit: int) -> None:
        """`what` already holds `limit`, its maximum."""
        self.what = what
        self.limit = limit
        super().__init__(f"{what} is full: it holds {limit}; try again later")


class OutcomeUnknown(PeerError):
    """A record was handed to the log, and its verdict is not known. It may still be accepted."""

    def __init__(self, *, log: str, subject: str, problem: str) -> None:
        """`subject` is the key that the record changes, `problem` why its verdict is not known."""
        self.log = log
        self.subject = subject
        self.problem = problem
        super().__init__(
            f"it is not known whether the log {log} accepted the record of {subject}: {problem}; "
            f"check the state of {subject} before you try again"
        )


class CompactedSnapshotDamaged(OperatorError):
    """The channel's compacted snapshot does not match its marker. A channel that is whole can be
    folded instead.
    """

    def __init__(self, *, problem: str) -> None:
        """`problem` is the mismatch."""
        self.problem = problem
        super().__init__(
            f"the channel's snapshot cannot be used: {problem}; compact again if the channel is"
            " whole, else restore a backup"
        )


class SnapshotFenced(PeerError):
    """Another compactor has claimed the snapshot and continues this one's work. Nothing was
    written.
    """

    def __init__(self, *, log: str) -> None:
        """`log` names the log that the snapshot belongs to."""
        self.log = log
        super().__init__(
            f"another compactor has taken over the snapshot of {log}: nothing was written; let the"
            " other one finish"
        )


class ChannelIncomplete(OperatorError):
    """The beginning of a channel is gone and no snapshot replaces it: its state cannot be
    computed.
    """

    def __init__(
        self,
        *,
        log: str,
        first: int,
        last: int | None,
        compacted_snapshot: str,
        copied: bool = False,
    ) -> None:
        """The records from `first` to `last` are lost: offsets of `log`, or of the log that it was
        `copied` from.

        `last` is None if unknown. `compacted_snapshot` is what is wrong with the snapshot that
        should replace them.
        """
        self.log = log
        self.first = first
        self.last = last
        self.compacted_snapshot = compacted_snapshot
        self.copied = copied
        lost = (
            "lacks the records that it was copied from," if copied else "no longer has its records"
        )
        until = "on" if last is None else f"to {last}"
        super().__init__(
            f"the log {log} {lost} from offset {first} {until}, and {compacted_snapshot}; stop all"
            " its brokers, and restore the log with its snapshot from one backup, or copy what is"
            " left to a new log (equipoise channel copy --leave-open)"
        )


def invalid_boundaries(*, subject: str, problem: str) -> CallerError:
    """Return the error for the cuts of a hash range that do not rise strictly, or do not lie
    strictly inside it.

    `subject` names the bundle or namespace, `problem` what is wrong with the cuts.
    """
    return CallerError(f"the boundaries of {subject} cannot be used: {problem}")


def invalid_kafka_setting(*, setting: str, problem: str) -> CallerError:
    """Return the error for a setting of the Kafka client that is unknown, has a wrong value, or is
    not the user's to choose. The message never quotes its value.
    """
    return CallerError(
        f"the Kafka setting {setting!r} cannot be used: {problem}",
        code="InvalidKafkaSetting",
        setting=setting,
        problem=problem,
    )


def log_access_denied(*, log: str, problem: str) -> OperatorError:
    """Return the error for storage that refuses this process access, or an operation that it needs.
    `problem` is its message.
    """
    return OperatorError(
        f"the log {log} denies access: {problem}; check the credentials and TLS settings of this"
        " process, and the rights of its user there",
        code="LogAccessDenied",
        log=log,
        problem=problem,
    )


def unfit_topic(*, log: str, topic: str, setting: str, found: str, needed: str) -> OperatorError:
    """Return the error for a Kafka topic with a `setting` that could lose records or break their
    total order: it is `found` and must be `needed`.
    """
    return OperatorError(
        f"the log {log} cannot be used: {setting} of the topic {topic} is {found}, and must be"
        f" {needed}; alter it, or use a new topic, which is then created with the right settings",
        code="UnfitTopic",
        log=log,
        topic=topic,
        setting=setting,
        found=found,
        needed=needed,
    )


def foreign_log(*, log: str, expected: str, found: str) -> OperatorError:
    """Return the error for a log of another cluster than the configured one. `expected` and `found`
    are cluster ids.
    """
    return OperatorError(
        f"the log {log} belongs to cluster {found!r}, not {expected!r}; check the log URL and the"
        " cluster id",
        code="ForeignLog",
        log=log,
        expected=expected,
        found=found,
    )


def compaction_refused(*, log: str, problem: str, remedy: str) -> OperatorError:
    """Return the error for a compaction that could lose data for good, or write what no reader
    would see. What readers see is unchanged.
    """
    return OperatorError(
        f"the log {log} is not compacted: {problem}; {remedy}",
        code="CompactionRefused",
        log=log,
        problem=problem,
        remedy=remedy,
    )


def without_password(url: str) -> str:
    """Return the URL of a log or broker for messages, with a mask instead of a user and
    password.
    """
    return re.sub(r"^(kafka|https?):.*@", r"\1://***@", url, flags=re.DOTALL)


def invalid_log_url(*, url: str, problem: str) -> CallerError:
    """Return the error for a log URL that this installation cannot open. It never repeats a
    password.
    """
    return CallerError(
        f"cannot open a log at {without_password(url)!r}: {problem}; "
        "use sqlite:PATH, kafka://HOST:PORT/TOPIC, or memory:NAME within one process"
    )


def missing_extra(*, what: str, extra: str) -> CallerError:
    """Return the error for a feature `what` whose packages come with the extra `extra`, which is
    not installed.
    """
    return CallerError(f"{what} needs the extra `{extra}`: pip install 'equipoise[{extra}]'")
