"""Every error that Equipoise raises on purpose: one root, split by who must act.

May live here: exception classes with typed attributes. A message says what happened, to what, and what to do next.
A race lost on the channel is no error: it is a `Verdict` with a reason.
"""

from __future__ import annotations


class EquipoiseError(Exception):
    """The root of all errors raised on purpose by Equipoise."""


class CallerError(EquipoiseError):
    """The caller passed something wrong, and can mend it by passing something else."""


class OperatorError(EquipoiseError):
    """Somebody who runs the cluster must act: a wrong setting, a damaged file, a full disk."""


class PeerError(EquipoiseError):
    """Another part is away, slow or changed its mind; trying again later may work."""


class Bug(EquipoiseError):
    """Equipoise broke a promise to itself; please report it with the message."""


class InvalidName(CallerError):
    """A tenant, namespace, bundle, broker id or topic that does not have the form it must have."""

    def __init__(self, *, what: str, name: str, expected: str) -> None:
        """`what` is the kind of name, `name` the offender, `expected` the form it must have."""
        self.what = what
        self.name = name
        self.expected = expected
        super().__init__(f"{name!r} is not a {what}: expected {expected}")


class InvalidBoundaries(CallerError):
    """Cuts of a hash range that do not lie strictly inside it, in rising order."""

    def __init__(self, *, subject: str, problem: str) -> None:
        """`subject` names the bundle or namespace, `problem` what is wrong with the cuts."""
        self.subject = subject
        self.problem = problem
        super().__init__(f"the boundaries of {subject} cannot be used: {problem}")


class InvalidLogUrl(CallerError):
    """A log URL that names no log that this installation can open."""

    def __init__(self, *, url: str, problem: str) -> None:
        """`url` as given, `problem` what is wrong with it."""
        self.url = url
        self.problem = problem
        super().__init__(
            f"cannot open a log at {url!r}: {problem}; use sqlite:PATH, kafka://HOST:PORT/TOPIC, or memory:NAME within one process"
        )


class MissingExtra(CallerError):
    """What was asked for needs packages that come with an extra of this one, and are not installed."""

    def __init__(self, *, what: str, extra: str) -> None:
        """`what` cannot be done without the extra named `extra`."""
        self.what = what
        self.extra = extra
        super().__init__(f"{what} needs the extra `{extra}`: pip install 'equipoise[{extra}]'")


class InvalidKafkaSetting(CallerError):
    """A setting of the Kafka client that does not exist, has a wrong value, or is not the user's to choose."""

    def __init__(self, *, setting: str, problem: str) -> None:
        """`setting` is its name in librdkafka's words, `problem` what is wrong with it; its value is never quoted."""
        self.setting = setting
        self.problem = problem
        super().__init__(f"the Kafka setting {setting!r} cannot be used: {problem}")


class LogNotBegun(CallerError):
    """There is no log yet where somebody wants to read one, or none that any broker has started on."""

    def __init__(self, *, log: str, problem: str) -> None:
        """`log` is its URL, `problem` says what is there instead."""
        self.log = log
        self.problem = problem
        super().__init__(f"the log {log} has not begun: {problem}; start a broker on it, or check the URL")


class LogUnavailable(PeerError):
    """The log did not answer in time; what was in flight may be on it, unless `in_doubt` is false."""

    def __init__(self, *, log: str, problem: str, in_doubt: bool = True) -> None:
        """`log` names the log, `problem` says what it did; `in_doubt` is false where nothing can have been appended."""
        self.log = log
        self.problem = problem
        self.in_doubt = in_doubt
        outcome = "what was in flight may or may not be on it" if in_doubt else "nothing was appended; try again later"
        super().__init__(f"the log {log} is unavailable: {problem}; {outcome}")


class LogDamaged(OperatorError):
    """The log's storage cannot be read, or is not a log of ours."""

    def __init__(self, *, log: str, problem: str, offset: int | None = None) -> None:
        """`log` names the log, `problem` says what is wrong with its storage, `offset` at which entry, if that is known."""
        self.log = log
        self.problem = problem
        self.offset = offset
        super().__init__(f"the log {log} cannot be used: {problem}; restore it from a copy, or name another one")


class LogAccessDenied(OperatorError):
    """The log's storage does not let this process in, or not do what it must do there."""

    def __init__(self, *, log: str, problem: str) -> None:
        """`log` names the log, `problem` is what its storage says."""
        self.log = log
        self.problem = problem
        super().__init__(
            f"the log {log} denies access: {problem}; "
            "check the credentials and TLS settings of this process, and the rights of its user there"
        )


class UnfitTopic(OperatorError):
    """A Kafka topic that has a setting with which it could lose what it must keep, or could not be totally ordered."""

    def __init__(self, *, log: str, topic: str, setting: str, found: str, needed: str) -> None:
        """`setting` of `topic` is `found`, and must be as `needed`."""
        self.log = log
        self.topic = topic
        self.setting = setting
        self.found = found
        self.needed = needed
        super().__init__(
            f"the log {log} cannot be used: {setting} of the topic {topic} is {found}, and must be {needed}; "
            "alter it, or name a topic that does not exist, which is then made with the right settings"
        )


class LogStorageFull(OperatorError):
    """The log's disk is full: nothing was appended."""

    def __init__(self, *, log: str) -> None:
        """`log` names the log whose disk is full."""
        self.log = log
        super().__init__(f"the disk of the log {log} is full and nothing was appended; free space on it")


class LogWentBack(OperatorError):
    """The end of the log lies below what this reader has read: it is another log of the same name."""

    def __init__(self, *, log: str, position: int, end: int) -> None:
        """`position` is the next offset that the reader expects, `end` where the log now ends."""
        self.log = log
        self.position = position
        self.end = end
        super().__init__(
            f"the log {log} ends at {end}, a reader of it expects offset {position} next: "
            "it was replaced or restored from an older copy; stop all brokers of it before they start again"
        )


class LogReplaced(OperatorError):
    """A file of the log was replaced or deleted while it was open: others now read another log than this process."""

    def __init__(self, *, log: str, path: str) -> None:
        """`log` names the log, `path` is the file that is no longer the one that was opened."""
        self.log = log
        self.path = path
        super().__init__(
            f"{path} of the log {log} was replaced or deleted while it was open: "
            "stop all brokers of it, put one whole copy in its place, and start them again"
        )


class LogHardLinked(OperatorError):
    """A file of the log has a second name (a hard link). Processes that open it by different names would corrupt it."""

    def __init__(self, *, log: str, path: str, names: int) -> None:
        """`log` is the log's URL, `path` the file, `names` how many names it has."""
        self.log = log
        self.path = path
        self.names = names
        super().__init__(
            f"the log {log} cannot be opened: {path} has {names} names (hard links), and two brokers that open it by different names "
            f"would corrupt it; delete the other names (find / -xdev -samefile {path}), "
            "and make backups with `equipoise channel export`, not by hard links"
        )


class NetworkFileSystem(OperatorError):
    """A file whose locks and shared memory must be trusted lies where two kernels may see it."""

    def __init__(self, *, path: str, file_system: str) -> None:
        """`path` is the file or folder, `file_system` the type it lies on, such as `nfs4`."""
        self.path = path
        self.file_system = file_system
        super().__init__(f"{path} lies on {file_system}, where locks cannot be trusted; put it on a disk of this machine")


class AppendTooLarge(CallerError):
    """A record, or a batch of records, that is larger than a log takes at once; nothing was appended."""

    def __init__(self, *, log: str, what: str, size: int, size_max: int) -> None:
        """`what` says of which unit `size` and `size_max` are, such as `bytes in one record`."""
        self.log = log
        self.what = what
        self.size = size
        self.size_max = size_max
        super().__init__(f"the log {log} takes at most {size_max} {what}, not {size}; append less at once")


class BegunAbove(PeerError):
    """A log that had no beginning starts as the copy of another log. The state before its genesis is in its snapshot."""

    def __init__(self, *, log: str, base: int) -> None:
        """`log` is its URL, `base` the offset above which it goes on."""
        self.log = log
        self.base = base
        super().__init__(
            f"a channel was copied to the log {log} while it was read: it goes on above offset {base} of another log; "
            "read it again, from its snapshot"
        )


class LogTruncated(PeerError):
    """The reader's position lies below the first offset that the log still has."""

    def __init__(self, *, log: str, position: int, start: int) -> None:
        """`position` is the next offset that the reader expects, `start` the first one that is left."""
        self.log = log
        self.position = position
        self.start = start
        super().__init__(f"the log {log} starts at {start}, offset {position} is gone; load a snapshot and read on from there")


class ForeignLog(OperatorError):
    """The log belongs to another cluster than the one configured."""

    def __init__(self, *, log: str, expected: str, found: str) -> None:
        """`expected` and `found` are cluster ids."""
        self.log = log
        self.expected = expected
        self.found = found
        super().__init__(f"the log {log} belongs to cluster {found!r}, not {expected!r}; check the log URL and the cluster id")


class LevelTooNew(OperatorError):
    """The log has been raised to a protocol level that this version does not know."""

    def __init__(self, *, level: int, supported: int, offset: int) -> None:
        """`level` is active from `offset` on; this version supports up to `supported`."""
        self.level = level
        self.supported = supported
        self.offset = offset
        super().__init__(
            f"the channel was raised to level {level} at offset {offset}, this version reads up to level {supported}; upgrade it"
        )


class LogClosed(OperatorError):
    """The log was closed for good, because its channel was copied to another one."""

    def __init__(self, *, log: str, offset: int) -> None:
        """`log` is its URL; `offset` is that of its last record, which closed it."""
        self.log = log
        self.offset = offset
        super().__init__(
            f"the log {log} was closed at offset {offset}, when its channel was copied to another log: no broker can go on with it; "
            "use the copy, or finish it if it was not finished: equipoise channel copy --again "
            "(its history can still be read: equipoise channel tail, why, at, diff, export)"
        )


class SnapshotDamaged(PeerError):
    """A snapshot whose bytes do not give the view that they promise; folding from zero heals it."""

    def __init__(self, *, problem: str) -> None:
        """`problem` says what does not fit."""
        self.problem = problem
        super().__init__(f"the snapshot cannot be used: {problem}; fold the log from its start instead")


class DeadlineExceeded(PeerError):
    """Something that was waited for did not happen in time; it may still happen."""

    def __init__(self, *, what: str, waited_ms: int) -> None:
        """`what` was waited for during `waited_ms` milliseconds."""
        self.what = what
        self.waited_ms = waited_ms
        super().__init__(f"{what} did not happen within {waited_ms} ms; ask again, it may still happen")


class Overloaded(PeerError):
    """Something that takes a bounded number at once has as many as it takes."""

    def __init__(self, *, what: str, limit: int) -> None:
        """`what` has `limit` of them, the most that it takes."""
        self.what = what
        self.limit = limit
        super().__init__(f"{what} already holds {limit}, the most that it takes; try again when some are done")


class OutcomeUnknown(PeerError):
    """A record was handed to the log, and nobody can tell yet whether it was accepted; it may still be."""

    def __init__(self, *, log: str, subject: str, problem: str) -> None:
        """`subject` is the key that the record wants to change, `problem` says why its verdict is not known."""
        self.log = log
        self.subject = subject
        self.problem = problem
        super().__init__(
            f"it is not known whether the log {log} accepted the record of {subject}: {problem}; "
            f"see what the channel says of {subject} before you try again"
        )


class CompactedSnapshotDamaged(OperatorError):
    """What the snapshot of a channel holds is not what its marker promises; a channel that is whole can be folded instead."""

    def __init__(self, *, problem: str) -> None:
        """`problem` says what does not fit."""
        self.problem = problem
        super().__init__(f"the channel's snapshot cannot be used: {problem}; compact again if the channel is whole, else restore a backup")


class SnapshotFenced(PeerError):
    """Another compactor has taken the snapshot over; nothing was written, and that one goes on where this one stopped."""

    def __init__(self, *, log: str) -> None:
        """`log` names the log whose snapshot it is."""
        self.log = log
        super().__init__(f"another compactor has taken over the snapshot of {log}: nothing was written; leave it to that one")


class ChannelIncomplete(OperatorError):
    """The beginning of a channel is gone, and no snapshot stands for it: what the channel says cannot be told."""

    def __init__(self, *, log: str, first: int, last: int | None, compacted_snapshot: str, copied: bool = False) -> None:
        """What is lost are the records from `first` to `last`, both offsets of `log`, or of what `log` was `copied` from.

        `last` is None where nothing tells it. `snapshot` says what is the matter with the snapshot that should stand for them.
        """
        self.log = log
        self.first = first
        self.last = last
        self.compacted_snapshot = compacted_snapshot
        self.copied = copied
        lost = "no longer has what it was copied from," if copied else "no longer has its records"
        until = "on" if last is None else f"to {last}"
        super().__init__(
            f"the log {log} {lost} from offset {first} {until}, and {compacted_snapshot}; stop all its brokers, "
            "and restore the log with its snapshot from one backup, or import an export into a new log (equipoise channel import)"
        )


class CompactionRefused(OperatorError):
    """Compacting now might lose what nobody could bring back; the log and its snapshot are as they were."""

    def __init__(self, *, log: str, problem: str, remedy: str) -> None:
        """`log` names the log, `problem` says what was found, `remedy` what to do."""
        self.log = log
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"the log {log} is not compacted: {problem}; {remedy}")


class InvalidRetention(CallerError):
    """A text that does not say how much of a compacted log is kept."""

    def __init__(self, *, text: str) -> None:
        """`text` as given."""
        self.text = text
        super().__init__(f"{text!r} is no retention; write a time (7d, 12h, 30m), a size (64MiB, 2GiB) or offsets (10000 offsets)")
