"""What is read of a channel that Pulsar compacts, and how the client's errors are explained."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from equipoise.channel.core.errors import CallerError, OperatorError, PeerError
from equipoise.channel.system.clocks import Deadline
from equipoise.pulsar_cluster import reading
from equipoise.pulsar_cluster.credentials import NOBODY, Credentials, with_files
from equipoise.pulsar_cluster.reading import Address, Read, connected, newest_of, read_channel


def read(place: str, key: str = "a") -> Read:
    return Read(place, place.encode(), key, "", 0, b"{}")


class Topic:
    """A topic as the client reads it: its messages, and those of its compacted part. A compacted
    reader gets these before newer ones.
    """

    def __init__(self, plain: list[str], compacted: list[str]) -> None:
        self.plain, self.compacted = plain, compacted
        self.readers: list[Reader] = []

    def reader(
        self, _client: object, _topic: str, *, after: bytes | None, compacted: bool = False
    ) -> Reader:
        newer = [
            place
            for place in self.plain
            if not self.compacted or order(place) > order(self.compacted[-1])
        ]
        places = [*self.compacted, *newer] if compacted else self.plain
        self.readers.append(
            Reader(
                [
                    read(place)
                    for place in places
                    if after is None or order(place) > order(after.decode())
                ]
            )
        )
        return self.readers[-1]


class Reader:
    def __init__(self, reads: list[Read]) -> None:
        self.topic = "channel"
        self.asked = 0
        self._reads = reads

    def at_end(self) -> bool:
        self.asked += 1
        return not self._reads

    def next(self, _timeout_ms: int) -> Read | None:
        return self._reads.pop(0) if self._reads else None

    def close(self) -> None:
        pass


def order(place: str) -> tuple[int, ...]:
    return tuple(int(part) for part in place.split(":"))


@pytest.mark.parametrize(
    ("plain", "compacted", "after", "expected"),
    [
        # Never compacted.
        (["0:0", "0:1", "1:0"], [], None, ["0:0", "0:1", "1:0"]),
        (["0:0", "0:1", "1:0"], [], "0:0", ["0:1", "1:0"]),
        # Compacted, and all messages are still there.
        (["0:0", "0:1", "0:2"], ["0:1"], None, ["0:0", "0:1", "0:2"]),
        (["0:0", "0:1", "0:2"], ["0:1"], "0:0", ["0:1", "0:2"]),
        # The oldest were deleted.
        (["2:0", "2:1"], ["0:5", "1:3"], None, ["0:5", "1:3", "2:0", "2:1"]),
        (["2:0", "2:1"], ["0:5", "1:3"], "2:0", ["2:1"]),
        (["2:0", "2:1"], ["0:5", "1:3"], "1:7", ["2:0", "2:1"]),
        # All were deleted.
        ([], ["0:5", "1:3"], None, ["0:5", "1:3"]),
        ([], ["0:5", "1:3"], "1:3", []),
        # Some were deleted that nobody had read: all begins anew.
        (["2:0"], ["0:5", "1:3"], "0:7", ["!0:5", "1:3", "2:0"]),
        ([], ["0:5", "1:3"], "0:7", ["!0:5", "1:3"]),
    ],
)
def test_what_is_read_of_a_compacted_channel(
    monkeypatch: pytest.MonkeyPatch,
    plain: list[str],
    compacted: list[str],
    after: str | None,
    expected: list[str],
) -> None:
    monkeypatch.setattr(reading, "TopicReader", Topic(plain, compacted).reader)
    found = read_channel(
        None,
        after=None if after is None else after.encode(),
        deadline=Deadline.after(timeout_ms=1_000),
    )
    assert expected == [("!" if each.begins_anew else "") + each.message_id for each in found]


def test_the_end_is_asked_for_only_when_no_message_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question costs more than a message."""
    topic = Topic([f"0:{number}" for number in range(100)], [])
    monkeypatch.setattr(reading, "TopicReader", topic.reader)
    assert 100 == len(list(read_channel(None, deadline=Deadline.after(timeout_ms=10_000))))
    assert [1, 0] == [reader.asked for reader in topic.readers]


def test_the_end_of_a_topic_that_never_pauses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a storm of unloads, a message follows another. What was there is read, and the command
    ends.
    """

    class Storm(Reader):
        def at_end(self) -> bool:
            self.asked += 1
            return True

        def next(self, timeout_ms: int) -> Read | None:
            self._reads.append(read(f"0:{len(self._reads)}"))
            return super().next(timeout_ms)

    storms = [Storm([]), Reader([])]
    monkeypatch.setattr(reading, "_ASK_MS", 1)
    monkeypatch.setattr(reading, "TopicReader", lambda *_args, **_options: storms.pop(0))
    assert ["0:0"] == [
        each.message_id for each in read_channel(None, deadline=Deadline.after(timeout_ms=60_000))
    ][:1]


def test_a_channel_that_is_not_read_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TopicReader", Topic(["0:0"], []).reader)
    with pytest.raises(PeerError, match=r"give the command more time \(--timeout\)"):
        list(read_channel(None, deadline=Deadline.after(timeout_ms=0)))


def test_a_cluster_that_cannot_be_reached_is_told_at_once() -> None:
    """The client itself tries for half a minute. One broker of the URL is enough."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_server(("127.0.0.1", 0)) as closed,
    ):
        open_port, closed_port = listening.getsockname()[1], closed.getsockname()[1]
        closed.close()
        wanted = (
            rf"no broker of pulsar://127.0.0.1:{closed_port} can be reached"
            rf" \(127.0.0.1:{closed_port}: Connection refused\); check the"
        )
        with (
            pytest.raises(PeerError, match=wanted),
            connected(Address(service_url=f"pulsar://127.0.0.1:{closed_port}")),
        ):
            pass
        with connected(
            Address(service_url=f"pulsar://127.0.0.1:{closed_port},127.0.0.1:{open_port}")
        ):
            pass


@pytest.mark.parametrize(
    "url", ["http://broker:8080", "pulsar://BROKER:PORT", "kafka://broker:9092/x", ""]
)
def test_another_url_is_refused(url: str) -> None:
    with (
        pytest.raises(CallerError, match="is not the service URL of a Pulsar cluster"),
        connected(Address(service_url=url)),
    ):
        pass


@pytest.mark.parametrize(
    "who",
    [
        NOBODY,
        Credentials(token=lambda: "abc"),
        Credentials(password=("me", "x")),
        Credentials(certificate=("c", "k"), is_role=True),
    ],
)
@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl"])
def test_the_client_is_given_who_asks(who: Credentials, scheme: str) -> None:
    """It reads its files when it connects."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = Address(
            service_url=f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", credentials=who
        )
        with connected(address) as client:
            assert client is not None


def test_a_token_that_is_gone_is_an_error_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    who = with_files(NOBODY, tmp_path / "token", None)
    (tmp_path / "token").unlink()
    with (
        pytest.raises(OperatorError, match="check --token-file"),
        connected(Address(service_url="pulsar://127.0.0.1:1", credentials=who)),
    ):
        pass


def test_a_token_that_cannot_be_renewed_is_used_on(tmp_path: Path) -> None:
    """The client asks for it in a thread of its own, where an error would end the process."""
    path = tmp_path / "token"
    path.write_text("old")
    token = with_files(NOBODY, path, None).token
    assert token is not None
    ask = newest_of(token)
    path.unlink()
    assert "old" == ask()
    path.write_text("new")
    assert "new" == ask()
