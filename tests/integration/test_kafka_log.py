"""The log on a real Kafka: topics that are refused, strange messages, and a Kafka that goes away
and comes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from compose.local_kafka.cluster import Cluster
from equipoise.channel.core.errors import (
    CallerError,
    EquipoiseError,
    LogDamaged,
    LogNotBegun,
    LogTruncated,
    LogUnavailable,
    OperatorError,
)
from equipoise.channel.core.log import Entry, Log, SnapshotRow
from equipoise.channel.kafka import log as kafka_log
from equipoise.channel.kafka.settings import CONFIG_VARIABLE, HEADER_KEY, as_text
from equipoise.channel.kafka.topic import HEADER, needed_of_log, needed_of_snapshot
from equipoise.channel.log.open_log import open_log
from tests.channels.carried import entries_of
from tests.kafka.finding import local_kafka
from tests.kafka.fixtures import Kafka, OwnKafka, or_skipped
from tests.kafka.proxy import Direction
from tests.kafka.topics import Writer, create_topic, delete_topics, read_all

pytestmark = pytest.mark.integration

TIMEOUT_MS: Final = 10_000
SHORT_MS: Final = 500
DEADLINE_S: Final = 60.0

LOG_SETTINGS: Final = {each.name: each.made for each in needed_of_log(1)}
SNAPSHOT_SETTINGS: Final = {each.name: each.made for each in needed_of_snapshot(1)}


def opened_with(url: str, settings: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log, opened by a process with these settings of Kafka's client."""
    monkeypatch.setenv(CONFIG_VARIABLE, as_text(settings))
    return open_log(url)


def until(work: Callable[[], object]) -> object:
    """What `work` returns, once Kafka lets it."""
    give_up_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return work()
        except LogUnavailable:
            if time.monotonic() > give_up_s:
                raise
            # Each attempt waits for Kafka itself; this is for those that fail at once.
            time.sleep(0.05)


def until_it_raises(work: Callable[[], object]) -> None:
    """Repeat `work` until Kafka has deleted the topic, which takes it a while after it has said
    so.
    """
    give_up_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_s:
        with suppress(LogUnavailable):
            work()
        time.sleep(0.05)


@pytest.fixture
def log(kafka: Kafka) -> Iterator[Log]:
    """A handle on a new log."""
    with closing(open_log(f"kafka://{kafka.address}/{kafka.topic('log')}")) as opened:
        yield opened


@dataclass(frozen=True, kw_only=True)
class Unfit:
    setting: str
    found: str
    made: Mapping[str, str]


UNFIT: Final = (
    Unfit(setting="cleanup.policy", found="compact", made={"cleanup.policy": "compact"}),
    Unfit(
        setting="cleanup.policy", found="compact,delete", made={"cleanup.policy": "compact,delete"}
    ),
    Unfit(setting="retention.ms", found="604800000", made={"retention.ms": "604800000"}),
    Unfit(setting="retention.bytes", found="1000000", made={"retention.bytes": "1000000"}),
    Unfit(setting="min.insync.replicas", found="2", made={"min.insync.replicas": "2"}),
    Unfit(
        setting="unclean.leader.election.enable",
        found="true",
        made={"unclean.leader.election.enable": "true"},
    ),
    Unfit(
        setting="message.timestamp.type",
        found="CreateTime",
        made={"message.timestamp.type": "CreateTime"},
    ),
    Unfit(setting="max.message.bytes", found="1048588", made={"max.message.bytes": "1048588"}),
)


@pytest.mark.parametrize("case", UNFIT, ids=lambda case: case.setting)
def test_a_topic_with_a_wrong_setting_is_refused_by_its_name(kafka: Kafka, case: Unfit) -> None:
    """A topic that could lose what it must keep is refused, with the setting, what it is and what
    it must be.
    """
    topic = kafka.topic("unfit")
    create_topic(kafka.address, topic, settings={**LOG_SETTINGS, **case.made})
    with pytest.raises(
        OperatorError, match=f"{case.setting} of the topic {topic} is {case.found}, and must be"
    ) as caught:
        open_log(f"kafka://{kafka.address}/{topic}")
    assert "UnfitTopic" == caught.value.code


def test_a_topic_of_two_partitions_is_refused(kafka: Kafka) -> None:
    """Two partitions have no order between them."""
    topic = kafka.topic("two-partitions")
    create_topic(kafka.address, topic, partitions=2, settings=LOG_SETTINGS)
    with pytest.raises(
        OperatorError, match=r"the number of partitions of the topic .* is 2, and must be 1"
    ):
        open_log(f"kafka://{kafka.address}/{topic}")


def test_a_topic_with_fewer_copies_than_the_url_says_is_refused(kafka: Kafka, log: Log) -> None:
    """Whoever says how many copies there must be is not given fewer."""
    open_log(f"{log.name}?replication=1").close()
    with pytest.raises(
        OperatorError,
        match=r"the number of copies of the topic .* is 1, and must be 3, as in the URL",
    ):
        open_log(f"{log.name}?replication=3")


def test_a_snapshot_with_a_wrong_setting_is_refused(kafka: Kafka, log: Log) -> None:
    """A snapshot whose rows Kafka might drop while somebody reads them is refused, by its compactor
    and by its readers.
    """
    topic = f"{log.name.rpartition('/')[2]}-snapshot"
    create_topic(
        kafka.address, topic, settings={**SNAPSHOT_SETTINGS, "delete.retention.ms": "60000"}
    )
    with pytest.raises(
        OperatorError,
        match=f"delete.retention.ms of the topic {topic} is 60000, and must be at least 3600000",
    ):
        log.compacted_snapshot().load()
    with pytest.raises(OperatorError):
        log.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)


def test_a_topic_of_another_program_is_refused(kafka: Kafka) -> None:
    """A topic whose first message is no header belongs to somebody else, and so does one whose
    header says another format.
    """
    foreign, newer = kafka.topic("foreign"), kafka.topic("newer")
    for topic, key, value in (
        (foreign, b"k", b"v"),
        (newer, HEADER_KEY, b'{"log":"equipoise","format":2}'),
    ):
        create_topic(kafka.address, topic, settings=LOG_SETTINGS)
        Writer(kafka.address).append(topic, [(key, value)])
    with pytest.raises(LogDamaged, match="holds messages of another program"):
        open_log(f"kafka://{kafka.address}/{foreign}")
    with pytest.raises(LogDamaged, match=r"the topic .* has the header"):
        open_log(f"kafka://{kafka.address}/{newer}")
    assert [(0, b"k", b"v")] == list(read_all(kafka.address, foreign))


def test_who_only_looks_makes_nothing(kafka: Kafka) -> None:
    """Without `create` a topic that is not there is not made, and an empty one stays empty."""
    topic = kafka.topic("looked-at")
    with pytest.raises(LogNotBegun, match=f"there is no topic {topic}"):
        open_log(f"kafka://{kafka.address}/{topic}", create=False)
    create_topic(kafka.address, topic, settings=LOG_SETTINGS)
    with pytest.raises(LogNotBegun, match=f"the topic {topic} is empty"):
        open_log(f"kafka://{kafka.address}/{topic}", create=False)
    assert [] == list(read_all(kafka.address, topic))


def test_two_who_make_one_log_at_once_share_it(kafka: Kafka) -> None:
    """However many open a new log at the same time, they get one log, whose first entries all of
    them read alike.
    """
    url = f"kafka://{kafka.address}/{kafka.topic('race')}"
    at_once = threading.Barrier(4)

    def opened(number: int) -> Log:
        at_once.wait(DEADLINE_S)
        log = open_log(url)
        log.append([b"%d" % number], timeout_ms=TIMEOUT_MS)
        return log

    with ThreadPoolExecutor(4) as pool:
        logs = list(pool.map(opened, range(4)))
    reads = [entries_of(log, 1) for log in logs]
    assert [b"0", b"1", b"2", b"3"] == sorted(entry.data for entry in reads[0])
    assert [reads[0]] * 4 == reads
    assert 1 == len({log.identity for log in logs})
    for log in logs:
        log.close()


def test_strange_messages_are_entries_and_headers_are_none(kafka: Kafka, log: Log) -> None:
    """Nulls, empty values and garbage with keys are entries for the fold to reject; a second header
    is a gap.
    """
    log.append([b"a"], timeout_ms=TIMEOUT_MS)
    topic = log.name.rpartition("/")[2]
    Writer(kafka.address).append(
        topic, [(b"k", None), (HEADER_KEY, HEADER), (b"", b"\xff\0garbage"), (b"k", b"")]
    )
    (last,) = log.append([b"z"], timeout_ms=TIMEOUT_MS)
    assert [(1, b"a"), (2, b""), (4, b"\xff\0garbage"), (5, b""), (last, b"z")] == entries_of(
        log, 1
    )
    assert log.wait(3, timeout_ms=0)
    assert [4] == [entry.offset for entry in log.read(3, limit=1)]


def test_a_reader_meets_a_truncation_by_another(log: Log) -> None:
    """A reader whose position is truncated away meets a typed error, and one above it reads on."""
    log.append([b"%d" % number for number in range(10)], timeout_ms=TIMEOUT_MS)
    with closing(open_log(log.name)) as other:
        other.truncate(8, timeout_ms=TIMEOUT_MS)
    with pytest.raises(LogTruncated) as caught:
        log.read(3, limit=10)
    assert (3, 8) == (caught.value.position, caught.value.start)
    assert [b"7", b"8", b"9"] == [entry.data for entry in log.read(8, limit=10)]


def test_a_topic_made_anew_is_another_log(kafka: Kafka, log: Log) -> None:
    """Whoever has a log open whose topic is deleted and made anew is stopped, in reading and in
    appending, and writes nothing to it.
    """
    log.append([b"a", b"b"], timeout_ms=TIMEOUT_MS)
    assert 2 == len(entries_of(log, 1))
    topic = log.name.rpartition("/")[2]
    delete_topics(kafka.address, [topic])
    with pytest.raises(OperatorError, match=f"the topic {topic} of the log"):
        until_it_raises(log.end)
    with closing(open_log(log.name)) as anew:
        assert log.identity != anew.identity
        with pytest.raises(OperatorError):
            until(lambda: log.read(3, limit=10))
        with pytest.raises(OperatorError):
            until(log.end)


def test_a_topic_made_anew_is_not_truncated(kafka: Kafka, log: Log) -> None:
    """Who truncates the log that it knows does not cut the topic that bears its name now, however
    far that one has grown.
    """
    log.append([b"a", b"b"], timeout_ms=TIMEOUT_MS)
    topic = log.name.rpartition("/")[2]
    delete_topics(kafka.address, [topic])
    with closing(open_log(log.name)) as anew:
        offsets = [anew.append([b"%d" % number], timeout_ms=TIMEOUT_MS)[0] for number in range(5)]
        with pytest.raises(OperatorError):
            until(lambda: log.truncate(3, timeout_ms=TIMEOUT_MS))
        assert offsets == [entry.offset for entry in entries_of(anew, 1)]


def test_an_address_where_nobody_is_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no Kafka answers, opening ends within its bound, and says what it met there."""
    monkeypatch.setattr(kafka_log, "OPEN_MS_MAX", 1_000)
    began_s = time.monotonic()
    with pytest.raises(LogUnavailable, match=r"Timed out.*\(127\.0\.0\.1:1.*refused") as caught:
        open_log("kafka://127.0.0.1:1/topic")
    assert not caught.value.in_doubt
    assert time.monotonic() - began_s < DEADLINE_S


def test_settings_that_do_not_exist_are_named(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that Kafka's client does not have, or a value that it does not take, is told by its
    name and without secrets.
    """
    url = f"kafka://{kafka.address}/{kafka.topic('settings')}"
    with pytest.raises(CallerError, match=r"sasl\.pasword") as caught:
        opened_with(url, {"sasl.pasword": "hidden"}, monkeypatch)
    assert "hidden" not in str(caught.value)
    with pytest.raises(CallerError, match=r"security\.protocol"):
        opened_with(url, {"security.protocol": "SASL"}, monkeypatch)


_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def secured(password: str) -> Mapping[str, str]:
    """Settings of a Kafka that lets in whoever knows the password of `admin`."""
    return {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{_PLAIN} username="admin" password="{password}" user_admin="{password}";'
        ),
    }


def restarted(cluster: Cluster, password: str) -> None:
    """Let the Kafka take another password."""
    cluster.stop()
    Cluster.lay_out(cluster.folder, extra=secured(password))
    cluster.start()


def test_a_secured_kafka_lets_in_whoever_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials by settings open a log; wrong ones, or none, end in an error that says what Kafka
    said, and never a password. To a handle that was let in once they are an outage, which ends.
    """
    monkeypatch.setattr(kafka_log, "LOOK_MS", 0)
    with or_skipped(), local_kafka(tmp_path, extra=secured("right")) as cluster:
        url = f"kafka://{cluster.address}/secured"
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "right",
        }
        with closing(opened_with(url, settings, monkeypatch)) as log:
            log.append([b"a"], timeout_ms=TIMEOUT_MS)
            with pytest.raises(OperatorError, match="Invalid username or password") as denied:
                opened_with(url, {**settings, "sasl.password": "hidden"}, monkeypatch)
            assert "hidden" not in str(denied.value)
            with pytest.raises(OperatorError, match="broker's supported mechanisms: PLAIN"):
                opened_with(url, {**settings, "sasl.mechanism": "SCRAM-SHA-256"}, monkeypatch)
            with monkeypatch.context() as short:
                short.setattr(kafka_log, "OPEN_MS_MAX", 2_000)
                with pytest.raises(LogUnavailable):
                    opened_with(url, {}, short)
            restarted(cluster, "other")
            give_up_s, problem = time.monotonic() + DEADLINE_S, ""
            while "Invalid username or password" not in problem:
                assert time.monotonic() < give_up_s, problem
                with pytest.raises(LogUnavailable) as caught:
                    log.end()
                problem = caught.value.problem
            restarted(cluster, "right")
            assert 1 == until(log.end)
            assert [(1, b"a")] == until_entries(log)


def test_an_append_without_an_answer_is_in_doubt_and_not_repeated(own_kafka: OwnKafka) -> None:
    """A batch whose receipt is lost is in doubt; it is on the log once, and the same handle goes on
    when Kafka can be reached again.
    """
    with closing(
        open_log(f"kafka://{own_kafka.proxied_address}/{own_kafka.topic('in-doubt')}")
    ) as log:
        log.append([b"before"], timeout_ms=TIMEOUT_MS)
        own_kafka.proxy.black_hole(Direction.TO_CLIENT)
        with pytest.raises(LogUnavailable) as caught:
            log.append([b"doubtful"], timeout_ms=SHORT_MS)
        assert caught.value.in_doubt
        own_kafka.proxy.heal()
        until(lambda: log.append([b"after"], timeout_ms=TIMEOUT_MS))
        assert [b"before", b"doubtful", b"after"] == [entry.data for entry in until_entries(log)]


def until_entries(log: Log) -> list[Entry]:
    """All entries, once Kafka lets them be read."""
    found = until(lambda: entries_of(log, 1))
    assert isinstance(found, list)
    return found


def test_a_stopped_kafka_keeps_nobody_for_long(own_kafka: OwnKafka) -> None:
    """A Kafka that hangs ends each call in its time, a close too; and a wake is heard meanwhile."""
    log = open_log(f"kafka://{own_kafka.address}/{own_kafka.topic('hanging')}")
    (offset,) = log.append([b"a"], timeout_ms=TIMEOUT_MS)
    assert 1 == len(log.read(offset, limit=10))
    own_kafka.cluster.node(1).suspend()
    try:
        log.wake()
        assert not log.wait(offset + 1, timeout_ms=TIMEOUT_MS)
        with pytest.raises(EquipoiseError):
            log.end()
        began_s = time.monotonic()
        log.close()
        assert time.monotonic() - began_s < DEADLINE_S
    finally:
        own_kafka.cluster.node(1).resume()


def test_a_snapshot_survives_the_death_of_kafka(own_kafka: OwnKafka) -> None:
    """A snapshot that was replaced is there after `kill -9`; a replacement while Kafka is dead
    fails, and is seen whole or not at all.
    """
    with closing(open_log(f"kafka://{own_kafka.address}/{own_kafka.topic('snapshot')}")) as log:
        compacted_snapshot = log.compacted_snapshot()
        compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
        compacted_snapshot.replace([SnapshotRow("a", b"1")], b"first", timeout_ms=TIMEOUT_MS)
        own_kafka.cluster.node(1).kill()
        with pytest.raises(LogUnavailable):
            compacted_snapshot.replace([SnapshotRow("a", b"2")], b"second", timeout_ms=SHORT_MS)
        own_kafka.cluster.node(1).start()
        until(lambda: compacted_snapshot.claim(timeout_ms=TIMEOUT_MS))
        image = compacted_snapshot.load()
        assert image is not None
        assert (image.marker, image.rows["a"]) in ((b"first", b"1"), (b"second", b"2"))
        compacted_snapshot.replace([SnapshotRow("a", b"3")], b"third", timeout_ms=TIMEOUT_MS)
        after = compacted_snapshot.load()
        assert after is not None
        assert (b"third", {"a": b"3"}) == (after.marker, dict(after.rows))
