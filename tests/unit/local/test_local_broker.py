"""One broker process of a local cluster: how its end is told, and when it is started again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.local.local_broker import RESTART_MS_MAX, RESTART_MS_MIN, STEADY_MS, LocalBroker, Output, ending_of, ports_of


@pytest.mark.parametrize(
    ("code", "told"),
    [(0, "ended with exit code 0"), (4, "ended with exit code 4"), (-9, "was killed by SIGKILL"), (-999, "was killed by signal 999")],
)
def test_an_end_is_told_in_words(code: int, told: str) -> None:
    """An exit code is told as it is, and a signal by its name, if it has one."""
    assert told == ending_of(code)


def test_pauses_grow_until_it_is_steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that dies again and again is started ever more seldom, up to a bound; one that lived for long, at once."""
    now_ns = 0
    monkeypatch.setattr("equipoise.brokers.local.local_broker.time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    broker = LocalBroker(tmp_path, 8080)
    assert [RESTART_MS_MIN, 1_000, 2_000, 4_000, 8_000, RESTART_MS_MAX, RESTART_MS_MAX] == [broker.pause.next_ms() for _ in range(7)]
    now_ns = STEADY_MS * 1_000_000
    assert RESTART_MS_MIN == broker.pause.next_ms()


def test_the_last_words_are_the_last_error_or_the_last_line(tmp_path: Path) -> None:
    """What a process wrote last tells why it ended, whatever came before, and even if it was no text."""
    output = Output(tmp_path / "broker.log")
    assert output.last_output() is None
    output.file.write_bytes(b"{}\n" * 10_000 + b"\xff no room\n\n")
    assert "\ufffd no room" == output.last_output()
    for line, error in (("error: no room", "error: no room"), ('{"level":"error","event":"no room","error":"..."}', "no room")):
        output.file.write_text(f'{{"level":"info"}}\nerror: an older one\n{line}\n{{"level":"warning"}}\n[1, 2\n7\n')
        assert error == output.last_output()


def test_the_last_words_of_an_earlier_process_are_not_those_of_the_next(tmp_path: Path) -> None:
    """A process that was killed without a word is not said to have ended by the error of the one before it."""
    output = Output(tmp_path / "broker.log")
    output.file.write_text("error: an older one\n")
    with output.of_process(["--help"], {}) as process:
        process.wait()
    assert "error: an older one" != output.last_output()
    with output.file.open("a") as file:
        file.write("error: a new one\n")
    assert "error: a new one" == output.last_output()


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (0, "stopped", "ended with exit code 0"),
        (4, "error: no room", "ended with exit code 4: error: no room; its log: {file}"),
        (1, "", "ended with exit code 1; its log: {file}"),
        (-9, '{"level":"info"}', "was killed by SIGKILL; its log: {file}"),
        (-9, "error: no room", "was killed by SIGKILL: error: no room; its log: {file}"),
    ],
)
def test_an_end_is_told_with_its_reason(code: int, words: str, told: str, tmp_path: Path) -> None:
    """Where a process did not end in order, its last error is the reason, and its log is named."""
    output = Output(tmp_path / "broker.log")
    output.file.write_text(words)
    assert told.format(file=output.file) == output.ending(code)


def test_brokers_listen_in_rows() -> None:
    """Broker i has the port that is given plus i, of each kind; without Pulsar it has but one."""
    assert [(8080, 6650), (8081, 6651), (8082, 6652)] == ports_of(8080, 6650, 3)
    assert [(8080, None), (8081, None)] == ports_of(8080, None, 2)
    assert [(8080, 8082), (8081, 8083)] == ports_of(8080, 8082, 2)


@pytest.mark.parametrize("pulsar_port", [8078, 8080, 8081, 8082])
def test_rows_that_overlap_are_refused(pulsar_port: int) -> None:
    """Two brokers, or a broker's two protocols, cannot be at one port, and the refusal says which rows clash."""
    told = f"pulsar_port: the ports of 3 brokers from {pulsar_port} on overlap with those from http_port=8080 on"
    with pytest.raises(InvalidConfig, match=told):
        ports_of(8080, pulsar_port, 3)


def test_no_free_port_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports that are free are drawn for both protocols at once, past those that are named and those that are taken."""

    class Server:
        """The machine, where somebody listens at one port."""

        def __init__(self, address: tuple[str, int]) -> None:
            if address[1] == 10_001:
                raise OSError

        def __enter__(self) -> None:
            """Nothing is held."""

        def __exit__(self, *_: object) -> None:
            """Nothing is held."""

    monkeypatch.setattr("equipoise.channel.system.free_ports.socket", SimpleNamespace(create_server=Server))
    monkeypatch.setattr("equipoise.channel.system.free_ports.random", SimpleNamespace(sample=lambda ports, count: ports[:count]))
    assert [(10_000, 10_003), (10_002, 10_004)] == ports_of(0, 0, 2)
    assert [(10_002, 10_000), (10_003, 10_001)] == ports_of(0, 10_000, 2)
    assert [(10_000, None)] == ports_of(0, None, 1)
