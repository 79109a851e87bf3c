"""The errors of brokers, and of those who ask them: split by who must act, as in `channel.core.errors`.

May live here: exception classes with typed attributes that nothing in `channel` raises. A message says what happened, to what,
and what to do next.
"""

from __future__ import annotations

from equipoise.channel.core.errors import CallerError, DeadlineExceeded, OperatorError, PeerError
from equipoise.channel.core.ranges import namespace_in


class UnsupportedAlgorithm(CallerError):
    """A split algorithm that this version does not have."""

    def __init__(self, *, algorithm: str, supported: tuple[str, ...]) -> None:
        """`algorithm` is the name asked for, `supported` the names there are."""
        self.algorithm = algorithm
        self.supported = supported
        super().__init__(f"there is no split algorithm {algorithm!r}; choose one of {', '.join(supported)}")


class InvalidTiming(OperatorError):
    """Durations with which a live broker could be declared dead, or a dead one's bundles be owned twice."""

    def __init__(self, *, setting: str, value_ms: int, expected: str) -> None:
        """`setting` has `value_ms`, which must be as `expected`."""
        self.setting = setting
        self.value_ms = value_ms
        self.expected = expected
        super().__init__(f"{setting} is {value_ms} ms, which is not safe: it must be {expected}")


class ChannelLost(DeadlineExceeded):
    """What only the channel tells was waited for, at a broker that has lost it."""

    def __init__(self, *, what: str, waited_ms: int, broker: str, lost_ms: int) -> None:
        """`what` was waited for at `broker`, which read its last own renewal back `lost_ms` ago."""
        self.what = what
        self.waited_ms = waited_ms
        self.broker = broker
        self.lost_ms = lost_ms
        lost = f"broker {broker} lost the channel {lost_ms} ms ago"
        # Past the class between, whose message does not give the reason.
        PeerError.__init__(self, f"{what} was not heard of within {waited_ms} ms: {lost}; ask again, or ask another broker")


class BrokerIdTaken(OperatorError):
    """Another process renews under the same broker id."""

    def __init__(self, *, broker: str, incarnation: int) -> None:
        """`incarnation` of `broker` is alive, and is not this process."""
        self.broker = broker
        self.incarnation = incarnation
        super().__init__(
            f"the broker id {broker!r} is in use by a live broker (incarnation {incarnation}); stop it, or choose another --id"
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
        """`reason` is one of `channel.core.records.Reason`; `offset` is where the rejected record stands, if it was appended."""
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


class InvalidSetting(CallerError):
    """A setting of balancing that cannot be."""

    def __init__(self, *, setting: str, value: object, expected: str) -> None:
        """`setting` was to be `value`, and must be as `expected`."""
        self.setting = setting
        self.value = value
        self.expected = expected
        super().__init__(f"{setting} cannot be {value!r}: it must be {expected}; the old setting stays")


class UnknownSetting(CallerError):
    """A setting of balancing that there is not."""

    def __init__(self, *, setting: str, nearest: str | None) -> None:
        """`setting` is the name asked for, `nearest` the one that it may be meant for."""
        self.setting = setting
        self.nearest = nearest
        near = f"; did you mean {nearest}?" if nearest else "; see which there are: equipoise balancing show --all"
        super().__init__(f"there is no setting {setting!r} of balancing{near}")


class InvalidLoad(CallerError):
    """A load report, or a service, says what no bundle and no broker can weigh."""

    def __init__(self, *, subject: str, field: str, value: float) -> None:
        """`subject` is `bundle` or `topic`, `field` the one that is wrong, `value` what it was set to."""
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


class UnreadableLoad(PeerError):
    """Something on the load bus is no load report; whoever wrote it counts as one that has reported nothing."""

    def __init__(self, *, what: str, problem: str) -> None:
        """`what` was expected (`sample`, `summary`, `bundle`), and `problem` says what is wrong with what is there."""
        self.what = what
        self.problem = problem
        super().__init__(f"a {what} of load cannot be read: {problem}; look for who writes it, and with which version")


class DecisionLogUnavailable(PeerError):
    """Decisions of balancing cannot be kept or read; balancing goes on."""

    def __init__(self, *, log: str, problem: str) -> None:
        """`log` names the decision log, `problem` says what it did."""
        self.log = log
        self.problem = problem
        super().__init__(f"the decision log {log} cannot be used: {problem}; balancing goes on, and what it decides is not kept")


class UnknownBundle(CallerError):
    """A bundle that its namespace does not have."""

    def __init__(self, *, bundle: str) -> None:
        """`bundle` is the name asked for."""
        self.bundle = bundle
        super().__init__(f"there is no bundle {bundle!r}; see which there are: equipoise namespaces bundles {namespace_in(bundle)}")


class UnknownBroker(CallerError):
    """A broker that the channel does not know."""

    def __init__(self, *, broker: str) -> None:
        """`broker` is the id asked for."""
        self.broker = broker
        super().__init__(f"no broker {broker!r} has ever joined; see who has: equipoise brokers list --all")


class Cancelled(PeerError):
    """A move that the channel accepted came to nothing: its bundle is not where it was to go."""

    def __init__(self, *, bundle: str, move: str, problem: str) -> None:
        """`move` of `bundle` was cancelled because of `problem`."""
        self.bundle = bundle
        self.move = move
        self.problem = problem
        super().__init__(f"the {move} of {bundle} was cancelled: {problem}; see equipoise channel why {bundle}")


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


class HistoryGone(CallerError):
    """A moment of which the log does not know: what was before it was compacted, or never was on this log."""

    def __init__(self, *, log: str, moment: str, known_from: int, problem: str | None = None) -> None:
        """`known_from` is the first logical offset at which the view is known; `problem` says why, where it was not compacted."""
        self.log = log
        self.moment = moment
        self.known_from = known_from
        why = f"no longer knows of {moment}: what was before offset {known_from} has been compacted"
        super().__init__(
            f"the log {log} {why if problem is None else f'does not know of {moment}: {problem}'}; "
            "ask for a later moment, or look at an export from before (equipoise channel import)"
        )


class TargetNotEmpty(CallerError):
    """A log that a channel was to be copied or imported to holds something."""

    def __init__(self, *, log: str, problem: str) -> None:
        """`log` is its URL, `problem` says what was found."""
        self.log = log
        self.problem = problem
        super().__init__(
            f"nothing can be copied to {log}: {problem}; name a log that is not there yet, or delete this one if nobody uses it"
        )


class BrokersAlive(OperatorError):
    """A channel was to be copied while brokers work with it."""

    def __init__(self, *, log: str, brokers: tuple[str, ...]) -> None:
        """`brokers` of `log` were heard of."""
        self.log = log
        self.brokers = brokers
        super().__init__(f"the log {log} is in use by {', '.join(brokers)}: stop all brokers of it, and copy it then; it is as it was")


class CopiedElsewhere(OperatorError):
    """A channel that was copied was to be copied again to another log: each copy would issue the same tokens."""

    def __init__(self, *, log: str, offset: int, copied_to: str | None, target: str) -> None:
        """`log` was closed at `offset` for its copy to `copied_to`, which is not the log `target`."""
        self.log = log
        self.offset = offset
        self.copied_to = copied_to
        self.target = target
        first = copied_to or "another log"
        super().__init__(
            f"the log {log} was closed at offset {offset} for its copy to {first}, and {target} is not that log: two copies would "
            f"issue the same tokens; finish the first one (equipoise channel copy {log} {first} --again). Only if it is surely "
            "lost, so that no broker can ever start on it, add --other-is-lost"
        )


class ExportDamaged(OperatorError):
    """A file that is no export of a channel, or not the one that it claims to be."""

    def __init__(self, *, file: str, line: int, problem: str) -> None:
        """`file` as named, `line` counted from 1, `problem` says what does not fit."""
        self.file = file
        self.line = line
        self.problem = problem
        super().__init__(f"{file} cannot be imported: line {line}: {problem}; nothing was imported, use another copy of the export")


class OutputFailed(OperatorError):
    """What a command has to say cannot be written to where it was sent."""

    def __init__(self, *, output: str, problem: str) -> None:
        """`output` is a file as named, or the standard output; `problem` is what the operating system says."""
        self.output = output
        self.problem = problem
        super().__init__(
            f"{output} cannot be written: {problem}; mend that, such as by freeing space on its disk, or write to another place, "
            "and run the command again"
        )


class InvalidRequest(CallerError):
    """A request whose body or parameters do not have the form that they must have."""

    def __init__(self, *, what: str, problem: str) -> None:
        """`what` is the part that is wrong, such as `the body`, and `problem` says why."""
        self.what = what
        self.problem = problem
        super().__init__(f"{what} cannot be used: {problem}")


class CompactionFailed(PeerError):
    """A compaction of the log did not come to its end; the log and its snapshot still say the same as before."""

    def __init__(self, *, log: str, error: str, problem: str) -> None:
        """`log` is its URL; `error` names the class of what it met, and `problem` says it."""
        self.log = log
        self.error = error
        self.problem = problem
        super().__init__(f"the log {log} was not compacted ({error}): {problem}")


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
        super().__init__(f"the service {service!r} cannot be used: {problem}; correct that, and start again")


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


class UnknownSchema(CallerError):
    """A schema is asked for that no broker knows."""

    def __init__(self, *, topic: str) -> None:
        """`topic` is the full name of the topic whose schema was asked for."""
        self.topic = topic
        super().__init__(f"no schema of {topic} is known, or not that one; schemas last as long as the brokers that were told of them")


class UnknownTopic(CallerError):
    """A topic that nobody uses, or that is not partitioned, is asked about."""

    def __init__(self, *, topic: str) -> None:
        """`topic` is the full name that was asked for."""
        self.topic = topic
        super().__init__(f"there is no topic {topic} at present; a topic that is not stored exists while it has a producer or a consumer")


class InvalidPolicy(CallerError):
    """A cluster policy that says what cannot be understood or cannot be meant; what was set before stays."""

    def __init__(self, *, policy: str, problem: str) -> None:
        """`policy` is its key, `problem` the first thing that is wrong with it."""
        self.policy = policy
        self.problem = problem
        super().__init__(f"the policy {policy} cannot be set: {problem}; what was set before stays")


class PolicyLeavesNobody(CallerError):
    """A change of the cluster policies with which no broker that is up could have a bundle any more."""

    def __init__(self, *, policy: str, subject: str) -> None:
        """`policy` is the key of what was to change, `subject` the namespace or bundle that nobody could have, or the policy's brokers."""
        self.policy = policy
        self.subject = subject
        super().__init__(f"the change of {policy} would leave no broker that is up for {subject}; what was set before stays")


class UnknownPolicy(CallerError):
    """A cluster policy that the channel does not have."""

    def __init__(self, *, policy: str) -> None:
        """`policy` is the key asked for."""
        self.policy = policy
        super().__init__(f"there is no policy {policy!r}; see which there are: equipoise policies list")


class DestinationForbidden(CallerError):
    """A transfer that an operator asked for is to a broker that policies keep from the bundle."""

    def __init__(self, *, bundle: str, broker: str, problem: str) -> None:
        """`problem` is why `broker` may not have `bundle`: the policy, and what it says."""
        self.bundle = bundle
        self.broker = broker
        self.problem = problem
        super().__init__(
            f"{bundle} was not moved: {broker} may not have it: {problem}; name a broker that may (equipoise policies explain {bundle}), "
            "or force it: then it goes there, and balancing brings it back"
        )


class UnreadableProperties(OperatorError):
    """A file that is to be in the form of Java's properties, and is not."""

    def __init__(self, *, line: int, problem: str) -> None:
        """`line` is counted from 1, `problem` says what is wrong there."""
        self.line = line
        self.problem = problem
        super().__init__(f"the settings cannot be read: line {line}: {problem}; nothing of them was taken")


class NoFreshLoad(OperatorError):
    """Nothing can be said of balancing, because nobody's load is known."""

    def __init__(self, *, log: str, problem: str, advice: str) -> None:
        """`log` is the URL of the channel, `problem` says who has not reported what, `advice` what to do about it."""
        self.log = log
        self.problem = problem
        self.advice = advice
        super().__init__(f"there is no fresh load of any broker on {log}: {problem}; {advice}")
