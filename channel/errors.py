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


class UnsupportedAlgorithm(CallerError):
    """A split algorithm that this version does not have."""

    def __init__(self, *, algorithm: str, supported: tuple[str, ...]) -> None:
        """`algorithm` is the name asked for, `supported` the names there are."""
        self.algorithm = algorithm
        self.supported = supported
        super().__init__(f"there is no split algorithm {algorithm!r}; choose one of {', '.join(supported)}")


class InvalidLogUrl(CallerError):
    """A log URL that names no log that this installation can open."""

    def __init__(self, *, url: str, problem: str) -> None:
        """`url` as given, `problem` what is wrong with it."""
        self.url = url
        self.problem = problem
        super().__init__(f"cannot open a log at {url!r}: {problem}; use sqlite:PATH, or memory:NAME within one process")


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


class InvalidTiming(OperatorError):
    """Durations with which a live broker could be declared dead, or a dead one's bundles be owned twice."""

    def __init__(self, *, setting: str, value_ms: int, expected: str) -> None:
        """`setting` has `value_ms`, which must be as `expected`."""
        self.setting = setting
        self.value_ms = value_ms
        self.expected = expected
        super().__init__(f"{setting} is {value_ms} ms, which is not safe: it must be {expected}")


class BrokerIdTaken(OperatorError):
    """Another process renews under the same broker id."""

    def __init__(self, *, broker: str, incarnation: int) -> None:
        """`incarnation` of `broker` is alive, and is not this process."""
        self.broker = broker
        self.incarnation = incarnation
        super().__init__(
            f"the broker id {broker!r} is in use by a live broker (incarnation {incarnation}); stop it, or choose another --id"
        )


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


class NotProposed(PeerError):
    """A broker could not put a proposal to the channel, or can be sure that the one it made will never be accepted."""

    def __init__(self, *, broker: str, problem: str) -> None:
        """`broker` was asked, `problem` is what kept it from proposing."""
        self.broker = broker
        self.problem = problem
        super().__init__(f"broker {broker} did nothing: {problem}; ask it again later, or ask another broker")


class Rejected(PeerError):
    """The channel rejected a proposal, or would have."""

    def __init__(self, *, key: str, reason: str, problem: str | None, offset: int | None) -> None:
        """`reason` is one of `channel.records.Reason`; `offset` is where the rejected record stands, if it was appended."""
        self.key = key
        self.reason = reason
        self.problem = problem
        self.offset = offset
        where = "" if offset is None else f" at offset {offset}"
        detail = "" if problem is None else f" ({problem})"
        super().__init__(f"the proposal about {key} was rejected{where}: {reason}{detail}; look at its present state and decide anew")


class UnknownNamespace(CallerError):
    """A namespace that the channel does not have."""

    def __init__(self, *, namespace: str) -> None:
        """`namespace` is the name asked for."""
        self.namespace = namespace
        super().__init__(f"there is no namespace {namespace!r}; create it first: equipoise namespaces create {namespace}")


class DataDirectoryInUse(OperatorError):
    """Another process holds a broker's data directory, so that broker is still running."""

    def __init__(self, *, path: str, pid: int | None) -> None:
        """`path` is the directory, `pid` the process that holds it; None if its lock file does not say."""
        self.path = path
        self.pid = pid
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"the data directory {path} is held by {holder}: its broker is still running; stop it, or name another directory")


class DataDirectoryUnusable(OperatorError):
    """A broker's data directory cannot be made, read or written, or is no longer the one that was locked."""

    def __init__(self, *, path: str, problem: str) -> None:
        """`path` is the directory, `problem` says what is wrong with it."""
        self.path = path
        self.problem = problem
        super().__init__(f"the data directory {path} cannot be used: {problem}; mend that, or name another directory")


class InvalidConfig(OperatorError):
    """Settings that cannot be, alone or together."""

    def __init__(self, *, problems: tuple[str, ...]) -> None:
        """`problems` name each a setting and what is wrong with it."""
        self.problems = problems
        super().__init__(f"these settings cannot be used: {'; '.join(problems)}; correct them and start again")


class AddressInUse(OperatorError):
    """A broker cannot listen where it was told to."""

    def __init__(self, *, address: str, problem: str, setting: str = "http_port") -> None:
        """`address` is host:port, as `setting` has it, and `problem` what the operating system says."""
        self.address, self.problem, self.setting = address, problem, setting
        super().__init__(f"cannot listen on {address}: {problem}; free the port, or choose another with --{setting.replace('_', '-')}")


class InvalidLoad(CallerError):
    """A load report, or a service, says what no bundle and no broker can weigh."""

    def __init__(self, *, subject: str, field: str, value: float) -> None:
        """`subject` is `bundle` or `broker`, `field` the one that is wrong, `value` what it was set to."""
        self.subject = subject
        self.field = field
        self.value = value
        super().__init__(f"a {subject} cannot have {field}={value!r}: it must be a finite number, and not negative")


class LoadBusUnavailable(PeerError):
    """Load reports cannot be exchanged; brokers serve on, and nothing is balanced meanwhile."""

    def __init__(self, *, bus: str, problem: str) -> None:
        """`bus` names the load bus, `problem` says what it did."""
        self.bus = bus
        self.problem = problem
        super().__init__(f"the load bus {bus} cannot be used: {problem}; nothing is balanced until that is mended")


class UnknownBundle(CallerError):
    """A bundle that its namespace does not have."""

    def __init__(self, *, bundle: str) -> None:
        """`bundle` is the name asked for."""
        self.bundle = bundle
        namespace = bundle.rpartition("/")[0]
        super().__init__(f"there is no bundle {bundle!r}; see which there are: equipoise namespaces bundles {namespace}")


class UnknownBroker(CallerError):
    """A broker that the channel does not know."""

    def __init__(self, *, broker: str) -> None:
        """`broker` is the id asked for."""
        self.broker = broker
        super().__init__(f"no broker {broker!r} has ever joined; see who has: equipoise brokers list --all")


class CalledOff(PeerError):
    """A move that the channel accepted came to nothing: its bundle is not where it was to go."""

    def __init__(self, *, bundle: str, move: str, problem: str) -> None:
        """`move` of `bundle` was called off because of `problem`."""
        self.bundle = bundle
        self.move = move
        self.problem = problem
        super().__init__(f"the {move} of {bundle} was called off: {problem}; see equipoise channel why {bundle}")


class BrokerUnreachable(PeerError):
    """A broker does not answer at the address that it advertises, or answers something else than was asked for."""

    def __init__(self, *, broker: str, address: str, problem: str, in_doubt: bool = False) -> None:
        """`problem` is what happened when `broker` was asked at `address`; `in_doubt` is true where it may have done it all the same."""
        self.broker = broker
        self.address = address
        self.problem = problem
        self.in_doubt = in_doubt
        super().__init__(f"the broker {broker} cannot be asked at {address}: {problem}; see whether it runs, and ask again")


class BrokerRefuses(CallerError):
    """A broker was asked over HTTP for what it does not do."""

    def __init__(self, *, broker: str, problem: str) -> None:
        """`problem` is what `broker` says against it."""
        self.broker, self.problem = broker, problem
        super().__init__(f"the broker {broker} refuses: {problem}")


class NobodyToAsk(PeerError):
    """A question that only a broker can answer, while none is alive."""

    def __init__(self, *, log: str) -> None:
        """No broker is alive on `log`."""
        self.log = log
        super().__init__(f"no broker is alive on {log}, and only a broker knows; start one, and ask again")


class UnknownOffset(CallerError):
    """An offset at which the channel has no record."""

    def __init__(self, *, log: str, offset: int, end: int) -> None:
        """`offset` was asked for, `end` is the last offset of `log` at which there is a record, -1 if there is none."""
        self.log = log
        self.offset = offset
        self.end = end
        there = f"its last is at {end}, and gaps are normal" if end >= 0 else "it has none at all yet"
        super().__init__(f"the log {log} has no record at offset {offset}; {there}")


class InvalidRequest(CallerError):
    """A request whose body or parameters do not have the form that they must have."""

    def __init__(self, *, what: str, problem: str) -> None:
        """`what` is the part that is wrong, such as `the body`, and `problem` says why."""
        self.what = what
        self.problem = problem
        super().__init__(f"{what} cannot be used: {problem}")


class NotReady(PeerError):
    """A broker that has not read the channel to its end, or is no member at this moment, and so cannot answer for it."""

    def __init__(self, *, broker: str, problem: str = "it is still reading the channel, or joining") -> None:
        """`broker` is the id of the broker that was asked, `problem` what it lacks."""
        self.broker = broker
        self.problem = problem
        super().__init__(f"broker {broker} is not ready: {problem}; ask again soon, or ask another")


class InvalidService(CallerError):
    """What was given as a service is none, or cannot be loaded or served."""

    def __init__(self, *, service: str, problem: str) -> None:
        """`service` as given, `problem` what is wrong with it."""
        self.service = service
        self.problem = problem
        super().__init__(
            f"the service {service!r} cannot be used: {problem}; give an instance of a Service, or name its class as [PATTERN=]MODULE:CLASS"
        )


class BrokerFailed(OperatorError):
    """The process of a broker ended by itself, or did not become ready."""

    def __init__(self, *, broker: str, problem: str, log_file: str) -> None:
        """`problem` says how `broker` ended, and its last words; `log_file` is where it wrote them."""
        self.broker = broker
        self.problem = problem
        self.log_file = log_file
        super().__init__(f"the broker {broker} failed: {problem}; see {log_file}")


class UnknownCluster(CallerError):
    """A cluster that is not the one whose channel is read here."""

    def __init__(self, *, cluster: str, known: str | None) -> None:
        """`cluster` is the id asked for, `known` the one of the channel."""
        self.cluster = cluster
        self.known = known
        super().__init__(f"there is no cluster {cluster!r} here; this is {known!r}")


class UnknownTenant(CallerError):
    """A tenant that has no namespace, and so is not there."""

    def __init__(self, *, tenant: str) -> None:
        """`tenant` is the name asked for."""
        self.tenant = tenant
        super().__init__(
            f"there is no tenant {tenant!r}: a tenant is there by its namespaces; "
            f"create one: equipoise namespaces create {tenant}/NAMESPACE"
        )


class UnknownTopic(CallerError):
    """A topic that nobody uses, or that is not partitioned, is asked about."""

    def __init__(self, *, topic: str) -> None:
        """`topic` is the full name that was asked for."""
        self.topic = topic
        super().__init__(f"there is no topic {topic} at present; a topic that is not stored exists while it has a producer or a consumer")
