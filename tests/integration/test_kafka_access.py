"""A Kafka with mutual TLS and access control: each role works with exactly its rights, and a
missing right is named.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.brokers.cli.main import app
from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.decision_log import DecisionLog
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.runtime.embedding.embedded import Worker
from equipoise.brokers.runtime.service import Ownership
from equipoise.brokers.side_topics import SERVING
from equipoise.channel.core.errors import EquipoiseError, OperatorError, PeerError
from equipoise.channel.core.log import Log, SnapshotRow, SnapshotStore
from equipoise.channel.core.side_log import Document
from equipoise.channel.kafka.rights import Resource, Right, Role, rights_of
from equipoise.channel.kafka.settings import CONFIG_FILE_VARIABLE, CONFIG_VARIABLE
from equipoise.channel.log.open_log import open_log, open_side_log
from equipoise.shedder.loads import Load
from equipoise.spark_jobs.audit.findings_out import FindingsOut
from equipoise.spark_jobs.rules.rule import Finding
from tests.decisions import idle
from tests.kafka.fixtures import or_skipped
from tests.kafka.secured import SecuredKafka, secured_kafka
from tests.tls.authority import Authority
from tests.visits import Visits
from tests.waiting import until

pytestmark = pytest.mark.integration

TIMEOUT_MS = 20_000
NAMESPACE = "shop/orders"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One node for all tests here, each with topics and users of its own."""
    with or_skipped(), secured_kafka(tmp_path_factory.mktemp("secured")) as kafka:
        yield kafka


@dataclass(frozen=True, kw_only=True)
class Place:
    """A topic, and this process as a user of Kafka. `test` is in the names of its users."""

    kafka: SecuredKafka
    topic: str
    test: str
    monkeypatch: pytest.MonkeyPatch

    @property
    def url(self) -> str:
        """The log for users with rights."""
        return f"kafka://{self.kafka.secure}/{self.topic}"

    def become(self, user: str, *, ca: Path | None = None) -> None:
        """Let this process connect as `user` of this topic from now on."""
        self.monkeypatch.setenv(CONFIG_VARIABLE, self.kafka.settings(self.user(user), ca=ca))

    def user(self, name: str) -> str:
        """Return the name of a user that no other test has."""
        return f"{name}.{self.test}"

    def become_role(self, role: Role) -> None:
        """Grant a role its rights by the command, and become its user."""
        self.monkeypatch.setenv(CONFIG_VARIABLE, "")
        command(
            f"channel acls {role.value} User:{self.user(role.value)} --apply",
            f"kafka://{self.kafka.plain}/{self.topic}",
        )
        self.become(role.value)

    def become_all_but(
        self, role: Role, operation: str, suffix: str, resource: Resource = Resource.TOPIC
    ) -> None:
        """Grant a role all of its rights but one, and become its user."""
        kept: list[Right] = []
        for right in rights_of(role, self.topic):
            if (right.resource, right.name) == (resource, f"{self.topic}{suffix}"):
                assert operation in right.operations
                right = replace(  # noqa: PLW2901
                    right,
                    operations=tuple(other for other in right.operations if other != operation),
                )
            kept.append(right)
        self.kafka.grant(self.user("lacking"), kept)
        self.become("lacking")


@pytest.fixture
def place(secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A topic of the node that does not exist yet."""
    monkeypatch.delenv(CONFIG_FILE_VARIABLE, raising=False)
    name = uuid.uuid4().hex[:8]
    return Place(kafka=secured, topic=name, test=name, monkeypatch=monkeypatch)


@pytest.fixture(scope="module")
def filled(secured: SecuredKafka) -> str:
    """A topic with all that a broker writes on it and beside it."""
    topic = "filled"
    url = f"kafka://{secured.plain}/{topic}"
    with closing(open_log(url)) as log:
        append(log)
        for store in (log.compacted_snapshot(), log.history_snapshot()):
            replace_snapshot(store)
    for deed in BESIDE:
        deed(url)
    return topic


def command(line: str, log: str, *, code: int = 0) -> str:
    """Run a command of `equipoise`. Return what it prints."""
    with ThreadPoolExecutor(1) as pool:  # A command has a loop of its own.
        result = pool.submit(CliRunner().invoke, app, [*line.split(), "--log", log]).result()
    assert code == result.exit_code, result.output
    return result.output


def publish_load(url: str) -> None:
    """Publish a load, as a broker does."""
    bus = LoadBus(url)
    patiently(lambda: bus.publish(Load(broker="b", at_ms=time.time_ns() // 1_000_000)))


def read_loads(url: str) -> None:
    """Read the loads of all brokers."""
    bus = LoadBus(url)
    patiently(bus.latest)


def write_decision(url: str) -> None:
    """Write a decision."""
    decisions = DecisionLog(url)
    patiently(lambda: decisions.write(idle()))


def write_observation(url: str) -> None:
    """Write what a broker served."""
    serving = open_side_log(url, SERVING)
    patiently(lambda: serving.append([Document("b", b"{}")]))


BESIDE = (publish_load, read_loads, write_decision, write_observation)
"""What brokers do beside their channel."""


def patiently(deed: Callable[[], object]) -> None:
    """Do it again if Kafka is too slow for what may be lost, but not if it refuses."""
    give_up_s = time.monotonic() + TIMEOUT_MS / 1_000
    while True:
        try:
            deed()
        except PeerError as error:
            if "the right" in str(error) or time.monotonic() > give_up_s:
                raise
        else:
            return


async def test_each_role_works_with_its_rights(place: Place) -> None:
    """A broker makes the topics and serves, an operator changes and compacts, a reader reads and
    cannot write, an audit publishes.
    """
    place.become_role(Role.BROKER)
    async with Worker(place.url, Visits()) as worker:
        await worker.create_namespace(NAMESPACE)
        assert isinstance(await worker.route(NAMESPACE, "key"), Ownership)
        for deed in BESIDE:
            deed(place.url)
        bus = LoadBus(place.url)
        await until(
            lambda: worker.broker_id in [load.broker for load in bus.latest()], "a report of it"
        )

        place.become_role(Role.OPERATOR)
        command("namespaces create shop/returns", place.url)
        assert "shop/returns" in command("namespaces list shop", place.url)
        command("channel compact", place.url)
        command("decisions", place.url)
        assert "Nothing would move" in command("plan", place.url)

        place.become_role(Role.READER)
        assert "shop/returns" in command("channel tail", place.url)
        command("channel verify", place.url)
        command("decisions", place.url)
        refused = command(
            "namespaces create shop/forged --timeout 3", place.url, code=ExitCode.UNAVAILABLE
        )
        assert f"its user needs the right Write on the topic {place.topic} (" in refused
        assert "shop/forged" not in command("namespaces list shop", place.url)

    finding = Finding(rule="r", subject="s", offsets=(1,), text="t", at_ms=1, command="c")
    # One warning: a reader may not.
    FindingsOut(place.url).put([finding])
    place.become_role(Role.AUDIT)
    FindingsOut(place.url).put([finding])


def test_only_a_user_with_alter_grants_rights(place: Place) -> None:
    place.become("nobody")
    problem = command("channel acls reader User:nobody --apply", place.url, code=ExitCode.OPERATOR)
    assert "its user needs the right Alter on the cluster (" in problem


def on_log(deed: Callable[[Log], object]) -> Callable[[str], object]:
    """Return a deed on a log that is opened for it."""

    def opened(url: str) -> object:
        with closing(open_log(url)) as log:
            return deed(log)

    return opened


def replace_snapshot(store: SnapshotStore) -> None:
    """Write a snapshot of one row."""
    store.claim(timeout_ms=TIMEOUT_MS)
    store.replace([SnapshotRow("row", b"data")], b"marker", timeout_ms=TIMEOUT_MS)


def append(log: Log) -> Sequence[int]:
    """Append one record."""
    return log.append([b"record"], timeout_ms=TIMEOUT_MS)


def truncate(log: Log) -> None:
    """Truncate the log."""
    log.truncate(append(log)[0], timeout_ms=TIMEOUT_MS)


CASES: Sequence[tuple[str, str, Callable[[str], object]]] = [
    ("Read", "", on_log(lambda log: log.read(1, limit=1))),
    ("Write", "", on_log(append)),
    ("DescribeConfigs", "", on_log(append)),
    ("Delete", "", on_log(truncate)),
    ("Read", "-snapshot", on_log(lambda log: log.compacted_snapshot().load())),
    ("Write", "-snapshot", on_log(lambda log: replace_snapshot(log.compacted_snapshot()))),
    ("DescribeConfigs", "-history", on_log(lambda log: log.history_snapshot().load())),
    ("Write", "-decisions", write_decision),
    ("Write", "-serving", write_observation),
    ("Write", "-loads", publish_load),
]
"""The operation and topic that are missing, and a deed that needs them."""


@pytest.mark.parametrize(
    ("operation", "suffix", "deed"),
    CASES,
    ids=[f"{operation}{suffix}" for operation, suffix, _ in CASES],
)
def test_a_missing_right_is_named(
    operation: str, suffix: str, deed: Callable[[str], object], place: Place, filled: str
) -> None:
    """By what Kafka calls it, and the topic. A user with neither Read nor Write lacks Describe
    first.
    """
    lacking = replace(place, topic=filled)
    lacking.become_all_but(Role.BROKER, operation, suffix)
    right = (
        rf"({operation}|Describe \(which Read and Write include\)) on the topic {filled}{suffix}"
    )
    with pytest.raises(EquipoiseError, match=rf"its user needs the right {right} .*failed"):
        deed(lacking.url)


def test_a_missing_right_to_make_a_topic_is_named(place: Place) -> None:
    place.become_all_but(Role.BROKER, "Create", "")
    with pytest.raises(
        OperatorError, match=f"its user needs the right Create on the topic {place.topic} "
    ):
        open_log(place.url)


def test_a_missing_right_on_a_transactional_id_is_named(place: Place) -> None:
    """The handle closes cleanly afterwards."""
    place.become_all_but(Role.BROKER, "Write", "-snapshot", Resource.TRANSACTIONAL_ID)
    with (
        closing(open_log(place.url)) as log,
        pytest.raises(OperatorError, match=f"on the transactional id {place.topic}-snapshot "),
    ):
        replace_snapshot(log.compacted_snapshot())


def test_a_kafka_that_is_not_what_it_says_is_refused(place: Place, tmp_path: Path) -> None:
    """By its CA, and by the name of its host."""
    place.become("broker", ca=Authority(tmp_path / "other").ca)
    with pytest.raises(
        OperatorError,
        match=(
            f"the certificate of Kafka at {place.kafka.secure} is not valid: it is not of a CA in"
        ),
    ):
        open_log(place.url)
    place.become("broker")
    with pytest.raises(
        OperatorError,
        match=r"the certificate of Kafka at localhost:\d+ is not valid: .* does not name that host",
    ):
        open_log(place.url.replace("127.0.0.1", "localhost"))
